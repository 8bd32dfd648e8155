"""Datasets of this machine's files for one process, without a server: what a client opens for
`RemoteBatches("file:train.bin", ...)`.

The files are found, checked, fingerprinted and read as by a server. A thread polls them; it also
rereads a file that was touched, for which a server has a thread of its own.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import (
    CorpusChanged,
    InvalidCorpus,
    InvalidRequest,
    NotFound,
    Unreadable,
    listed,
)
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream.position import BATCH_BYTES_MAX, BATCH_SIZE_MAX, WORLD_SIZE_MAX
from tokenfeed.stream.stage import Source
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import crc32c
from tokenfeed.wire.frame import (
    FRAME_BYTES_FIRST,
    FRAME_BYTES_TARGET,
    ROW_BYTES_MAX,
    rows_per_frame,
)
from tokenfeed.wire.request import Request
from tokenfeed.wire.row_block import Plane, RowBlock

from .datasets.dataset import Dataset, start_polling
from .datasets.loss_masks import OPTION as MASK_OPTION
from .datasets.opening import VOCAB_SIZE_MAX, PlaneOptions, TokenChecks, log_opened, open_dataset
from .datasets.provenance.answers import Answers
from .datasets.redactions.opening import OPTION as REDACTIONS_OPTION
from .datasets.sources import DatasetSource, is_text, parse_datasets, require_distinct_names
from .datasets.sources.paths import MASK_SUFFIXES, expand
from .datasets.sources.splits import OPTION as SPLITS_OPTION
from .rows.reader import RowReader
from .rows.served import ServedDatasets
from .runtime.threads.poll_rate import PollRate
from .storage.borders import END_OPTION, START_OPTION, Delimiters
from .storage.choice import Storing
from .storage.formats import (
    FORMAT_NAMES,
    ROW_OPTION,
    ROW_TOKENS_MAX,
    ROW_TOKENS_MIN,
    STORED,
    FormatOptions,
)
from .storage.store import CHANGED, WAYS, WRONG_TOKEN

_LOSS_MASK = MASK_OPTION.removeprefix("--")
_VOCAB_SIZE = "vocab-size"
_ROW_TOKENS = ROW_OPTION.removeprefix("--")
_END_TOKEN, _START_TOKEN = (option.removeprefix("--") for option in (END_OPTION, START_OPTION))
_NUMBERS = {_VOCAB_SIZE: (1, VOCAB_SIZE_MAX), _END_TOKEN: (0, VOCAB_SIZE_MAX)}
_NUMBERS[_START_TOKEN] = _NUMBERS[_END_TOKEN]
_NUMBERS[_ROW_TOKENS] = (ROW_TOKENS_MIN, ROW_TOKENS_MAX)
"""Options that are numbers, and the limits of each."""
_IMMUTABLE = "immutable"
_MIXED_SPLITS = SPLITS_OPTION.removeprefix("--")
_CACHE_DIR = "cache-dir"
_REDACTIONS = REDACTIONS_OPTION.removeprefix("--")
_OF_ONE_DATASET = {
    _LOSS_MASK: "place X.ds.loss beside X.ds",
    _REDACTIONS: "place each list beside its files",
}
"""Options that only a target of one dataset takes, and what to do instead."""
OPTIONS: Mapping[str, Sequence[str] | None] = {
    "format": FORMAT_NAMES,
    "dtype": tuple(STORED),
    "read": WAYS,
    _IMMUTABLE: ("",),
    _MIXED_SPLITS: ("",),
    _LOSS_MASK: None,
    _CACHE_DIR: None,
    _REDACTIONS: None,
    **dict.fromkeys(_NUMBERS),
}
"""The options of a target, as those of `tokenfeed serve`, and their values; None: others."""
_LIMITS = pb.Limits(
    batch_size_max=BATCH_SIZE_MAX,
    batch_bytes_max=BATCH_BYTES_MAX,
    world_size_max=WORLD_SIZE_MAX,
    row_bytes_max=ROW_BYTES_MAX,
)
"""Those of a server that is started without options."""
_LOG_SAYS = "the log names the file"


def open_local(
    words: Sequence[Sequence[str]],
    names: Sequence[str],
    options: Mapping[str, str],
    stopped: Callable[[], bool] = lambda: False,
) -> LocalDatasets:
    """Open one dataset, or those of a mixture.

    words: for each dataset, the words that follow a --data of the server.  names: which of them, in
    the order of the sources; "" if there is only one.  options: by their names, those of OPTIONS.
    stopped: whether the datasets are not needed any more, so that their files need not be read to
    their end.
    Raises: InvalidRequest or NotFound for an option or a name; InvalidCorpus, with the file, the
    problem and the cure.
    """
    crc32c.require_fast()
    _require_options(options)
    try:
        mixed = _MIXED_SPLITS in options
        sources = [one for each in words for one in _sources(each, mixed_splits=mixed)]
        for option, cure in _OF_ONE_DATASET.items():
            if option in options and len(sources) > 1:
                problem = f"{option} is of one dataset, but the target has {len(sources)}"
                raise InvalidRequest("target", f"{problem}; serve them, or {cure}")
        chosen = [_chosen(sources, name) for name in names]
        with ExitStack() as opened:
            datasets = []
            for source in chosen:
                datasets.append(_open(source, options, stopped, is_alone=len(sources) == 1))
                opened.callback(datasets[-1].close)
            found = LocalDatasets(datasets, stopped, polls=_IMMUTABLE not in options)
            opened.pop_all()
        return found
    except InvalidCorpus as error:
        raise InvalidCorpus(error.subject, _for_targets(error.problem)) from None


def _open(
    source: DatasetSource,
    options: Mapping[str, str],
    stopped: Callable[[], bool],
    *,
    is_alone: bool,
) -> Dataset:
    """Open a dataset.  is_alone: whether all options are its own, as with one of a server."""
    formats = FormatOptions.parse(
        options.get("format"),
        options.get("dtype"),
        source.tensor,
        _number(_ROW_TOKENS, options),
    )
    poll_rate = _poll_rate(os.getpid()) if _IMMUTABLE not in options else PollRate(never=True)
    storing = Storing(options.get("read"), poll_rate)
    checks = TokenChecks(_number(_VOCAB_SIZE, options))
    planes = PlaneOptions(
        expand(options[_LOSS_MASK], MASK_SUFFIXES) if _LOSS_MASK in options else (),
        Delimiters(
            _number(_END_TOKEN, options), _number(_START_TOKEN, options), are_general=not is_alone
        ),
        _path(_CACHE_DIR, "folder", options),
        _path(_REDACTIONS, "file", options),
    )
    dataset = open_dataset(
        source, formats, checks, storing, planes=planes, share=True, stopped=stopped
    )
    try:
        # Not in the background: nothing would wait for it, since a feed either has all of its
        # planes when it opens its files, or closes them.
        dataset.search_now(stopped)
    except BaseException:
        dataset.close()
        raise
    log_opened(dataset)
    return dataset


class LocalDatasets:
    """The datasets of a stream, opened for this process. A thread polls their files."""

    def __init__(
        self, datasets: Sequence[Dataset], stopped: Callable[[], bool], *, polls: bool
    ) -> None:
        """Take opened datasets.  stopped: as for `open_local`.  polls: whether to poll files.
        Raises: RuntimeError if no thread can start.
        """
        self._datasets = tuple(datasets)
        by_name = {dataset.name: dataset for dataset in datasets}
        self._rows = ServedDatasets(by_name, _LIMITS, place="the target", state="opened")
        self._stopped = stopped
        self._answers = Answers(self._rows.checked, self._rows.redactor)
        # As in a server, so that a trainer that pauses finds out as early.
        self._poller = start_polling(datasets, stopped=stopped) if polls else None

    def described(
        self, context_length: int, sources: Sequence[Source] = ()
    ) -> tuple[pb.Dataset, ...]:
        """Return their descriptions, with the rows of T = context_length tokens.

        sources: of each dataset; the rows of those over documents are made if there are none.
        Raises: InvalidRequest, InvalidCorpus.
        """
        described = tuple(dataset.described(context_length) for dataset in self._datasets)
        for source, dataset, found in zip(sources, self._datasets, described, strict=False):
            if source.reads_documents:
                key = RowsKey(source.order.NAME, context_length, source.long_documents)
                try:
                    found.rows.append(dataset.document_rows_now(key, self._stopped))
                except InvalidCorpus as error:
                    raise InvalidCorpus(error.subject, _for_targets(error.problem)) from None
        return described

    def look_at_lists(self) -> None:
        """Look at the files of the lists of redactions at once, not only once a second."""
        for dataset in self._datasets:
            if dataset.redactions is not None:
                dataset.redactions.content_now()

    def blocks(self, request: Request) -> LocalBlocks:
        """Return the rows of a request, whose stream may have several stages.

        Raises: InvalidRequest if no file is long enough; LimitExceeded for a batch that a server
        would refuse; StreamMismatch if a list of redactions is missing. `LocalBlocks.next` raises
        them too, for a later stage.
        """
        return LocalBlocks(request, self._rows.reader_of_part)

    @property
    def provenance(self) -> Answers:
        """Answers Locate, Find and Coverage as a server does, from the messages of the contract."""
        return self._answers

    def close(self) -> None:
        """Close the files. Blocks that are being read fail with CorpusChanged."""
        if self._poller is not None:
            self._poller.close()
        for dataset in self._datasets:
            dataset.close()


class _Memory(NamedTuple):
    """The memory of a block: all of its rows."""

    rows: slice
    tokens: npt.NDArray[np.unsignedinteger]
    planes: tuple[Plane, ...]


class LocalBlocks:
    """The rows of a request, in order, in blocks of up to a MiB: whole batches where they fit."""

    def __init__(self, request: Request, reader_of: Callable[[Request], RowReader]) -> None:
        """Read nothing yet.  reader_of: returns the reader of a request of one stage."""
        self._request = request
        self._reader_of = reader_of
        self._row = request.first_row
        self._block_bytes = FRAME_BYTES_FIRST
        self._spans: Spans | None = None
        self._begin_part()

    def next(self) -> RowBlock | None:
        """Read the next block; None at the end. The caller owns its memory.

        Raises: CorpusChanged; Deleted, behind the rows before the one that needs deleted tokens;
        Unreadable, after about a second: the same block comes next.
        """
        spans = self._spans
        if spans is None:
            if self._row == self._request.end_row:
                return None
            if self._reader.row == self._reader.end_row:
                self._begin_part()
            spans = self._spans = self._reader.take(self._next_row_count())
        try:
            row = self._reader.row - len(spans)
            block, deleted = self._reader.before_deleted(spans, row, self._block)
        except (CorpusChanged, Unreadable) as error:
            raise type(error)(error.subject, _for_readers(error.problem)) from None
        if block is None:
            assert deleted is not None
            raise deleted
        count = len(block.tokens)
        self._spans = spans[count:] if count < len(spans) else None
        self._row += count
        return block

    def _block(self, spans: Spans) -> RowBlock:
        """Return rows in new arrays."""

        def memory(planes: tuple[Plane, ...]) -> tuple[_Memory]:
            tokens = np.empty((len(spans), spans.row_tokens), dtype=self._reader.dtype)
            return (_Memory(slice(0, len(spans)), tokens, planes),)

        (found,) = self._reader.fill(spans, memory)
        return RowBlock(found.tokens, found.planes)

    def _next_row_count(self) -> int:
        """Return the rows of the next block; few at first, so that the first batch is early."""
        row, batch_size = self._reader.row, self._reader.request.position.batch_size
        rows = rows_per_frame(self._block_bytes, self._reader.row_bytes)
        self._block_bytes = min(2 * self._block_bytes, FRAME_BYTES_TARGET)
        end = (row + rows) // batch_size * batch_size
        return (end if end > row else row + rows) - row

    def _begin_part(self) -> None:
        """Plan the rows of the next stage, or of the part of it with the same redactions."""
        self._reader = self._reader_of(self._request.part(self._row, self._request.end_row))


@functools.lru_cache(maxsize=1)
def _poll_rate(process: int) -> PollRate:
    """Return the rate limit of all datasets of a process. Not that of a fork's parent, which may
    have been locked when it forked.
    """
    return PollRate()


def _require_options(options: Mapping[str, str]) -> None:
    for option, value in options.items():
        if option not in OPTIONS:
            problem = f"has no option {option!r}, only {', '.join(OPTIONS)}"
            raise InvalidRequest("target", f"{problem}; in a glob write * instead of ?")
        known = OPTIONS[option]
        if known is not None and value not in known:
            values = ", ".join(known) or "no value"
            raise InvalidRequest("target", f"{option} is {value!r}; it takes {values}")


def _for_targets(problem: str) -> str:
    """Return a problem whose cures are options of a target, not of a command line."""

    def as_in_a_target(found: re.Match[str]) -> str:
        option, space, word = found.groups()
        values = OPTIONS[option]
        is_value = word.isdecimal() if option in _NUMBERS else word in (values or ())
        return f"?{option}={word}" if word and is_value else f"?{option}{space}{word}"

    problem = re.sub("--data (['\"])", r"\1file:", problem)
    return re.sub(rf"--({'|'.join(OPTIONS)})\b( ?)(\w*)", as_in_a_target, problem)


def _for_readers(problem: str) -> str:
    """Return a problem of a store with the cure for who reads its files, not for its clients."""
    problem, _, _ = problem.partition("; ")
    if problem.endswith(CHANGED):
        what = "changed while it was read; start again with complete files"
        return f"{problem.removesuffix(CHANGED)}{what}; {_LOG_SAYS}"
    if problem.endswith(WRONG_TOKEN):
        cure = f"omit ?{_VOCAB_SIZE} to check all tokens at the start"
        return f"{problem}; {cure}; {_LOG_SAYS}"
    return f"{problem}; {_LOG_SAYS}"


def _number(option: str, options: Mapping[str, str]) -> int | None:
    """Return the value of an option; None if it is not given.  Raises: InvalidRequest."""
    text = options.get(option)
    if text is None:
        return None
    least, most = _NUMBERS[option]
    if re.fullmatch("[0-9]{1,10}", text) and least <= int(text) <= most:
        return int(text)
    raise InvalidRequest(
        "target", f"{option} is {text!r}; it takes a number from {least} to {most}"
    )


def _path(option: str, what: str, options: Mapping[str, str]) -> str | None:
    """Return the path that an option names; None if it is not given.  what: a folder or a file.

    Raises: InvalidRequest.
    """
    path = options.get(option)
    if path is None:
        return None
    try:
        found = os.path.expanduser(os.fsencode(path))
    except UnicodeEncodeError:
        found = b""
    if not found or b"\0" in found:
        raise InvalidRequest("target", f"{option} is {path!r}; it takes a {what}")
    return os.fsdecode(found)


def _sources(words: Sequence[str], *, mixed_splits: bool) -> list[DatasetSource]:
    if is_text(words):
        raise InvalidRequest("target", f"{words[0]} is text; ingest it first: tokenfeed ingest")
    return parse_datasets(words, mixed_splits=mixed_splits)


def _chosen(sources: Sequence[DatasetSource], name: str) -> DatasetSource:
    """Return the dataset of a name.  Raises: InvalidRequest, NotFound."""
    require_distinct_names(sources, "target", "file:NAME=PATH")
    names = listed([source.name for source in sources])
    if not name and len(sources) > 1:
        raise InvalidRequest("dataset", f"has to name one of the datasets of the target: {names}")
    for source in sources:
        if name in ("", source.name):
            return source
    raise NotFound("dataset", f"{name!r} is not in the target, only {names}")
