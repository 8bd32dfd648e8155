"""A unit of text -> its tokens. Pure: the result is the same in every process."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidSource

from ..units import InvalidDocument, Problem, Strings, TextChunk, Unit, UnreadRows
from . import splitting
from .chat_targets import target_mask
from .documents import Document, documents_of
from .recipe import Recipe
from .tokenizer import FastTokenizer, TokenIds, Tokenizer, load_tokenizer, token_dtype

_BATCH_CHARS = 1 << 20
"""Encoded at once: the tokenizer needs about a hundred times the size of each token."""

Item = TypeVar("Item")

_SLICE_CHARS = 1 << 11
_SAMPLED = 512
"""One of 512 slices is encoded by tokenizers too, which adds 1/512 of what an ingest by tokenizers
would take."""
_HASHED_CHARS = 64
_BORDER = re.compile(r"(?<=\S)(?= )|(?<=[^\W_])(?=[\n.,;:!?()\u3001\u3002\uff0c])")
"""Where each tokenizer that was compared (engine.py) begins another pre-token."""


class _Differs(Exception):
    """Another engine gives other tokens than tokenizers.  number: of the text."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def problem(self, where: str) -> Problem:
        what = "the tokens of fastokens are not those of tokenizers"
        return Problem(what, where, is_fatal=True, is_of_engine=True)


@dataclass(frozen=True, slots=True)
class EncodedUnit:
    """The documents of a unit.

    tokens: uint16[n] or uint32[n], document after document.  lengths: int64[d], tokens of each
    document.  is_val: bool[d].  mask: bool[n], which tokens are training targets; None for all.
    begins, ends: whether the first document begins here, and the last one ends here.  ids: of each
    document, in UTF-8, with a line feed behind it; None if they are not kept.  compared_tokens: how
    many of the sample two engines gave.  read: the part of an unread unit that was read, without
    its content; None if that is all.
    """

    tokens: TokenIds
    lengths: npt.NDArray[np.int64]
    is_val: npt.NDArray[np.bool_]
    mask: npt.NDArray[np.bool_] | None
    problems: tuple[Problem, ...]
    begins: bool = True
    ends: bool = True
    ids: Strings | None = None
    compared_tokens: int = 0
    read: Unit | None = None


def encode_unit(unit: Unit, recipe: Recipe) -> EncodedUnit:
    """Return the tokens of a unit, whose text is there.

    Raises: InvalidSource if a text chunk cannot be encoded.
    """
    tokenizer = load_tokenizer(recipe.tokenizer_file)
    found = _encoded_unit(unit, recipe, tokenizer)
    is_first = unit.place[:2] == (0, 0) and not any(one.is_fatal for one in found.problems)
    if isinstance(tokenizer, FastTokenizer) and is_first and not found.compared_tokens:
        # Little text may have no slice that is sampled.
        expected = _encoded_unit(unit, recipe, tokenizer.reference)
        if not np.array_equal(found.tokens, expected.tokens):
            return replace(found, problems=(_Differs(0).problem("at its beginning"),))
        return replace(found, compared_tokens=expected.tokens.size)
    return found


def _encoded_unit(unit: Unit, recipe: Recipe, tokenizer: Tokenizer) -> EncodedUnit:
    if isinstance(unit.content, TextChunk):
        return _encoded_chunk(unit, unit.content, recipe, tokenizer)
    assert not isinstance(unit.content, UnreadRows)
    problems = list(unit.problems)
    documents = documents_of(unit.content, recipe, problems)
    parts = [
        part
        for batch in _batches(documents, _chars)
        for part in _encoded(batch, recipe, tokenizer, problems)
    ]
    nothing, _ = _encoded_each([], recipe, tokenizer)
    return concat([replace(nothing, problems=tuple(problems)), *parts])


