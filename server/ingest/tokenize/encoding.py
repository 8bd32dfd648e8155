"""A unit of text -> its tokens. Pure: the result is the same in every process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidSource

from ..units import Problem, TextChunk, Unit
from . import splitting
from .chats import target_mask
from .documents import Document, documents_of
from .recipe import Recipe
from .tokenizer import Tokenizer, load_tokenizer, token_dtype

_BATCH_CHARS = 1 << 20
"""Encoded at once: the tokenizer needs about a hundred times the size of each token."""

TokenIds = npt.NDArray[np.unsignedinteger]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class EncodedUnit:
    """The documents of a unit.

    tokens: uint16[n] or uint32[n], document after document.  lengths: int64[d], tokens of each
    document.  is_val: bool[d].  mask: bool[n], which tokens are training targets; None for all.
    begins, ends: whether the first document begins here, and the last one ends here.  ids: of each
    document, in UTF-8; None if they are not kept.
    """

    tokens: TokenIds
    lengths: npt.NDArray[np.int64]
    is_val: npt.NDArray[np.bool_]
    mask: npt.NDArray[np.bool_] | None
    problems: tuple[Problem, ...]
    begins: bool = True
    ends: bool = True
    ids: list[bytes] | None = None


def encode_unit(unit: Unit, recipe: Recipe) -> EncodedUnit:
    """Return the tokens of a unit.  Raises: InvalidSource if a text chunk cannot be encoded."""
    tokenizer = load_tokenizer(recipe.tokenizer_file)
    if isinstance(unit.content, TextChunk):
        return _encoded_chunk(unit, unit.content, recipe, tokenizer)
    problems = list(unit.problems)
    documents = documents_of(unit.content, recipe, problems)
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
        ids=None if recipe.id_column is None else [],
    )
    return concat([nothing, *parts])


def concat(parts: Sequence[EncodedUnit]) -> EncodedUnit:
    """Join parts of whole documents into one, with the problems of the first part."""
    masks = [part.mask for part in parts if part.mask is not None]
    ids = [part.ids for part in parts if part.ids is not None]
    return replace(
        parts[0],
        tokens=np.concatenate([part.tokens for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        is_val=np.concatenate([part.is_val for part in parts]),
        mask=np.concatenate(masks) if masks else None,
        ids=list(chain.from_iterable(ids)) if ids else None,
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
    documents: Sequence[Document], recipe: Recipe, tokenizer: Tokenizer, problems: list[Problem]
) -> Iterator[EncodedUnit]:
    """Yield the tokens of documents. If some cannot be encoded, all are encoded one by one, and
    those that fail are added to problems.
    """
    encode = _encoded_at_once if recipe.chat_template is None else _encoded_chats
    if recipe.are_tokens:
        encode = _checked_tokens
    try:
        part, left_out = encode(documents, recipe, tokenizer)
    except ValueError as error:
        if len(documents) == 1:
            problems.append(Problem(str(error), documents[0].where))
            return
        for document in documents:
            yield from _encoded([document], recipe, tokenizer, problems)
        return
    problems += left_out
    yield part


def _encoded_at_once(
    documents: Sequence[Document], recipe: Recipe, tokenizer: Tokenizer
) -> tuple[EncodedUnit, list[Problem]]:
    """Return the tokens of documents, and the problems of those without tokens, which are left out.
    Raises: ValueError.
    """
    pieces = [list(_cut(text, tokenizer)) for document in documents for text in document.texts]
    ids = _encode([piece for text in pieces for piece in text], tokenizer)
    texts = iter([[next(ids) for _ in text] for text in pieces])
    before, after = _around(recipe, tokenizer)
    arrays: list[TokenIds] = []
    sizes: list[list[int]] = []
    kept, left_out = [], []
    for document in documents:
        columns = [next(texts) for _ in document.texts]
        counts = [sum(ids.size for ids in column) for column in columns]
        if not any(counts):
            left_out.append(Problem("no tokens", document.where))
            continue
        kept.append(document)
        arrays += [before, *chain.from_iterable(columns), after]
        sizes.append([before.size, *counts, after.size])
    table = np.array(sizes, dtype=np.int64).reshape(len(kept), -1)
    mask = None
    if recipe.has_mask:
        learned = np.array([False, False, True, True])  # before, prompt, response, after
        mask = np.repeat(np.tile(learned, len(kept)), table.ravel())
    tokens = np.concatenate([before[:0], *arrays])
    return _unit_of(kept, recipe, tokens, table.sum(axis=1), mask), left_out


def _encoded_chats(
    documents: Sequence[Document], recipe: Recipe, tokenizer: Tokenizer
) -> tuple[EncodedUnit, list[Problem]]:
    """Return the tokens of chats with their mask, and the problems of those without a target, which
    are left out.  Raises: ValueError.
    """
    assert recipe.chat_template is not None
    before, after = _around(recipe, tokenizer)
    tokens, masks = [before[:0]], [np.empty(0, np.bool_)]
    lengths: list[int] = []
    kept, left_out = [], []
    for document in documents:
        (text,) = document.texts
        ids, offsets = _with_offsets(text, tokenizer)
        mask = target_mask(offsets, document.targets)
        if not mask.any():
            left_out.append(Problem("no token of the assistant", document.where))
            continue
        kept.append(document)
        tokens += [before, ids, after]
        masks += [np.zeros(before.size, np.bool_), mask, np.ones(after.size, np.bool_)]
        lengths.append(before.size + ids.size + after.size)
    sizes = np.array(lengths, dtype=np.int64)
    return _unit_of(kept, recipe, np.concatenate(tokens), sizes, np.concatenate(masks)), left_out


def _checked_tokens(
    documents: Sequence[Document], recipe: Recipe, tokenizer: Tokenizer
) -> tuple[EncodedUnit, list[Problem]]:
    """Return documents that are tokens already, with their mask, and the problems of those with
    tokens that the tokenizer does not have.
    """
    before, after = _around(recipe, tokenizer)
    tokens, masks = [before[:0]], [np.empty(0, np.bool_)]
    lengths: list[int] = []
    kept, left_out = [], []
    for document in documents:
        ids = document.tokens
        assert ids is not None
        if ids.min() < 0 or ids.max() >= tokenizer.vocab_size:
            wrong = int(ids[(ids < 0) | (ids >= tokenizer.vocab_size)][0])
            what = f"token {wrong}, which is not in [0, {tokenizer.vocab_size}) of the tokenizer"
            left_out.append(Problem(what, document.where))
            continue
        kept.append(document)
        learned = np.ones(ids.size, np.bool_) if document.learned is None else document.learned
        tokens += [before, ids.astype(before.dtype), after]
        masks += [np.zeros(before.size, np.bool_), learned, np.ones(after.size, np.bool_)]
        lengths.append(before.size + ids.size + after.size)
    sizes = np.array(lengths, dtype=np.int64)
    mask = np.concatenate(masks) if recipe.has_mask else None
    return _unit_of(kept, recipe, np.concatenate(tokens), sizes, mask), left_out


def _with_offsets(text: str, tokenizer: Tokenizer) -> tuple[TokenIds, npt.NDArray[np.int64]]:
    """Return the tokens of a text, and int64[n, 2], the characters of each.  Raises: ValueError."""
    dtype = token_dtype(tokenizer)
    tokens, offsets = [np.empty(0, dtype)], [np.empty((0, 2), np.int64)]
    first = 0
    for piece in _cut(text, tokenizer):
        ids, places = tokenizer.encode_with_offsets(piece)
        tokens.append(np.fromiter(ids, dtype, len(ids)))
        offsets.append(places + first)
        first += len(piece)
    return np.concatenate(tokens), np.concatenate(offsets)


def _unit_of(
    documents: Sequence[Document],
    recipe: Recipe,
    tokens: TokenIds,
    lengths: npt.NDArray[np.int64],
    mask: npt.NDArray[np.bool_] | None,
) -> EncodedUnit:
    """Return the unit of documents that have tokens."""
    ids = [document.id for document in documents if document.id is not None]
    return EncodedUnit(
        tokens,
        lengths,
        np.array([recipe.is_val(document.sha256) for document in documents], dtype=np.bool_),
        mask,
        (),
        ids=None if recipe.id_column is None else ids,
    )


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


def _chars(document: Document) -> int:
    return sum(map(len, document.texts)) if document.tokens is None else document.tokens.size
