"""A unit of text -> its tokens. Pure: the result is the same in every process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidSource

from ..units import Lines, Problem, Rows, TextChunk, Unit
from . import splitting
from .tokenizer import Tokenizer, TokenizerFile, load_tokenizer, token_dtype

_BATCH_CHARS = 1 << 20
"""Encoded at once: the tokenizer needs about a hundred times the size of each token."""

Document = tuple[str, ...]
"""One text, or prompt and response."""
Located = tuple[Document, str]
"""A document, and where it is in its source."""
TokenIds = npt.NDArray[np.unsignedinteger]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How documents become tokens.

    columns: of the text: one, or prompt and response.  prepend_id, append_id: tokens before and
    after each document.  val_fraction: share of documents for validation, in [0, 1).
    """

    tokenizer_file: TokenizerFile
    columns: tuple[str, ...]
    prepend_id: int | None
    append_id: int | None
    val_fraction: float

    @property
    def has_mask(self) -> bool:
        """Whether there is a loss mask."""
        return len(self.columns) == 2

    def is_val(self, sha256: bytes) -> bool:
        """Return whether a document belongs to the validation split, by its hash: it stays in its
        split whatever else is ingested.
        """
        return int.from_bytes(sha256[:8], "big") < int(self.val_fraction * 2.0**64)


@dataclass(frozen=True, slots=True)
class EncodedUnit:
    """The documents of a unit.

    tokens: uint16[n] or uint32[n], document after document.  lengths: int64[d], tokens of each
    document.  is_val: bool[d].  mask: bool[n], which tokens are training targets; None for all.
    begins, ends: whether the first document begins here, and the last one ends here.
    """

    tokens: TokenIds
    lengths: npt.NDArray[np.int64]
    is_val: npt.NDArray[np.bool_]
    mask: npt.NDArray[np.bool_] | None
    problems: tuple[Problem, ...]
    begins: bool = True
    ends: bool = True


def encode_unit(unit: Unit, recipe: Recipe) -> EncodedUnit:
    """Return the tokens of a unit.  Raises: InvalidSource if a text chunk cannot be encoded."""
    tokenizer = load_tokenizer(recipe.tokenizer_file)
    if isinstance(unit.content, TextChunk):
        return _encoded_chunk(unit, unit.content, recipe, tokenizer)
    problems = list(unit.problems)
    documents = _documents(unit.content, recipe.columns, problems)
    parts = [
        part
        for batch in _batches(documents, _chars)
        for part in _encoded(batch, recipe, tokenizer, problems)
    ]
    no_bools = np.empty(0, np.bool_)
    nothing = EncodedUnit(
        np.empty(0, token_dtype(tokenizer)),
        np.empty(0, np.int64),
        no_bools,
        no_bools if recipe.has_mask else None,
        tuple(problems),
    )
    return concat([nothing, *parts])


