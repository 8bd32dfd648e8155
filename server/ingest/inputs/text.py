"""Plain text: a file is one document, split for the tokenizer where its tokens do not change."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator

from tokenfeed.errors import InvalidSource

from ..tokenize.splitting import CannotSplit
from ..units import Problem, SourceOffset, TextChunk, TextSource, Unit
from .base import ReaderContext

KIND = "text"

_BLOCK_BYTES = 1 << 20


def units(source: TextSource, index: int, offset: int, context: ReaderContext) -> Iterator[Unit]:
    """Yield the file, split into chunks.  offset: in bytes."""
    if offset == source.size_bytes and offset:
        return
    try:
        digest = _digest(source)
        problem = None if source.size_bytes else Problem("empty file", "0 bytes")
    except UnicodeDecodeError as error:
        problem = Problem("invalid UTF-8", f"byte {error.start}")
    except OSError as error:
        raise InvalidSource(source.path, f"cannot be read: {error.strerror}") from error
    if problem is not None:
        yield Unit.broken(source, index, 0, problem)
        return
    is_val = context.is_val(digest)
    context.on_source_hash(index, digest)
    for chunk in _chunks(source, offset, context):
        end = offset + len(chunk.encode())
        is_last = end >= source.size_bytes
        content = TextChunk(source.path, chunk, offset == 0, is_last, is_val)
        yield Unit(SourceOffset(index, offset), SourceOffset(index, end), content, end)
        offset = end


def _chunks(source: TextSource, offset: int, context: ReaderContext) -> Iterator[str]:
    try:
        yield from context.split_text(_blocks(source, offset))
    except CannotSplit as error:
        cure = "split it into documents, as jsonl or parquet"
        raise InvalidSource(source.path, f"{error} from byte {offset:,} on; {cure}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSource(
            source.path, "changed while it was ingested; ingest it again, into another folder"
        ) from error


def _digest(source: TextSource) -> bytes:
    """Return the SHA-256 of a file.  Raises: UnicodeDecodeError if it is not UTF-8."""
    digest = hashlib.sha256()
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    with source.open() as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            waiting = len(decoder.getstate()[0])
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                error.start += done - waiting
                raise
            done += len(block)
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            error.start += done - len(error.object)
            raise
    return digest.digest()


def _blocks(source: TextSource, offset: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with source.open() as file:
        file.seek(offset)
        while block := file.read(_BLOCK_BYTES):
            yield decoder.decode(block)