def concat(parts: Sequence[EncodedUnit]) -> EncodedUnit:
    """Join parts of whole documents into one."""
    masks = [part.mask for part in parts if part.mask is not None]
    ids = [part.ids for part in parts if part.ids is not None]
    return replace(
        parts[0],
        tokens=np.concatenate([part.tokens for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        is_val=np.concatenate([part.is_val for part in parts]),
        mask=np.concatenate(masks) if masks else None,
        problems=tuple(chain.from_iterable(part.problems for part in parts)),
        ids=Strings.joined(ids) if ids else None,
        compared_tokens=sum(part.compared_tokens for part in parts),
    )


def _encoded_chunk(
    unit: Unit, chunk: TextChunk, recipe: Recipe, tokenizer: Tokenizer
) -> EncodedUnit:
    before, after = _around(recipe, tokenizer)
    compared_tokens = 0
    try:
        tokens, _, compared_tokens = _encode([chunk.text], tokenizer)
    except ValueError as error:
        raise InvalidSource(chunk.path, str(error)) from error
    except _Differs as error:
        unit = replace(unit, problems=(error.problem(f"byte {unit.place.offset:,}"),))
        tokens = before[:0]
    if chunk.is_first and chunk.is_last and not (tokens.size or unit.problems):
        nothing, _ = _encoded_each([], recipe, tokenizer)
        return replace(nothing, problems=(Problem("no tokens", "byte 0"),))
    tokens = np.concatenate([before[: chunk.is_first], tokens, after[: chunk.is_last]])
    return EncodedUnit(
        tokens,
        np.array([tokens.size]),
        np.array([chunk.is_val]),
        None,
        unit.problems,
        begins=chunk.is_first,
        ends=chunk.is_last,
        compared_tokens=compared_tokens,
    )


def _encoded(
    documents: Sequence[Document], recipe: Recipe, tokenizer: Tokenizer, problems: list[Problem]
) -> Iterator[EncodedUnit]:
    """Yield the tokens of documents. If some cannot be encoded, all are encoded one by one, and
    those that fail are added to problems.
    """
    one_by_one = recipe.are_tokens or recipe.chat_template is not None
    encode = _encoded_each if one_by_one else _encoded_at_once
    try:
        part, left_out = encode(documents, recipe, tokenizer)
    except ValueError as error:
        if len(documents) == 1:
            problems.append(Problem(str(error), documents[0].where))
            return
        for document in documents:
            yield from _encoded([document], recipe, tokenizer, problems)
        return
    except _Differs as error:
        texts_each = len(documents[0].texts)
        problems.append(error.problem(documents[error.number // texts_each].where))
        return
    problems += left_out
    yield part


def _encoded_at_once(
    documents: Sequence[Document], recipe: Recipe, tokenizer: Tokenizer
) -> tuple[EncodedUnit, list[Problem]]:
    """Return the tokens of documents, and the problems of those without tokens, which are left out.
    Raises: ValueError.
    """
    texts = [text for document in documents for text in document.texts]
    tokens, lengths, compared_tokens = _encode(texts, tokenizer)
    counts = lengths.reshape(len(documents), -1)
    kept = counts.sum(axis=1) > 0
    left_out = [
        Problem("no tokens", documents[number].where) for number in np.flatnonzero(~kept).tolist()
    ]
    if left_out:
        documents, counts = list(compress(documents, kept)), counts[kept]
    mask = None
    if recipe.has_mask:
        # Of a prompt, and of its response.
        mask = np.repeat(np.tile([False, True], len(documents)), counts.ravel())
    part = _unit_of(documents, recipe, tokenizer, tokens, counts.sum(axis=1), mask)
    return replace(part, compared_tokens=compared_tokens), left_out


def _encoded_each(
    documents: Sequence[Document], recipe: Recipe, tokenizer: Tokenizer
) -> tuple[EncodedUnit, list[Problem]]:
    """Return the tokens of chats, or of documents that are tokens already, with their mask, and the
    problems of those that are left out.  Raises: ValueError.
    """
    kept: list[Document] = []
    left_out: list[Problem] = []
    tokens, masks = [np.empty(0, token_dtype(tokenizer))], [np.empty(0, np.bool_)]
    for document in documents:
        try:
            ids, mask = _of_chat(document, tokenizer)
        except InvalidDocument as error:
            left_out.append(error.problem(document.where))
            continue
        kept.append(document)
        tokens.append(ids)
        masks.append(mask)
    lengths = np.array([ids.size for ids in tokens[1:]], np.int64)
    all_masks = np.concatenate(masks) if recipe.has_mask else None
    return _unit_of(kept, recipe, tokenizer, np.concatenate(tokens), lengths, all_masks), left_out


def _of_chat(document: Document, tokenizer: Tokenizer) -> tuple[TokenIds, npt.NDArray[np.bool_]]:
    """Return the tokens of a chat, or of a document that is tokens already, and which of them are
    targets.  Raises: InvalidDocument, ValueError.
    """
    ids = document.tokens
    if ids is None:
        (text,) = document.texts
        encoded, offsets = _with_offsets(text, tokenizer)
        mask = target_mask(offsets, document.targets)
        if not mask.any():
            raise InvalidDocument("no token of the assistant")
        return encoded, mask
    wrong = ids[(ids < 0) | (ids >= tokenizer.vocab_size)]
    if wrong.size:
        problem = f"token {wrong[0]}, which is not in [0, {tokenizer.vocab_size}) of the tokenizer"
        raise InvalidDocument(problem)
    learned = np.ones(ids.size, np.bool_) if document.learned is None else document.learned
    return ids.astype(token_dtype(tokenizer)), learned


def _with_offsets(text: str, tokenizer: Tokenizer) -> tuple[TokenIds, npt.NDArray[np.int64]]:
    """Return the tokens of a text, and int64[n, 2], the characters of each.  Raises: ValueError."""
    tokens, offsets = [np.empty(0, token_dtype(tokenizer))], [np.empty((0, 2), np.int64)]
    first = 0
    for piece in _cut(text, tokenizer):
        ids, places = tokenizer.encode_with_offsets(piece)
        tokens.append(ids)
        offsets.append(places + first)
        first += len(piece)
    return np.concatenate(tokens), np.concatenate(offsets)


def _unit_of(
    documents: Sequence[Document],
    recipe: Recipe,
    tokenizer: Tokenizer,
    tokens: TokenIds,
    lengths: npt.NDArray[np.int64],
    mask: npt.NDArray[np.bool_] | None,
) -> EncodedUnit:
    """Return the unit of documents that have tokens, with those before and after each added."""
    before, after = _around(recipe, tokenizer)
    if before.size or after.size:
        ends = np.cumsum(lengths)
        # In this order, so that what stands after a document precedes what stands before the next.
        places = [*([ends - lengths] if before.size else []), *([ends] if after.size else [])]
        at = np.stack(places, axis=1).ravel()
        tokens = np.insert(tokens, at, np.tile(np.concatenate([before, after]), len(documents)))
        if mask is not None:
            around = [False] * before.size + [True] * after.size
            mask = np.insert(mask, at, np.tile(around, len(documents)))
        lengths = lengths + before.size + after.size
    ids = None
    if recipe.id_column is not None:
        ids = Strings.of([document.id + b"\n" for document in documents if document.id is not None])
    is_val = np.zeros(len(documents), np.bool_)
    if recipe.val_fraction:
        is_val[:] = [recipe.is_val(document.sha256) for document in documents]
    return EncodedUnit(tokens, lengths, is_val, mask, (), ids=ids)


def _around(recipe: Recipe, tokenizer: Tokenizer) -> tuple[TokenIds, TokenIds]:
    """Return the tokens before and after each document."""
    ids = (recipe.prepend_id, recipe.append_id)
    dtype = token_dtype(tokenizer)
    before, after = (np.array([] if token is None else [token], dtype) for token in ids)
    return before, after


def _encode(
    texts: Sequence[str], tokenizer: Tokenizer
) -> tuple[TokenIds, npt.NDArray[np.int64], int]:
    """Return the tokens of all texts, and int64[n], how many each has; compares a sample, and
    returns how many tokens that is.

    Raises: ValueError; _Differs if they are other tokens than those of tokenizers.
    """
    tokens, counts = _encode_all(texts, tokenizer)
    compared_tokens = 0
    if isinstance(tokenizer, FastTokenizer):
        ends = np.cumsum(counts)
        slices = [(number, one) for number, text in enumerate(texts) for one in _sampled(text)]
        for number, one in slices:
            found = tokens[ends[number] - counts[number] : ends[number]]
            some = _encode_all([one], tokenizer.reference)[0]
            compared_tokens += some.size
            if _has(found, some, one == texts[number]):
                continue
            # It may be the border: all of the text decides.
            expected = _encode_all([texts[number]], tokenizer.reference)[0]
            if not np.array_equal(found, expected):
                raise _Differs(number)
            compared_tokens += expected.size
    return tokens, counts, compared_tokens


def _sampled(text: str) -> Iterator[str]:
    """Yield the slices of a text that belong to the sample, by a hash: each run finds the same."""
    for first in range(0, len(text), _SLICE_CHARS):
        end = min(first + _SLICE_CHARS, len(text))
        begin = text[first : first + _HASHED_CHARS]
        some = f"{end} {begin}{text[max(first, end - _HASHED_CHARS) : end]}"
        if zlib.crc32(some.encode(errors="surrogatepass")) % _SAMPLED == 0:
            yield _slice(text, first)


def _slice(text: str, first: int) -> str:
    """Return about _SLICE_CHARS from a place on, from border to border; all of a text that has no
    border behind that place.
    """
    begin = _border(text, first) if first else 0
    if begin == len(text):
        return text
    return text[begin : _border(text, begin + _SLICE_CHARS)]


def _border(text: str, low: int) -> int:
    found = _BORDER.search(text, low)
    return len(text) if found is None else found.start()


def _has(tokens: TokenIds, some: TokenIds, is_all: bool) -> bool:
    """Return whether tokens are others, or have them one after another."""
    if is_all:
        return np.array_equal(tokens, some)
    content, wanted, width = tokens.tobytes(), some.tobytes(), tokens.itemsize
    place = content.find(wanted)
    while place > 0 and place % width:
        place = content.find(wanted, place + 1)
    return place >= 0


def _encode_all(
    texts: Sequence[str], tokenizer: Tokenizer
) -> tuple[TokenIds, npt.NDArray[np.int64]]:
    """Encode long texts in pieces, and all in batches."""
    pieces = [list(_cut(text, tokenizer)) for text in texts]
    found = [
        tokenizer.encode(batch)
        for batch in _batches((piece for text in pieces for piece in text), len)
    ]
    tokens, counts = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    firsts = np.cumsum([0, *map(len, pieces[:-1])])
    return tokens, np.add.reduceat(counts, firsts)


def _cut(text: str, tokenizer: Tokenizer) -> Iterable[str]:
    if len(text) <= 2 * splitting.PIECE_CHARS:
        return (text,)
    return splitting.split_text(iter((text,)), tokenizer.encode_each)


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
