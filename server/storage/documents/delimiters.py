"""Where documents begin in files whose format knows nothing of them: at a token that separates
them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidCorpus, Option

from ..bytes import PIECE_BYTES, StoredShard
from ..door import door_of
from ..formats import Stored
from ..narrowing import UINT32
from ..option_names import END_TOKEN, START_TOKEN, VOCAB_SIZE
from ..store import TokenStore
from .known_documents import Part

_LOG = logging.getLogger("tokenfeed.server")
_SAMPLE_BYTES = 64 << 20
_SAMPLE_PIECES = _SAMPLE_FILES = 256
"""On a network file system each takes a millisecond or so."""
_DOCUMENT_TOKENS = (20, 100_000)
"""What documents of a corpus have on average."""
_DOCUMENT_TOKENS_WARNED = 1_000_000
_LIKELY_MAX = 3
_SCORE_MIN = 5.0
"""Of the only id; one of many is as high by chance."""
_IDS_MAX = 20_000
_END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
"""What tokenizers call the token that ends a document."""
_TOKENIZER_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Delimiters:
    """Tokens that separate documents; None if there is none.

    end: the last token of each document.  start: the first one.  With both, a document begins
    behind each end and at each start.  are_general: they were given for several datasets, and are
    ignored where the format knows the documents.
    """

    end: int | None = None
    start: int | None = None
    are_general: bool = False

    @property
    def options(self) -> dict[Option, int]:
        """The options that are set, with their tokens."""
        both = {END_TOKEN: self.end, START_TOKEN: self.start}
        return {option: token for option, token in both.items() if token is not None}

    @property
    def words(self) -> tuple[str, ...]:
        """The options that are set, as on a command line."""
        return tuple(f"{option} {token}" for option, token in self.options.items())

    @property
    def suffix(self) -> str:
        """The end of the name of the file of what they separate: servers with other delimiters keep
        other files. "" if there is none.
        """
        text = json.dumps([self.end, self.start]).encode()
        return f"-{hashlib.sha256(text).hexdigest()[:8]}" if self.options else ""

    def require_fit(
        self, shards: Sequence[StoredShard], stored: Stored, vocab_size: int | None
    ) -> None:
        """Raise InvalidCorpus unless the tokens can occur and no file knows its documents.

        stored: type of the tokens.  vocab_size: None if it is unknown.
        """
        for option, token in self.options.items():
            for shard in shards:
                if (documents := shard.layout.documents) is not None:
                    cure = f"omit {option}"
                    unknown = [one.path for one in shards if one.layout.documents is None]
                    if unknown:
                        cure = f"those of {unknown[0]} are not: serve them as two datasets"
                    problem = f"its documents are known from {documents.path}; {cure}"
                    raise InvalidCorpus(shard.path, problem, option)
            greatest = min(np.iinfo(stored).max, np.iinfo(UINT32).max)
            if not 0 <= token <= greatest:
                given = option.to(token)
                problem = f"has {stored.name} tokens, so {given} is not in 0..{greatest}"
                raise InvalidCorpus(shards[0].path, problem, given)
            if vocab_size is not None and token >= vocab_size:
                given, limit = option.to(token), VOCAB_SIZE.to(vocab_size)
                problem = f"{given} is not below {limit}"
                raise InvalidCorpus(shards[0].path, problem, given, limit)


def require_occurring(store: TokenStore, delimiters: Delimiters) -> None:
    """Raise InvalidCorpus if a delimiter does not occur, and name likely ones; warn if it makes
    documents of millions of tokens. Looks at all tokens, or at a sample of 64 MiB.
    """
    if not delimiters.options:
        return
    sample = list(_sample(store))
    token_count = sum(tokens.size for tokens in sample)
    is_whole = token_count == sum(shard.layout.token_count for shard in store.shards)
    what = "its tokens" if is_whole else f"a sample of {token_count:,} of its tokens"
    for option, token in delimiters.options.items():
        count = sum(int((tokens == tokens.dtype.type(token)).sum()) for tokens in sample)
        if not count:
            named = _named_by_tokenizer(os.path.dirname(store.shards[0].path), sample)
            likely = ", ".join(map(str, dict.fromkeys([*named, *_likely(sample)])))
            what_it_does = "begins" if option == START_TOKEN else "ends"
            cure = f"pass the token that {what_it_does} documents"
            cure += f", likely {likely}" if likely else ", or omit it"
            given = option.to(token)
            problem = f"{given} does not occur in {what}, so it separates no documents; {cure}"
            raise InvalidCorpus(store.shards[0].path, problem, given)
        if token_count // count > _DOCUMENT_TOKENS_WARNED:
            _LOG.warning(
                "long documents dataset=%s: %s %d makes documents of %d tokens on average",
                store.name, option, token, token_count // count,
            )  # fmt: skip


def _sample(store: TokenStore) -> Iterator[npt.NDArray[np.integer]]:
    """Yield all tokens of a small corpus; of a larger one pieces spread over it, or over some of
    its files if there are many.
    """
    total_bytes = sum(shard.layout.content_bytes for shard in store.shards)
    count = len(store.shards)
    step = -(-count // _SAMPLE_FILES) if total_bytes > _SAMPLE_BYTES else 1
    for file in range(0, count, step):
        shard = store.shards[file]
        dtype, content_bytes = shard.layout.dtype, shard.layout.content_bytes
        pieces, size = 1, content_bytes
        if total_bytes > _SAMPLE_BYTES:
            pieces = max(1, _SAMPLE_PIECES * content_bytes // total_bytes)
            size = max(1, _SAMPLE_BYTES * content_bytes // total_bytes // pieces)
        for piece in range(pieces):
            first = content_bytes * piece // pieces // dtype.itemsize * dtype.itemsize
            count = max(1, min(size, content_bytes - first) // dtype.itemsize)
            yield np.frombuffer(store.files.read(file, first, count * dtype.itemsize), dtype)


def _likely(sample: Sequence[npt.NDArray[np.integer]]) -> list[int]:
    """Return ids that may end documents, the likeliest first: they are as frequent as documents
    are, and two of them are never close, while words come in bursts.
    """
    scores: dict[int, float] = {}
    for tokens in sorted(sample, key=len)[-4:]:
        order = np.argsort(tokens, kind="stable")
        ids, firsts, counts = np.unique(tokens[order], return_index=True, return_counts=True)
        means = tokens.size / counts
        plausible = (counts >= 4) & (means >= _DOCUMENT_TOKENS[0]) & (means <= _DOCUMENT_TOKENS[1])
        for number in np.flatnonzero(plausible)[:_IDS_MAX].tolist():
            places = order[firsts[number] : firsts[number] + counts[number]]
            score = float((np.diff(places).min() - 1) / means[number] * counts[number])
            scores[int(ids[number])] = max(score, scores.get(int(ids[number]), 0.0))
    # Of ids that come at random a score is above s with a chance of exp(-s).
    least = _SCORE_MIN + np.log(max(1, len(scores)))
    likely = [token for token, score in scores.items() if score > least]
    return sorted(likely, key=scores.__getitem__, reverse=True)[:_LIKELY_MAX]


def _named_by_tokenizer(folder: str, sample: Sequence[npt.NDArray[np.integer]]) -> list[int]:
    """Return the tokens that end documents by their names in a tokenizer.json beside the files, and
    that occur.
    """
    try:
        path = os.path.join(folder, "tokenizer.json")
        content = door_of(path).content(path, _TOKENIZER_BYTES_MAX) or b""
        added = {each["content"]: int(each["id"]) for each in json.loads(content)["added_tokens"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    named = [added[name] for name in _END_NAMES if name in added]
    return [token for token in named if any((tokens == token).any() for tokens in sample)]


def delimited_parts(
    shards: Sequence[StoredShard],
    delimiters: Delimiters,
    read: Callable[[int, int, int], bytes],
    stopped: Callable[[], bool],
) -> Iterator[Part]:
    """Read all tokens in order, and yield where documents begin: at the first token of each file,
    behind each end and at each start.

    read: `read` or `read_served` of the store.  stopped: whether to stop.
    Raises: what `read` raises; InvalidCorpus once stopped() is true.
    """
    for file, shard in enumerate(shards):
        stored, content_bytes = shard.layout.dtype, shard.layout.content_bytes
        begins_next = True
        for first_byte in range(0, content_bytes, PIECE_BYTES):
            if stopped():
                raise InvalidCorpus(shard.path, "was closed while its documents were searched")
            content = read(file, first_byte, min(PIECE_BYTES, content_bytes - first_byte))
            tokens = np.frombuffer(content, stored)
            begins = np.zeros(tokens.size + 1, dtype=np.bool_)
            begins[0] = begins_next
            if delimiters.end is not None:
                begins[1:] = tokens == stored.type(delimiters.end)
            if delimiters.start is not None:
                begins[:-1] |= tokens == stored.type(delimiters.start)
            begins_next = bool(begins[-1])
            first_token = first_byte // stored.itemsize
            starts = np.flatnonzero(begins[:-1]) + first_token
            yield Part(file, starts, first_token + tokens.size)
