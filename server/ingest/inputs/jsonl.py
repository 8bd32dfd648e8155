"""Lines of JSON, plain or compressed by gzip, zstd, xz or bzip2: one document per line."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO

import zstandard

from ..tokenize.recipe import Recipe
from ..units import (
    Lines,
    OnSourceHash,
    Problem,
    SourceOffset,
    TextSource,
    Unit,
    require_of_content,
)

KIND = "jsonl"

_UNIT_BYTES = 1 << 20
"""Half a second of work for one core. A quarter of it made no difference (docs/decisions/0012)."""
_BLOCK_BYTES = 1 << 16
"""Read at once: this much may be lost before a damaged part."""
_LINE_BYTES_MAX = 64 << 20
_WINDOW_BYTES_MAX = 1 << 31
"""Of zstd, as `zstd --long=31` writes: what a reader has to keep in memory."""
_MAGIC_BYTES = 10
"""Of the longest magic: that of bzip2, with the block behind it."""
_UNPACKERS: dict[str | None, type[lzma.LZMADecompressor | bz2.BZ2Decompressor]] = {
    "xz": lzma.LZMADecompressor,
    "bzip2": bz2.BZ2Decompressor,
}
"""Of one stream."""
_PACKED_BYTES = 1 << 10
"""Unpacked at once: at most 32 MiB of zeros."""


def units(
    source: TextSource, index: int, offset: int, recipe: Recipe, _: OnSourceHash
) -> Iterator[Unit]:
    """Yield whole lines in units of about _UNIT_BYTES.  offset: in uncompressed bytes."""
    if not source.size_bytes:
        yield Unit.broken(source, index, offset, Problem("empty file", "0 bytes"))
        return
    waiting, end, dropped_bytes = bytearray(), 0, 0  # end: of the last whole line in waiting
    begun = offset
    try:
        with source.open() as file:
            for block in _blocks(file, offset):
                if found := block.rfind(b"\n") + 1:
                    end = len(waiting) + found
                waiting += block
                if dropped_bytes and end:
                    first_end = waiting.index(b"\n") + 1
                    yield _too_long(index, offset, dropped_bytes + first_end, file.tell())
                    offset += dropped_bytes + first_end
                    del waiting[:first_end]
                    end, dropped_bytes = end - first_end, 0
                if end and len(waiting) >= _UNIT_BYTES:
                    yield _unit(index, offset, bytes(waiting[:end]), file.tell())
                    del waiting[:end]
                    offset, end = offset + end, 0
                elif dropped_bytes or len(waiting) > _LINE_BYTES_MAX:
                    dropped_bytes += len(waiting)
                    waiting.clear()
    except OSError as error:
        require_of_content(error, source.path)
        if end and not dropped_bytes:
            yield _unit(index, offset, bytes(waiting[:end]), source.size_bytes)
            offset += end
        problem = Problem(f"unreadable: {error}", f"all from byte {offset:,} on")
        yield Unit.broken(source, index, offset, problem)
        return
    if dropped_bytes:
        yield _too_long(index, offset, dropped_bytes + len(waiting), source.size_bytes)
    elif waiting:
        yield _unit(index, offset, bytes(waiting), source.size_bytes)
    elif not begun and not offset:
        yield Unit.broken(source, index, offset, Problem("empty file", "0 bytes"))


def codec_of(head: bytes) -> str | None:
    """Return how a file is compressed, by its first bytes; None if it is not compressed."""
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    if head.startswith(b"\xfd7zXZ"):
        return "xz"
    if re.match(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", head):
        return "bzip2"
    # A frame of zstd, or a skippable frame.
    return "zstd" if head.startswith(b"\x28\xb5\x2f\xfd") or head[1:4] == b"\x2a\x4d\x18" else None


def _blocks(file: BinaryIO, offset: int) -> Iterator[bytes]:
    """Yield a file, uncompressed, from an offset on. The blocks do not depend on the offset, so a
    resumed run reads exactly as much of a damaged file.
    """
    codec = codec_of(file.read(_MAGIC_BYTES))
    first = 0 if codec else offset // _BLOCK_BYTES * _BLOCK_BYTES
    file.seek(first)
    if codec in _UNPACKERS:
        blocks = _of_streams(file, _UNPACKERS[codec])
    else:
        read: Callable[[int], bytes] = file.read
        if codec is not None:  # gzip ignores zeros behind the content, as gunzip does
            read = _Zstd(file).read if codec == "zstd" else partial(_unpacked, gzip.open(file))
        blocks = iter(partial(read, _BLOCK_BYTES), b"")
    for block in blocks:
        if first + len(block) > offset:
            yield block[max(0, offset - first) :]
        first += len(block)


def _unpacked(file: gzip.GzipFile, size_bytes: int) -> bytes:
    """Return the next block; if the data after it is damaged, nothing before that is lost.  Raises:
    OSError.
    """
    try:
        return file.read1(size_bytes)
    except (EOFError, zlib.error, ValueError) as error:
        raise OSError(str(error)) from error


def _of_streams(
    file: BinaryIO, new: type[lzma.LZMADecompressor | bz2.BZ2Decompressor]
) -> Iterator[bytes]:
    """Yield the blocks of all streams of xz or bzip2; zeros may follow each. For `lzma.open` and
    `bz2.open` a damaged stream behind another one is the end of the file.

    new: unpacks one stream.  Raises: OSError.
    """
    packed = file.read(_BLOCK_BYTES)
    while packed:
        unpacker = new()
        while not unpacker.eof:
            if unpacker.needs_input and not packed and not (packed := file.read(_BLOCK_BYTES)):
                raise OSError("Compressed file ended before the end of its last stream")
            try:
                block = unpacker.decompress(packed, _BLOCK_BYTES)
            except (lzma.LZMAError, ValueError) as error:
                raise OSError(str(error)) from error
            packed = b""
            if block:
                yield block
        packed = unpacker.unused_data.lstrip(b"\0")
        while not packed and (following := file.read(_BLOCK_BYTES)):
            packed = following.lstrip(b"\0")


class _Zstd:
    """Reads frames of zstd, with any window, and notices a file that ends within one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
        self._frame = self._unpacker.decompressobj()
        self._is_within = False
        self._packed = b""
        self._waiting = bytearray()

    def read(self, size_bytes: int) -> bytes:
        """Return the next block, b"" at the end.  Raises: OSError."""
        while len(self._waiting) < size_bytes:
            self._packed = self._packed or self._file.read(_PACKED_BYTES)
            if not self._packed:
                if self._is_within:
                    raise OSError("Compressed file ended before the end of its last frame")
                break
            try:
                self._waiting += self._frame.decompress(self._packed)
            except zstandard.ZstdError as error:
                raise OSError(str(error)) from error
            self._is_within, self._packed = not self._frame.eof, self._frame.unused_data
            if self._frame.eof:
                self._frame = self._unpacker.decompressobj()
        block = bytes(self._waiting[:size_bytes])
        del self._waiting[:size_bytes]
        return block


def _too_long(index: int, offset: int, size_bytes: int, done_bytes: int) -> Unit:
    problem = Problem(f"line above {_LINE_BYTES_MAX >> 20} MiB", f"byte {offset:,}")
    end = SourceOffset(index, offset + size_bytes)
    return Unit(SourceOffset(index, offset), end, None, done_bytes, (problem,))


def _unit(index: int, offset: int, content: bytes, done_bytes: int) -> Unit:
    end = SourceOffset(index, offset + len(content))
    return Unit(SourceOffset(index, offset), end, Lines(content, offset), done_bytes)
