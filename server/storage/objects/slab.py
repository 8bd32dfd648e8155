"""The file of the cache of objects: blocks of tokens in slots, and a table of what each slot holds.

One file, allocated whole when it is made, so that it never grows. It is mapped read-only, and only
written by system calls: who reads it while it is truncated gets an error, and no signal.

One process at a time writes, which holds a lock of the file (the lease); all of them read. A block
is in the table once its content is on the disk. Before a slot gets another block, its entry is
cleared, on the disk too, and then a count is raised: bytes that were copied out of the map are
those of a block if the count is still the one with which the block was known. So a process that
is killed, a machine that loses power, and a reader beside a writer give no byte of another block.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
import struct
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from tokenfeed.wire import crc32c

from ..bytes import ByteArray, Numbers
from ..local import syscalls
from ..local.safe_copy import best_copier

BLOCK_BYTES = 1 << 20
"""The tokens of an object are cut into blocks of this size, from its first token on. A block of the
order `blocks-1` is one, two or more of them."""
TAIL_BYTES = 8
"""Behind a block, where the object has more: the token that is the last target of its rows."""
SLOT_BYTES = BLOCK_BYTES + 4096
SLOTS_MIN = 16
FOLDER, FILE = "tokenfeed-object-cache", "slab"
_MAGIC = b"tokenfeed-slab-1"
_HEADER_BYTES = 4096
_COUNTS = struct.Struct("<QQ")
_COUNTS_AT = 24
_ENTRY = np.dtype(
    [
        *(("object", "<u8", 2), ("block", "<u8"), ("stamp", "<u8"), ("size", "<u4")),
        *(("crc", "<u4"), ("check", "<u8"), ("spare", "<u8", 2)),
    ]
)
_WORDS, _CHECKED_WORDS = _ENTRY.itemsize // 8, 5
_LOCK_SECONDS = 10.0
"""Another process may be making the file: a few seconds for terabytes."""

ContentHash = tuple[int, int]
"""The hash of an object as it was pinned, 128 bits."""


class UnusableFolder(Exception):
    """Nothing can be cached in a folder; the text says why."""


class DamagedSlab(OSError):
    """The file is not what it was when it was opened."""


class Slab:
    """An opened file. Entries are changed by one thread; any thread may copy.

    entries: what each slot holds, as this process knows it; those with stamp 0 hold nothing, and
    a stamp is greater than those before.
    known_evictions: how often slots had been emptied when the entries were read.
    """

    def __init__(self, folder: int, descriptor: int, slot_count: int) -> None:
        """Take an open file with a valid header, and the folder, whose lock says that it is used.

        Raises: OSError.
        """
        self.slot_count = slot_count
        self.size_bytes = size_of(slot_count)
        self.is_leased = self._has_begun = False
        self.known_evictions = self._known_additions = -1
        self._descriptor = descriptor
        self._slots_at = self.size_bytes - slot_count * SLOT_BYTES
        self._pending: list[int] = []
        self._stamp = 0
        self._copier = best_copier()
        self.refresh()
        address = syscalls.reserve(self.size_bytes)
        try:
            syscalls.map_file(address, descriptor, self.size_bytes)
        except OSError:
            syscalls.unmap(address, self.size_bytes)
            raise
        syscalls.expect_random_access(address, self.size_bytes)
        self.first_address = address + self._slots_at
        # Threads that copy hold a reference, so that no address is unmapped under them.
        close = weakref.finalize(self, _release, folder, descriptor, address, self.size_bytes)
        close.atexit = False

    # --- any thread ---

    def copy(self, ranges: syscalls.Ranges, target: ByteArray) -> bool:
        """Copy ranges of memory, such as of slots, one after another; return whether all could be
        read.
        """
        return self._copier.copy(ranges, target) is None

    @property
    def evictions(self) -> int:
        """How often slots have been emptied, by any process; -1 if that cannot be read."""
        counts = b""
        with suppress(OSError):
            counts = os.pread(self._descriptor, _COUNTS.size, _COUNTS_AT)
        return int(_COUNTS.unpack(counts)[0]) if len(counts) == _COUNTS.size else -1

    # --- the thread that changes entries ---

    @property
    def is_gone(self) -> bool:
        """Whether the file was deleted or truncated."""
        status = os.fstat(self._descriptor)
        return status.st_nlink == 0 or status.st_size != self.size_bytes

    @property
    def has_news(self) -> bool:
        """Whether another process has changed entries since they were read."""
        counts = os.pread(self._descriptor, _COUNTS.size, _COUNTS_AT)
        known = self.known_evictions, self._known_additions
        return len(counts) == _COUNTS.size and _COUNTS.unpack(counts) != known

    def refresh(self) -> None:
        """Read all entries.  Raises: DamagedSlab, OSError."""
        # First the counts: whatever is emptied afterwards raises them.
        counts = _COUNTS.unpack(self._read(_COUNTS_AT, _COUNTS.size))
        table = self._read(_HEADER_BYTES, self.slot_count * _ENTRY.itemsize)
        entries = np.frombuffer(bytearray(table), dtype=_ENTRY)
        # A machine that loses power may leave a part of an entry.
        entries[entries["check"] != _checks(entries)] = 0
        self.entries = entries
        self.known_evictions, self._known_additions = counts

    def take_lease(self) -> bool:
        """Return whether this process is the one that writes, from now on. Then `has_news` tells
        whether entries are to be read again first.  Raises: OSError.
        """
        self.is_leased = self.is_leased or _lock(self._descriptor, fcntl.LOCK_EX)
        return self.is_leased

    def begin_writes(self) -> bool:
        """Make sure, before the first block of a lease, that what is written is not taken for a
        block that was there; return whether all entries were read again for that.

        A process that was killed, or met an error, may have emptied slots and not raised the count,
        or have filled some and not said so.  Raises: DamagedSlab, OSError.
        """
        if self._has_begun:
            return False
        self.refresh()
        os.fdatasync(self._descriptor)
        self._raise_counts(1, 0)
        self._has_begun = True
        return True

    def end_lease(self) -> None:
        """Let another process write."""
        self._has_begun = False
        if self.is_leased:
            self.is_leased = False
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def distrust(self) -> None:
        """Read all entries again before the next change: what the file has is not known after an
        error.
        """
        self._pending, self.known_evictions, self._has_begun = [], -1, False

    def evict(self, slots: Numbers) -> None:
        """Empty slots, durably, so that they may be written to.  Raises: OSError, as `commit`."""
        self.commit()
        self.entries[slots] = 0
        self._write_entries(slots.tolist())
        os.fdatasync(self._descriptor)
        self._raise_counts(1, 0)

    def write(self, slot: int, owner: ContentHash, block: int, content: memoryview) -> None:
        """Write a block into an empty slot. Other processes see it after `commit`.

        content: at most BLOCK_BYTES + TAIL_BYTES bytes.  Raises: OSError, as `commit`.
        """
        _write_all(self._descriptor, content, self._slots_at + slot * SLOT_BYTES)
        entry = np.zeros(1, dtype=_ENTRY)
        crc = crc32c.extend(0, np.frombuffer(content, dtype=np.uint8))
        entry[0] = owner, block, self._next_stamp(), len(content), crc, 0, (0, 0)
        entry["check"] = _checks(entry)
        self.entries[slot] = entry[0]
        self._pending.append(slot)

    def commit(self) -> None:
        """Put the blocks that were written into the table, once they are on the disk.

        Raises: OSError; then `distrust`.
        """
        if self._pending:
            os.fdatasync(self._descriptor)
            self._write_entries(self._pending)
            self._pending = []
            self._raise_counts(0, 1)

    def is_intact(self, slot: int) -> bool:
        """Return whether a block can be read, and has the checksum of when it was written."""
        entry, content = self.entries[slot], b""
        first = self._slots_at + slot * SLOT_BYTES
        with suppress(OSError):
            content = os.pread(self._descriptor, int(entry["size"]), first)
        whole = np.frombuffer(content, dtype=np.uint8)
        return len(content) == entry["size"] and crc32c.extend(0, whole) == int(entry["crc"])

    def _next_stamp(self) -> int:
        # It goes on where the clock was set back.
        self._stamp = max(self._stamp + 1, time.time_ns())
        return self._stamp

    def _write_entries(self, slots: Sequence[int]) -> None:
        for slot in slots:
            content = memoryview(self.entries[slot : slot + 1].tobytes())
            _write_all(self._descriptor, content, _HEADER_BYTES + slot * _ENTRY.itemsize)

    def _raise_counts(self, evictions: int, additions: int) -> None:
        counts = self.known_evictions + evictions, self._known_additions + additions
        _write_all(self._descriptor, memoryview(_COUNTS.pack(*counts)), _COUNTS_AT)
        self.known_evictions, self._known_additions = counts

    def _read(self, first: int, size_bytes: int) -> bytes:
        found = bytearray()
        while len(found) < size_bytes:
            part = os.pread(self._descriptor, size_bytes - len(found), first + len(found))
            if not part:
                raise DamagedSlab(errno.EIO, "is truncated")
            found += part
        return bytes(found)


def open_slab(folder: str, size_bytes: int | None) -> Slab:
    """Open the file in a folder; make it if there is none, or one of another size that no process
    uses.

    size_bytes: the most that it may have; None: only a file that is there is opened.
    Raises: UnusableFolder.
    """
    own = os.path.join(folder, FOLDER)
    try:
        if size_bytes is not None:
            os.makedirs(own, mode=0o700, exist_ok=True)
        descriptor = os.open(own, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UnusableFolder(f"{own} cannot be used: {error.strerror}") from error
    try:
        _require_own(own, os.fstat(descriptor), "chown it, or name another folder")
        if size_bytes is not None and _lock(descriptor, fcntl.LOCK_EX):
            _make(own, descriptor, slots_of(size_bytes))
        ends = time.monotonic() + _LOCK_SECONDS
        while not _lock(descriptor, fcntl.LOCK_SH):
            if time.monotonic() > ends:
                raise UnusableFolder(f"{own} is being made by another process")
            time.sleep(0.05)
        return _opened(own, descriptor)
    except OSError as error:
        os.close(descriptor)
        raise UnusableFolder(f"{own} cannot be used: {error.strerror}") from error
    except BaseException:
        os.close(descriptor)
        raise


def slots_of(size_bytes: int) -> int:
    """Return how many slots a file of at most this size has."""
    most = max(0, size_bytes - _HEADER_BYTES) // (SLOT_BYTES + _ENTRY.itemsize)
    return most if size_of(most) <= size_bytes else max(0, most - 1)


def size_of(slot_count: int) -> int:
    """Return the size of a file of this many slots."""
    table_bytes = -(-slot_count * _ENTRY.itemsize // 4096) * 4096
    return _HEADER_BYTES + table_bytes + slot_count * SLOT_BYTES


def size_in(folder: str) -> int:
    """Return the size of the file in a folder; 0 if there is none."""
    try:
        return os.stat(os.path.join(folder, FOLDER, FILE)).st_size
    except OSError:
        return 0


def _make(own: str, folder: int, slot_count: int) -> None:
    """Make the file, unless there is one of this size.  Raises: OSError, UnusableFolder."""
    size_bytes, size_now = size_of(slot_count), 0
    with suppress(OSError):
        size_now = os.stat(FILE, dir_fd=folder).st_size
    if size_now == size_bytes:
        descriptor = _open_file(folder)
        try:
            if _slots_in(descriptor) == slot_count:
                return
        finally:
            os.close(descriptor)
    # Some file systems fill the disk before they refuse.
    free_bytes = shutil.disk_usage(folder).free + size_now
    if free_bytes < size_bytes:
        problem = f"{own} has no room for {size_bytes} bytes, only for {free_bytes}"
        raise UnusableFolder(problem)
    for name in os.listdir(folder):
        # The one there is before the other, and those of processes that were killed: never is more
        # on the disk.
        if name == FILE or name.startswith(f"{FILE}."):
            os.unlink(name, dir_fd=folder)
    made = f"{FILE}.{secrets.token_hex(8)}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(made, flags, 0o600, dir_fd=folder)
    try:
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError as error:
            problem = f"{own} has no room for {size_bytes} bytes: {error.strerror}"
            raise UnusableFolder(problem) from error
        # At random: a file that was truncated, and is long again, has not the same count.
        header = _MAGIC + struct.pack("<QQQ", slot_count, secrets.randbits(62), 0)
        _write_all(descriptor, memoryview(header), 0)
        os.fsync(descriptor)
        os.rename(made, FILE, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(made, dir_fd=folder)
        raise
    finally:
        os.close(descriptor)


def _opened(own: str, folder: int) -> Slab:
    descriptor = _open_file(folder)
    path = os.path.join(own, FILE)
    try:
        status = os.fstat(descriptor)
        _require_own(path, status, "delete it, or name another folder")
        slot_count = _slots_in(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size_of(slot_count):
            raise UnusableFolder(f"{path} is no file of a cache, or truncated; delete it")
        return Slab(folder, descriptor, slot_count)
    except BaseException:
        os.close(descriptor)
        raise


def _open_file(folder: int) -> int:
    # By the open folder: its path may lead elsewhere by now.
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(FILE, flags, dir_fd=folder)


def _slots_in(descriptor: int) -> int:
    """Return how many slots a file says that it has; 0 if it is none of ours."""
    header = os.pread(descriptor, len(_MAGIC) + 8, 0)
    if header[: len(_MAGIC)] != _MAGIC or len(header) != len(_MAGIC) + 8:
        return 0
    return int(struct.unpack("<Q", header[len(_MAGIC) :])[0])


def _require_own(path: str, status: os.stat_result, cure: str) -> None:
    """Raise UnusableFolder if another user may write there: others would choose the tokens."""
    if status.st_uid != os.geteuid():
        raise UnusableFolder(f"{path} belongs to user {status.st_uid}; {cure}")
    if status.st_mode & 0o022:
        raise UnusableFolder(f"{path} can be written to by others; chmod go-w, or {cure}")


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _release(folder: int, descriptor: int, address: int, size_bytes: int) -> None:
    syscalls.unmap(address, size_bytes)
    os.close(descriptor)
    os.close(folder)


def _write_all(descriptor: int, content: memoryview, at: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], at + done)


def _checks(entries: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """Return a hash of each entry, by the finalizer of splitmix64, word by word."""
    words = entries.view("<u8").reshape(-1, _WORDS)
    found = np.full(len(words), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for number in range(_CHECKED_WORDS):
        found ^= words[:, number]
        found ^= found >> np.uint64(30)
        found *= np.uint64(0xBF58476D1CE4E5B9)
        found ^= found >> np.uint64(27)
        found *= np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    # An entry of zeros has nothing, and is no hash of anything.
    return np.where(words[:, 3] == 0, words[:, 5], found)
