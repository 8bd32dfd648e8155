"""Erases the redacted tokens of a dataset from its disk: each file that has any is replaced by a
new one. It can be interrupted at any moment, and the same command goes on.

    begin     computes what the content will be, and writes that to the list
    replace   for each file: a copy beside it, overwritten, synced, checked, renamed

From the moment at which the list says it, servers refuse rows that need these tokens. They serve
the files that they opened until they find the new ones (replacements.py). A dataset is opened
whichever of its files are replaced (overlay.py). A delimiter of documents is not overwritten, or
documents would begin elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np

from tokenfeed.errors import InvalidCorpus, InvalidRequest, WriteFailed

from ...runtime.exceptions import log_safe_name
from ...storage.choice import mount_points
from ...storage.files import OpenFile, open_file, sync_folder
from ...storage.formats import GIVEN, Layout, recognized
from ...storage.store import TokenStore
from ..content import Content, fingerprint_of, fingerprint_of_file, full_digest
from .erased_files import record
from .list_content import ErasedFile, Erasure, ListContent
from .list_writing import now, write_list
from .overlay import Overlay, files_left, overlay_of
from .ranges import TokenRanges

_LOG = logging.getLogger("tokenfeed.server")

_PROGRESS_SECONDS = 5.0
_COPY_BYTES = 1 << 20
_NAME_BYTES = 200
"""Of the name of a file, in that of its copy: a name has at most 255."""
_FICLONE = 0x40049409
"""The ioctl by which two files share their blocks: btrfs, XFS, bcachefs."""
_FS_IOC_GETFLAGS = 0x80086601
_IMMUTABLE_OR_APPEND = 0x10 | 0x20
"""The ioctl that reads the flags of a file which chattr sets, and two of them."""
_CURE = "and run the same command again"
_IN_USE = "another tokenfeed redact replaces it now"
_CURES = {
    errno.EAGAIN: "wait for it",
    errno.ENOSPC: "make room",
    errno.EPERM: "run it as root, or as the owner of the files",
    errno.EACCES: "run it as root, or as the owner of the files",
}


def begin(
    path: str, content: ListContent, store: TokenStore, digest: bytes, delimiters: Sequence[int]
) -> ListContent:
    """Write to a list that the tokens of its latest ranges are erased, unless it says so.

    path: of the list, which is locked.  store: with a list that fits.  digest: of the dataset
    before any erasure, b"" if it is unknown.  delimiters: tokens that are left, those of any
    erasure before.
    Returns: what the list has now.
    Raises: InvalidCorpus, InvalidRequest; WriteFailed. If one of the files that still have such
    tokens cannot be replaced, then nothing was written.
    """
    before = content.erasure
    listed = content.list_of(len(content.additions))
    if before is not None and before.list_hash == listed.hash:
        left = [one.file for one in files_left(store, content)]
        _require_replaceable(store, left, overlay_of(store, store.read, content))
        return content
    ranges, token_max = _to_erase(store, listed.ranges, delimiters)
    over = Overlay(store.read, ranges, content.fill, store.stored)
    original = digest or (before.original_digest if before is not None else b"")
    files = np.unique(ranges.files).tolist()
    _require_replaceable(store, [file for file in files if not over.is_erased(file)], over)
    erasure = Erasure(
        list_hash=listed.hash,
        ranges=ranges,
        fingerprint=fingerprint_of(store, Content(store, over.read).hashed()),
        digest=full_digest(store, over.read) if original else b"",
        original_digest=original,
        token_max=max(token_max, before.token_max if before else 0),
        delimiters=tuple(delimiters),
        files=tuple(ErasedFile(file, _fingerprint(store, over, file)) for file in files),
        when=now(),
    )
    written = replace(content, erasure=erasure)
    write_list(path, written, store.shards[0].path)
    return written


def replace_files(content: ListContent, store: TokenStore) -> None:
    """Replace the files that still have tokens which a list says are erased.

    content: what `begin` returned; the list and the records are locked.  store: of the files as
    they are.  Raises: InvalidCorpus, WriteFailed.
    """
    erasure = content.erasure
    assert erasure is not None
    over, logged_at = overlay_of(store, store.read, content), time.monotonic()
    left = files_left(store, content)
    record(store, erasure, content.fill)
    for erased in erasure.files:
        with _write_errors(path := _path_of(store, erased.file)):
            _remove_unused(_copy_of(path))
    for place, erased in enumerate(left):
        _replace(store, erased, over, erasure.ranges.of_file(erased.file))
        if time.monotonic() - logged_at >= _PROGRESS_SECONDS:
            logged_at = time.monotonic()
            _LOG.info("erasing files=%d of=%d", place + 1, len(left))


def keep_digest(content: ListContent, store: TokenStore) -> None:
    """Store the digest of files that were all replaced, if it is known; logs why if it cannot."""
    if content.erasure is None or content.erasure.digest in (b"", store.kept_digest()):
        return
    try:
        store.keep_digest(content.erasure.digest)
    except OSError as error:
        name = log_safe_name(store.digest_path)
        _LOG.warning("digest not kept file=%s: %s", name, error.strerror)


def require_same_delimiters(content: ListContent, delimiters: Sequence[int]) -> None:
    """Raise InvalidRequest if tokens were erased before and other delimiters were left, or the list
    was made with a delimiter that would be erased.
    """
    if not set(content.delimiters) <= set(delimiters):
        named = " and ".join(map(str, content.delimiters))
        problem = f"the list was made with {named} between documents"
        raise InvalidRequest("--erase", f"{problem}; pass the same, which is not erased")
    before = content.erasure
    if before is not None and before.delimiters != tuple(delimiters):
        named = " and ".join(map(str, before.delimiters)) or "no delimiter"
        problem = f"tokens were erased before with {named} between documents"
        raise InvalidRequest("--erase", f"{problem}; pass the same ones")


def _to_erase(
    store: TokenStore, listed: TokenRanges, delimiters: Sequence[int]
) -> tuple[TokenRanges, int]:
    """Return ranges without delimiters, and the greatest token in them."""
    token_bytes = store.stored.itemsize
    token_max = 0
    left = [np.empty((3, 0), dtype=np.int64)]
    for file, first_byte, end_byte in listed.blocks(token_bytes):
        tokens = np.frombuffer(store.read(file, first_byte, end_byte - first_byte), store.stored)
        is_erased = listed.contains(file, first_byte // token_bytes, tokens.size)
        token_max = max(token_max, int(tokens[is_erased].max()))
        is_erased &= ~np.isin(tokens, delimiters)
        changes = np.diff(is_erased, prepend=False, append=False)
        bounds = np.flatnonzero(changes) + first_byte // token_bytes
        left.append(np.stack([np.full(bounds.size // 2, file), bounds[::2], bounds[1::2]]))
    return TokenRanges.merged(*np.concatenate(left, axis=1)), token_max


def _fingerprint(store: TokenStore, over: Overlay, file: int) -> bytes:
    """Return the fingerprint of a file without its erased tokens."""
    layout = store.shards[file].layout
    return fingerprint_of_file(layout, lambda first, size: over.read(file, first, size))


def _require_replaceable(store: TokenStore, files: Sequence[int], over: Overlay) -> None:
    """Raise an error if one of some files cannot be replaced: before the list says that it is.

    over: their content without the erased tokens.  Raises: InvalidCorpus, InvalidRequest,
    WriteFailed.
    """
    paths = [_path_of(store, file) for file in range(len(store.shards))]
    counts, mounted = Counter(paths), mount_points()
    for file in files:
        if counts[path := paths[file]] > 1:
            problem = "is several files of this dataset, by links, of which each would change"
            raise InvalidCorpus(store.shards[file].path, f"{problem}; make copies, {_CURE}")
        with open_file(path) as original:
            _require_one_name(original)
            _require_same_format(original, store.shards[file].layout, file, over)
            if path in mounted:
                problem = "is mounted by itself, so nothing can take its place"
                raise WriteFailed(path, f"{problem}; mount its folder instead, {_CURE}")
            if _is_immutable(original):
                problem = "cannot be replaced: it is immutable, or can only be appended to"
                raise WriteFailed(path, f"{problem}; change that (chattr -i -a), {_CURE}")
            with _new_copy(original):
                pass  # there is room for it, and its folder can be written


def _require_same_format(file: OpenFile, layout: Layout, number: int, over: Overlay) -> None:
    """Raise InvalidRequest if a file would be taken for something else without some tokens."""
    if layout.why == GIVEN:
        return
    first_byte = min(layout.first_byte, len(file.head))
    after = over.read(number, 0, min(layout.content_bytes, len(file.head) - first_byte))
    if recognized(replace(file, head=file.head[:first_byte] + after)) is not recognized(file):
        problem = f"{file.path} would look like another format with this token at its beginning"
        raise InvalidRequest("--fill", f"{problem}; pass another token, and --list FILE")


def _is_immutable(file: OpenFile) -> bool:
    """Return whether a file cannot be replaced, even by root; False where that is unknown."""
    try:
        flags = fcntl.ioctl(file.descriptor, _FS_IOC_GETFLAGS, bytes(8))
    except OSError:
        return False
    return bool(int.from_bytes(flags[:4], sys.byteorder) & _IMMUTABLE_OR_APPEND)


def _path_of(store: TokenStore, file: int) -> str:
    """Return the path of a file itself, where a dataset has a link."""
    return os.path.realpath(store.shards[file].path)


def _require_one_name(file: OpenFile) -> None:
    """Raise InvalidCorpus if a file has other names, under which its tokens would stay."""
    if (count := file.status.st_nlink) > 1:
        problem = f"has {count} names (hard links), of which the others would keep its tokens"
        raise InvalidCorpus(file.path, f"{problem}; remove them, {_CURE}")


def _replace(store: TokenStore, erased: ErasedFile, over: Overlay, ranges: TokenRanges) -> None:
    """Replace a file by one without its erased tokens.  Raises: InvalidCorpus, WriteFailed."""
    path = _path_of(store, erased.file)
    layout, facts = store.shards[erased.file].layout, store.facts[erased.file]
    with open_file(path) as original, _new_copy(original) as descriptor:
        _require_one_name(original)
        if not os.fstat(descriptor).st_size:
            with open(path, "rb") as source, open(descriptor, "wb", closefd=False) as copy:
                shutil.copyfileobj(source, copy, _COPY_BYTES)
        for file, first, end in ranges.blocks(layout.dtype.itemsize):
            _write(descriptor, layout.first_byte + first, over.read(file, first, end - first))
        os.fsync(descriptor)

        def read(first: int, size: int) -> bytes:
            return os.pread(descriptor, size, layout.first_byte + first)

        status = os.stat(path)
        is_same = (status.st_size, status.st_mtime_ns) == (facts.size_bytes, facts.mtime_ns)
        is_same &= os.path.samestat(status, original.status)
        if not is_same or fingerprint_of_file(layout, read) != erased.fingerprint:
            problem = "is not the file whose tokens are erased, or was modified"
            raise InvalidCorpus(path, f"{problem}; restore it, or the list")
        # Last: a copy that can only be read could not be removed by the next command.
        shutil.copystat(path, _copy_of(path))
        os.utime(descriptor)
        os.replace(_copy_of(path), path)
        sync_folder(os.path.dirname(path))


def _copy_of(path: str) -> str:
    """Return the path of the copy of a file."""
    folder, name = os.path.split(path)
    start = os.fsdecode(os.fsencode(name)[:_NAME_BYTES])
    return os.path.join(folder, f".{start}.tokenfeed-erasing")


@contextmanager
def _new_copy(original: OpenFile) -> Iterator[int]:
    """Lend the descriptor of a new file beside a file, of the same owner, if there is room for a
    copy: with its content where the file system can share that, else empty. It is removed at the
    end, unless it was renamed.

    Raises: WriteFailed.
    """
    path, status = _copy_of(original.path), original.status
    with _write_errors(original.path):
        _remove_unused(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _has_name(path, descriptor):
                raise BlockingIOError(errno.EAGAIN, _IN_USE)
            try:
                if not _cloned(original.descriptor, descriptor):
                    _require_room(os.path.dirname(path), original.size_bytes)
                own = os.fstat(descriptor)
                if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
                    os.fchown(descriptor, status.st_uid, status.st_gid)
                yield descriptor
            finally:
                if _has_name(path, descriptor):
                    os.unlink(path)
        finally:
            os.close(descriptor)


def _has_name(path: str, descriptor: int) -> bool:
    """Return whether an open file is the one that has a name."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove_unused(copy: str) -> None:
    """Remove the copy that a killed process has left.  Raises: OSError, also if a process uses it:
    datasets may share files.
    """
    with suppress(FileNotFoundError):
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            # To be written: on NFS only such a file can be locked.
            descriptor = os.open(copy, os.O_RDWR | flags)
        except PermissionError:
            descriptor = os.open(copy, os.O_RDONLY | flags)  # it has its final mode already
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _has_name(copy, descriptor):
                os.unlink(copy)
        except BlockingIOError:
            raise BlockingIOError(errno.EAGAIN, _IN_USE) from None
        finally:
            os.close(descriptor)


def _cloned(original: int, copy: int) -> bool:
    """Return whether a file shares its blocks with another one now."""
    try:
        fcntl.ioctl(copy, _FICLONE, original)
    except OSError:
        return False
    return True


def _require_room(folder: str, size_bytes: int) -> None:
    """Raise OSError unless the disk of a folder has room for a file."""
    room = os.statvfs(folder)
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < size_bytes:
        problem = f"a copy of {size_bytes:,} bytes does not fit into {free_bytes:,} free ones"
        raise OSError(errno.ENOSPC, problem)


@contextmanager
def _write_errors(path: str) -> Iterator[None]:
    """Turn an OSError into a WriteFailed that says what to do."""
    try:
        yield
    except OSError as error:
        cure = _CURES.get(error.errno or 0, "mend that")
        problem = f"cannot be replaced: {error.strerror}; {cure}, {_CURE}"
        raise WriteFailed(path, problem) from error


def _write(descriptor: int, place: int, content: bytes) -> None:
    """Write all of some bytes.  Raises: OSError."""
    left = memoryview(content)
    while left:
        count = os.pwrite(descriptor, left, place)
        place, left = place + count, left[count:]
