"""A unit of text -> its tokens. Pure: the result is the same in every process."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidSource

from ..units import Problem, Strings, TextChunk, Unit
from . import splitting
from .chats import target_mask
from .documents import Document, documents_of
from .recipe import Recipe
from .tokenizer import FastTokenizer, TokenIds, Tokenizer, load_tokenizer, token_dtype

_BATCH_CHARS = 1 << 20
"""Encoded at once: the tokenizer needs about a hundred times the size of each token."""

Item = TypeVar("Item")

_SAMPLED = 512
"""Each 512th text or so is encoded by tokenizers too. That takes 25 to 60 times as long as by
fastokens, so it adds 5 to 12 % to the time of that."""
_SAMPLED_CHARS = 64


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
    document, in UTF-8, with a line feed behind it; None if they are not kept.
    """

    tokens: TokenIds
    lengths: npt.NDArray[np.int64]
    is_val: npt.NDArray[np.bool_]
    mask: npt.NDArray[np.bool_] | None
    problems: tuple[Problem, ...]
    begins: bool = True
    ends: bool = True
    ids: Strings | None = None


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
        ids=None if recipe.id_column is None else Strings.of([]),
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
        ids=Strings.joined(ids) if ids else None,
    )


def _encoded_chunk(
    unit: Unit, chunk: TextChunk, recipe: Recipe, tokenizer: Tokenizer
) -> EncodedUnit:
    before, after = _around(recipe, tokenizer)
    try:
        tokens, _ = _encode([chunk.text], tokenizer)
    except ValueError as error:
        raise InvalidSource(chunk.path, str(error)) from error
    except _Differs as error:
        unit = replace(unit, problems=(error.problem(f"byte {unit.place.offset:,}"),))
        tokens = before[:0]
    tokens = np.concatenate([before[: chunk.is_first], tokens, after[: chunk.is_last]])
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
    tokens, lengths = _encode(texts, tokenizer)
    counts = lengths.reshape(len(documents), -1)
    kept = counts.sum(axis=1) > 0
    left_out = [
        Problem("no tokens", documents[number].where) for number in np.flatnonzero(~kept).tolist()
    ]
    if left_out:
        documents, counts = list(compress(documents, kept)), counts[kept]
    before, after = _around(recipe, tokenizer)
    lengths = counts.sum(axis=1)
    if before.size or after.size:
        ends = np.cumsum(lengths)
        # In this order, so that what stands after a document precedes what stands before the next.
        places = [*([ends - lengths] if before.size else []), *([ends] if after.size else [])]
        around = np.tile(np.concatenate([before, after]), len(documents))
        tokens = np.insert(tokens, np.stack(places, axis=1).ravel(), around)
    mask = None
    if recipe.has_mask:
        learned = np.array([False, False, True, True])  # before, prompt, response, after
        table = np.insert(counts, [0, 2], [before.size, after.size], axis=1)
        mask = np.repeat(np.tile(learned, len(documents)), table.ravel())
    lengths = lengths + before.size + after.size
    return _unit_of(documents, recipe, tokens, lengths, mask), left_out


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
    tokens: TokenIds,
    lengths: npt.NDArray[np.int64],
    mask: npt.NDArray[np.bool_] | None,
) -> EncodedUnit:
    """Return the unit of documents that have tokens."""
    ids = [document.id + b"\n" for document in documents if document.id is not None]
    is_val = np.zeros(len(documents), np.bool_)
    if recipe.val_fraction:
        is_val[:] = [recipe.is_val(document.sha256) for document in documents]
    ids_of_all = None if recipe.id_column is None else Strings.of(ids)
    return EncodedUnit(tokens, lengths, is_val, mask, (), ids=ids_of_all)


def _around(recipe: Recipe, tokenizer: Tokenizer) -> tuple[TokenIds, TokenIds]:
    """Return the tokens before and after each document."""
    ids = (recipe.prepend_id, recipe.append_id)
    dtype = token_dtype(tokenizer)
    before, after = (np.array([] if token is None else [token], dtype) for token in ids)
    return before, after


def _encode(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[TokenIds, npt.NDArray[np.int64]]:
    """Return the tokens of all texts, and int64[n], how many each has; of a sample, compares them.

    Raises: ValueError; _Differs if they are other tokens than those of tokenizers.
    """
    tokens, counts = _encode_all(texts, tokenizer)
    if isinstance(tokenizer, FastTokenizer):
        ends = np.cumsum(counts)
        for number, text in enumerate(texts):
            if _is_sampled(text):
                found = tokens[ends[number] - counts[number] : ends[number]]
                if not np.array_equal(found, _encode_all([text], tokenizer.reference)[0]):
                    raise _Differs(number)
    return tokens, counts


def _is_sampled(text: str) -> bool:
    """Return whether a text belongs to the sample, by a hash: the same run finds the same."""
    some = f"{len(text)} {text[:_SAMPLED_CHARS]}{text[-_SAMPLED_CHARS:]}"
    return zlib.crc32(some.encode(errors="surrogatepass")) % _SAMPLED == 0


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
