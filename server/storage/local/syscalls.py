"""The system calls that Python does not offer, by ctypes, which releases the GIL during a call.

Linux only. This module makes no decisions.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from collections.abc import Callable
from ctypes import c_int, c_long, c_size_t, c_ssize_t, c_ulong, c_void_p
from typing import Final

import numpy as np
import numpy.typing as npt

PAGE_BYTES: Final = mmap.PAGESIZE
IOVECS_MAX: Final = 1024
"""Ranges per system call: the kernel's UIO_MAXIOV."""

_PROT_NONE: Final = 0
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_MADV_RANDOM: Final = 1
_MADV_WILLNEED: Final = 3
_MADV_POPULATE_READ: Final = 22
_SYS_PROCESS_MADVISE: Final = 440  # the same on every architecture

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = c_void_p
_libc.mmap.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_long)
_libc.munmap.argtypes = (c_void_p, c_size_t)
_libc.madvise.argtypes = (c_void_p, c_size_t, c_int)
_libc.mincore.argtypes = (c_void_p, c_size_t, c_void_p)
_libc.pwritev.restype = c_ssize_t
_libc.pwritev.argtypes = (c_int, c_void_p, c_int, c_long)
_libc.process_vm_writev.restype = c_ssize_t
_libc.process_vm_writev.argtypes = (c_int, c_void_p, c_ulong, c_void_p, c_ulong, c_ulong)
_libc.syscall.restype = c_long
_libc.syscall.argtypes = (c_long, c_long, c_void_p, c_long, c_long, c_long)

Ranges = npt.NDArray[np.uint64]
"""uint64[n, 2], C-contiguous: address and length in bytes of n ranges, the kernel's iovec."""


def reserve(size_bytes: int) -> int:
    """Reserve a range of addresses, and return the first one.  Raises: OSError."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return _address(_libc.mmap(None, size_bytes, _PROT_NONE, flags, -1, 0))


def map_file(address: int, descriptor: int, size_bytes: int) -> None:
    """Map a file, read-only and shared, over a part of a reserved range.  Raises: OSError."""
    _address(
        _libc.mmap(address, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, descriptor, 0)
    )


def unmap(address: int, size_bytes: int) -> None:
    """Release a range."""
    _libc.munmap(address, size_bytes)


def expect_random_access(address: int, size_bytes: int) -> None:
    """Turn off the kernel's read-ahead in a range: it slows down random reads of small windows."""
    _libc.madvise(address, size_bytes, _MADV_RANDOM)


def copy_to_memory(ranges: Ranges, address: int, size_bytes: int) -> int | None:
    """Copy mapped ranges, one after another, to memory of this process.

    size_bytes: of all ranges together.
    Returns: the index of the first range that could not be read, None if all could. Its file was
    truncated, or its disk fails; a read in user space would end the process with SIGBUS.  Raises:
    OSError if the kernel does not support or permit this.
    """
    process = os.getpid()
    target = (c_size_t * 2)()

    def copy(part: Ranges, copied: int) -> int:
        target[0], target[1] = address + copied, size_bytes - copied
        return _libc.process_vm_writev(process, part.ctypes.data, len(part), target, 1, 0)  # type: ignore[no-any-return]

    return _copy(ranges, size_bytes, copy)


def copy_to_file(ranges: Ranges, descriptor: int, size_bytes: int) -> int | None:
    """Like `copy_to_memory`, but to the beginning of the file behind descriptor.

    Raises: OSError if that file cannot be written.
    """

    def copy(part: Ranges, copied: int) -> int:
        return _libc.pwritev(descriptor, part.ctypes.data, len(part), copied)  # type: ignore[no-any-return]

    return _copy(ranges, size_bytes, copy)


def _copy(ranges: Ranges, size_bytes: int, copy: Callable[[Ranges, int], int]) -> int | None:
    """Copy ranges of size_bytes in all, at most IOVECS_MAX at a time.

    copy: is given ranges, and how many bytes were copied before; returns how many it has copied.
    """
    copied, count = 0, len(ranges)
    while copied < size_bytes:
        part = ranges[:IOVECS_MAX]
        done = copy(part, copied)
        if done <= 0:
            if done < 0 and (code := ctypes.get_errno()) != errno.EFAULT:
                raise OSError(code, os.strerror(code))
            return count - len(ranges)
        copied += done
        if copied < size_bytes:
            ranges = _after(ranges, part, done)
    return None


@functools.lru_cache(maxsize=1)
def _descriptor_of(process: int) -> int:
    return os.pidfd_open(process)


def read_ahead(ranges: Ranges) -> bool:
    """Make the kernel start to read page-aligned ranges of this process' maps; does not wait.

    Returns: False if the kernel does not support or permit this.
    """
    try:
        process = _descriptor_of(os.getpid())  # a fork is another process
    except (OSError, AttributeError):
        return False
    for first in range(0, len(ranges), IOVECS_MAX):
        part = ranges[first : first + IOVECS_MAX]
        ranges_at, count = part.ctypes.data, len(part)
        if _libc.syscall(_SYS_PROCESS_MADVISE, process, ranges_at, count, _MADV_WILLNEED, 0) < 0:
            return ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)
    return True


def read_ahead_singly(ranges: Ranges) -> None:
    """Like `read_ahead`, with a system call for each range: twice the cost, on every kernel."""
    for address, size_bytes in ranges.tolist():
        _libc.madvise(address, size_bytes, _MADV_WILLNEED)


def populate(address: int, size_bytes: int) -> bool:
    """Make the kernel read a page-aligned range of maps and enter it into the page table; waits.

    Returns: False if this kernel cannot (before 5.14).  Raises: OSError if a part of the range
    cannot be read: EFAULT if a file was truncated or its disk fails, ENOMEM if nothing is mapped.
    """
    if _libc.madvise(address, size_bytes, _MADV_POPULATE_READ) == 0:
        return True
    if (code := ctypes.get_errno()) == errno.EINVAL:
        return False
    raise OSError(code, os.strerror(code))


def residency(address: int, size_bytes: int) -> npt.NDArray[np.bool_]:
    """Return for each page of a page-aligned range whether it is in memory, bool[pages]; always
    True for files that this process may not write, and False where nothing is mapped.
    """
    flags = np.zeros(-(-size_bytes // PAGE_BYTES), dtype=np.uint8)
    if _libc.mincore(address, size_bytes, flags.ctypes.data) != 0:
        flags[:] = 0
    return (flags & 1).astype(bool)


def _after(ranges: Ranges, part: Ranges, done_bytes: int) -> Ranges:
    """Return the rest of ranges after done_bytes bytes of part, their first part, were copied."""
    ends = np.cumsum(part[:, 1])
    if done_bytes == int(ends[-1]):
        return ranges[len(part) :]
    # A partial copy reports its error only when the rest is requested.
    index = int(np.searchsorted(ends, done_bytes, side="right"))
    left = ranges[index:].copy()
    left[0] = (
        int(part[index].sum()) - (int(ends[index]) - done_bytes),
        int(ends[index]) - done_bytes,
    )
    return left


def _address(result: int | None) -> int:
    if result is None or result == c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
