"""A file that is kept beside the tokens, or in a cache folder, and found again.

    content
    description         JSON: what the content was made from, and hashes of it
    its length          8 bytes
    its SHA-256         32 bytes
    footer              8 bytes, those of this kind of file

Numbers are little-endian. No byte of a footer is 0, so a file that was truncated anywhere does not
end like this: within a page it reads as zeros, and beyond it cannot be read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from ...runtime.exceptions import log_safe_name
from ..formats import Stored
from ..local.sidecar import sidecar_path
from ..store import StoredShard

_LOG = logging.getLogger("tokenfeed.server")

_END = struct.Struct("<Q32s8s")
_DESCRIPTION_BYTES_MAX = 1 << 16
_SHARD_BYTES_MAX = 2 << 10

Found = TypeVar("Found")


class Damaged(Exception):
    """A kept file that cannot be used. Its text follows "it"."""


def kept_paths(
    shards: Sequence[StoredShard], stored: Stored, suffix: str, cache_dir: str | None
) -> tuple[str, ...]:
    """Return where the file may be, in order: in cache_dir if that is given, beside the tokens."""
    beside = sidecar_path(shards, stored, suffix)
    if cache_dir is None:
        return (beside,)
    # The cache folder is shared by corpora of other folders, whose files may have the same names.
    paths = "\0".join(os.path.abspath(shard.path) for shard in shards)
    own = hashlib.sha256(paths.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return os.path.join(cache_dir, f".{own}{os.path.basename(beside)}"), beside


def closing(description: dict[str, Any], footer: bytes) -> bytes:
    """Return what follows the content.  footer: 8 bytes."""
    text = json.dumps(description).encode()
    return text + _END.pack(len(text), hashlib.sha256(text).digest(), footer)


def find_file(
    what: str, paths: Sequence[str], check: Callable[[str, int], Found | None]
) -> Found | None:
    """Return what `check` finds in the first of these files that can be used; None if none can.

    what: the content, such as "document borders", for the log of a file that exists and cannot be
    used.  check: is given a path and the descriptor of the open file, which is its to close unless
    it raises Damaged, OSError, or an error of a description that has another form.
    """
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            _warn(what, path, f"cannot be read: {error.strerror}")
            continue
        try:
            return check(path, descriptor)
        except Damaged as problem:
            _warn(what, path, str(problem))
        except OSError as error:
            _warn(what, path, f"cannot be read: {error.strerror}")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            _warn(what, path, "is damaged")
        os.close(descriptor)
    return None


def read_description(descriptor: int, footer: bytes, file_count: int) -> tuple[Any, int]:
    """Return the description of an open file, and how many bytes of content are before it.

    file_count: files of tokens, each of which may have some of it.
    Raises: Damaged, OSError, ValueError.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise Damaged("is not a regular file")
    end_byte = status.st_size - _END.size
    size_bytes, digest, found_footer = _END.unpack(read_range(descriptor, end_byte, status.st_size))
    if found_footer != footer:
        raise Damaged("is truncated")
    if size_bytes > min(end_byte, _DESCRIPTION_BYTES_MAX + file_count * _SHARD_BYTES_MAX):
        raise Damaged("is damaged")
    text = read_range(descriptor, end_byte - size_bytes, end_byte)
    if hashlib.sha256(text).digest() != digest:
        raise Damaged("is damaged")
    return json.loads(text), end_byte - size_bytes


def read_range(descriptor: int, first_byte: int, end_byte: int) -> bytes:
    """Return bytes of a file.  Raises: Damaged if it has fewer; OSError."""
    return b"".join(_read_parts(descriptor, first_byte, end_byte))


def _read_parts(descriptor: int, first_byte: int, end_byte: int) -> Iterator[bytes]:
    if first_byte < 0:
        raise Damaged("is truncated")
    while first_byte < end_byte:
        part = os.pread(descriptor, end_byte - first_byte, first_byte)
        if not part:
            raise Damaged("is truncated")
        first_byte += len(part)
        yield part


def _warn(what: str, path: str, problem: str) -> None:
    _LOG.warning("%s ignored file=%s: it %s", what, log_safe_name(path), problem)
