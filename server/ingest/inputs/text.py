"""Plain text: a file is one document, split for the tokenizer where its tokens do not change."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator

from tokenfeed.errors import InvalidSource

from ..tokenize.recipe import Recipe
from ..tokenize.splitting import CannotSplit, split_text
from ..tokenize.tokenizer import load_tokenizer
from ..units import OnSourceHash, Problem, SourceOffset, TextChunk, TextSource, Unit

KIND = "text"

_BLOCK_BYTES = 1 << 20


def units(
    source: TextSource, index: int, offset: int, recipe: Recipe, on_source_hash: OnSourceHash
) -> Iterator[Unit]:
    """Yield the file, split into chunks, without a byte-order mark.  offset: in bytes."""
    if offset == source.size_bytes and offset:
        return
    try:
        digest = hashlib.sha256()
        blocks = _blocks(source, 0, digest)
        mark_bytes = len(codecs.BOM_UTF8) if next(blocks).startswith("\ufeff") else 0
        for _ in blocks:
            pass
        is_empty = source.size_bytes == mark_bytes
        problem = Problem("empty file", f"{mark_bytes} bytes") if is_empty else None
    except UnicodeDecodeError as error:
        problem = Problem("invalid UTF-8", f"byte {error.start}")
    except OSError as error:
        raise InvalidSource(source.path, f"cannot be read: {error.strerror}") from error
    if problem is not None:
        yield Unit.broken(source, index, 0, problem)
        return
    on_source_hash(index, digest.hexdigest())
    own = digest  # of the text, which is in one split with and without a byte-order mark
    if mark_bytes:
        own = hashlib.sha256()
        for _ in _blocks(source, mark_bytes, own):
            pass
    is_val = recipe.is_val(own.digest())
    end = max(offset, mark_bytes)
    for chunk in _chunks(source, end, recipe):
        end += len(chunk.encode())
        is_last = end >= source.size_bytes
        content = TextChunk(source.path, chunk, offset == 0, is_last, is_val)
        yield Unit(SourceOffset(index, offset), SourceOffset(index, end), content, end)
        offset = end


def _chunks(source: TextSource, offset: int, recipe: Recipe) -> Iterator[str]:
    encode_each = load_tokenizer(recipe.tokenizer_file).encode_each
    try:
        yield from split_text(_blocks(source, offset), encode_each)
    except CannotSplit as error:
        cure = "split it into documents, as jsonl or parquet"
        raise InvalidSource(source.path, f"{error} from byte {offset:,} on; {cure}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSource(
            source.path, "changed while it was ingested; ingest it again, into another folder"
        ) from error


def _blocks(source: TextSource, offset: int, digest: hashlib._Hash | None = None) -> Iterator[str]:
    """Yield the text from an offset on.  digest: gets its bytes, if there is one.

    Raises: OSError; UnicodeDecodeError, whose start is the place in the file, if it is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    block = b"-"
    with source.open() as file:
        file.seek(offset)
        while block:
            block = file.read(_BLOCK_BYTES)
            if digest is not None:
                digest.update(block)
            waiting = len(decoder.getstate()[0])
            try:
                yield decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                error.start += offset - waiting
                raise
            offset += len(block)