def concat(parts: Sequence[EncodedUnit]) -> EncodedUnit:
    """Join parts of whole documents into one, with the problems of the first part."""
    masks = [part.mask for part in parts if part.mask is not None]
    return replace(
        parts[0],
        tokens=np.concatenate([part.tokens for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        is_val=np.concatenate([part.is_val for part in parts]),
        mask=np.concatenate(masks) if masks else None,
    )


def _encoded_chunk(
    unit: Unit, chunk: TextChunk, recipe: Recipe, tokenizer: Tokenizer
) -> EncodedUnit:
    before, after = _around(recipe, tokenizer)
    try:
        arrays = [*_encode([chunk.text], tokenizer)]
    except ValueError as error:
        raise InvalidSource(chunk.path, str(error)) from error
    if chunk.is_first:
        arrays.insert(0, before)
    if chunk.is_last:
        arrays.append(after)
    tokens = np.concatenate(arrays)
    return EncodedUnit(
        tokens,
        np.array([tokens.size]),
        np.array([chunk.is_val]),
        None,
        unit.problems,
        begins=chunk.is_first,
        ends=chunk.is_last,
    )


def _encoded(
    documents: Sequence[Located], recipe: Recipe, tokenizer: Tokenizer, problems: list[Problem]
) -> Iterator[EncodedUnit]:
    """Yield the tokens of documents. If some cannot be encoded, all are encoded one by one, and
    those that fail are added to problems.
    """
    try:
        part, empty = _encoded_at_once([texts for texts, _ in documents], recipe, tokenizer)
    except ValueError as error:
        if len(documents) == 1:
            problems.append(Problem(str(error), documents[0][1]))
            return
        for document in documents:
            yield from _encoded([document], recipe, tokenizer, problems)
        return
    problems += [Problem("no tokens", documents[number][1]) for number in empty]
    yield part


def _encoded_at_once(
    documents: Sequence[Document], recipe: Recipe, tokenizer: Tokenizer
) -> tuple[EncodedUnit, list[int]]:
    """Return the tokens of documents, and the numbers of those without tokens, which are left out.
    Raises: ValueError.
    """
    pieces = [list(_cut(text, tokenizer)) for document in documents for text in document]
    ids = _encode([piece for text in pieces for piece in text], tokenizer)
    texts = iter([[next(ids) for _ in text] for text in pieces])
    before, after = _around(recipe, tokenizer)
    arrays: list[TokenIds] = []
    sizes: list[list[int]] = []
    kept, empty = [], []
    for number, document in enumerate(documents):
        columns = [next(texts) for _ in document]
        counts = [sum(ids.size for ids in column) for column in columns]
        if not any(counts):
            empty.append(number)
            continue
        kept.append(document)
        arrays += [before, *chain.from_iterable(columns), after]
        sizes.append([before.size, *counts, after.size])
    table = np.array(sizes, dtype=np.int64).reshape(len(kept), -1)
    mask = None
    if recipe.has_mask:
        learned = np.array([False, False, True, True])  # before, prompt, response, after
        mask = np.repeat(np.tile(learned, len(kept)), table.ravel())
    part = EncodedUnit(
        np.concatenate([before[:0], *arrays]),
        table.sum(axis=1),
        np.array([recipe.is_val(_sha256(document)) for document in kept], dtype=np.bool_),
        mask,
        (),
    )
    return part, empty


def _around(recipe: Recipe, tokenizer: Tokenizer) -> tuple[TokenIds, TokenIds]:
    """Return the tokens before and after each document."""
    ids = (recipe.prepend_id, recipe.append_id)
    dtype = token_dtype(tokenizer)
    before, after = (np.array([] if token is None else [token], dtype) for token in ids)
    return before, after


def _encode(pieces: Sequence[str], tokenizer: Tokenizer) -> Iterator[TokenIds]:
    """Yield the tokens of each piece; encodes them in batches."""
    dtype = token_dtype(tokenizer)
    for batch in _batches(pieces, len):
        for ids in tokenizer.encode(batch):
            yield np.fromiter(ids, dtype, len(ids))


def _cut(text: str, tokenizer: Tokenizer) -> Iterator[str]:
    if len(text) <= 2 * splitting.PIECE_CHARS:
        return iter((text,))
    return splitting.split_text(iter((text,)), tokenizer.encode)


def _sha256(document: Document) -> bytes:
    """Return the hash of a document: of its UTF-8, or of prompt and response, each preceded by its
    length in bytes (uint64, big-endian).
    """
    if len(document) == 1:
        return hashlib.sha256(document[0].encode()).digest()
    texts = [text.encode() for text in document]
    return hashlib.sha256(b"".join(len(t).to_bytes(8, "big") + t for t in texts)).digest()


def _batches(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield batches of items with _BATCH_CHARS in total, or a little more."""
    batch: list[Item] = []
    chars = 0
    for item in items:
        batch.append(item)
        chars += size(item)
        if chars >= _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _chars(document: Located) -> int:
    return sum(map(len, document[0]))


def _documents(
    content: Rows | Lines | None, columns: tuple[str, ...], problems: list[Problem]
) -> Iterator[Located]:
    """Yield the valid documents of a unit; the others are added to problems."""
    if content is None:
        return
    read = _of_rows(content, columns) if isinstance(content, Rows) else _of_lines(content, columns)
    for document, where in read:
        if isinstance(document, str):
            problems.append(Problem(document, where))
        elif not any(document):
            problems.append(Problem("empty document", where))
        else:
            yield document, where


def _of_rows(rows: Rows, columns: tuple[str, ...]) -> Iterator[tuple[Document | str, str]]:
    """Yield documents, or the problem of one, and where they are."""
    for number, values in enumerate(rows.values, rows.first_row):
        where = f"row {number:,}"
        try:
            texts = tuple(value.decode() for value in values if value is not None)
        except UnicodeDecodeError:
            yield "invalid UTF-8", where
            continue
        yield (texts if len(texts) == len(columns) else "null"), where


def _of_lines(lines: Lines, columns: tuple[str, ...]) -> Iterator[tuple[Document | str, str]]:
    first = lines.first_byte
    for line in lines.content.split(b"\n"):
        text = line if first else line.removeprefix(b"\xef\xbb\xbf")
        if text.strip():
            yield _of_line(text, columns), f"byte {first:,}"
        first += len(line) + 1


def _of_line(line: bytes, columns: tuple[str, ...]) -> Document | str:
    try:
        entry = json.loads(line.decode())
    except UnicodeDecodeError:
        return "invalid UTF-8"
    except (ValueError, RecursionError):
        return "truncated line or invalid JSON"
    if not isinstance(entry, dict):
        return "not a JSON object"
    for name in columns:
        if name not in entry:
            return f"no column {name!r}"
        if entry[name] is None:
            return "null"
        if not isinstance(entry[name], str):
            return f"column {name!r} is not text"
    texts = tuple(entry[name] for name in columns)
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair"
    return texts
