"""Datasets of this machine's files for one process, without a server: what a client opens for
`RemoteBatches("file:train.bin", ...)`.

The files are found, checked, fingerprinted and read as by a server. A thread polls them; it also
rereads a file that was touched, for which a server has a thread of its own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from tokenfeed.errors import (
    CorpusChanged,
    InvalidCorpus,
    InvalidRequest,
    NotFound,
    Option,
    TokenfeedError,
    Unreadable,
    listed,
)
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import crc32c
from tokenfeed.wire.request import AnyRequest, Expected

from .datasets.dataset import Dataset, start_polling
from .datasets.opening import TokenChecks, log_opened, open_dataset
from .datasets.options import BY_NAME, parse_options
from .datasets.provenance.answers import Answers
from .datasets.sources import DatasetSource, is_text, parse_datasets, require_distinct_names
from .datasets.sources.paths import MASK_SUFFIXES, expand
from .rows.reader import RowReader
from .rows.served_datasets import ServedDatasets
from .runtime.threads.poll_rate import PollRate
from .storage.bytes import CHANGED
from .storage.door import StorageOptions, scheme_of
from .storage.option_names import (
    CACHE_DIR,
    DATA,
    IMMUTABLE,
    LOSS_MASK,
    MIXED_SPLITS,
    REDACTIONS,
    VOCAB_SIZE,
)
from .storage.store import WRONG_TOKEN

_OF_ONE_DATASET = {
    LOSS_MASK: "place X.ds.loss beside X.ds",
    REDACTIONS: "place each list beside its files",
}
"""Options that only a target of one dataset takes, and what to do instead."""
_PATHS = {CACHE_DIR: "folder", REDACTIONS: "file"}
_LOG_SAYS = "the log names the file"


def open_local(
    words: Sequence[Sequence[str]],
    names: Sequence[str],
    options: Mapping[str, str],
    stopped: Callable[[], bool] = lambda: False,
) -> LocalDatasets:
    """Open one dataset, or those of a mixture.

    words: for each dataset, the words that follow a --data of the server.  names: which of them, in
    the order of the sources; "" if there is only one.  options: by their names, those of
    datasets/options.py.
    stopped: whether the datasets are not needed any more, so that their files need not be read to
    their end.
    Raises: InvalidRequest or NotFound for an option or a name; InvalidCorpus, with the file, the
    problem and the cure.
    """
    crc32c.require_fast()
    given = _given(options)
    with _spelled(), ExitStack() as opened:
        mixed = MIXED_SPLITS in given
        sources = [one for each in words for one in _sources(each, mixed_splits=mixed)]
        for option, cure in _OF_ONE_DATASET.items():
            if option in given and len(sources) > 1:
                problem = f"is of one dataset, but the target has {len(sources)}"
                raise _refused(option, f"{problem}; serve them, or {cure}")
        datasets = []
        for source in [_chosen(sources, name) for name in dict.fromkeys(names)]:
            datasets.append(_open(source, given, stopped, is_alone=len(sources) == 1))
            opened.callback(datasets[-1].close)
        found = LocalDatasets(datasets, stopped, polls=IMMUTABLE not in given)
        opened.pop_all()
    return found


def _open(
    source: DatasetSource,
    given: Mapping[Option, str],
    stopped: Callable[[], bool],
    *,
    is_alone: bool,
) -> Dataset:
    """Open a dataset.  is_alone: whether all options are its own, as with one of a server."""
    # What is beside the files is found, and they are looked at, also after a change of the folder.
    source = replace(source, paths=tuple(map(_from_here, source.paths)))
    masks = expand(given[LOSS_MASK], MASK_SUFFIXES) if LOSS_MASK in given else ()
    masks = [*map(_from_here, masks)]
    options = parse_options(
        given, _refused, tensor=source.tensor, masks=masks, are_general=not is_alone
    )
    poll_rate = _poll_rate(os.getpid()) if IMMUTABLE not in given else PollRate(never=True)
    dataset = open_dataset(
        source,
        options.formats,
        TokenChecks(options.vocab_size),
        StorageOptions(options.read, poll_rate),
        planes=options.planes,
        share=True,
        stopped=stopped,
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
        self._rows = ServedDatasets(by_name)
        self._stopped = stopped
        self.provenance = Answers(self._rows.check, self._rows.redactor)
        """Answers Locate, Find and Coverage as a server does, from the messages of the contract."""
        # As in a server, so that a trainer that pauses finds out as early.
        self._poller = start_polling(datasets, stopped=stopped) if polls else None

    def describe(self, request: pb.DescribeRequest) -> pb.DescribeResponse:
        """Answer Describe as a server does, with the lists of redactions of now; rows of documents
        are made if there are none.

        Raises: TokenfeedError.
        """
        named = request.dataset
        for dataset in [self._rows.named(named)] if named else self._datasets:
            if dataset.redactions is not None:
                dataset.redactions.content_now()
        with _spelled():
            return self._rows.describe(
                request, lambda dataset, key: dataset.document_rows_now(key, self._stopped)
            )

    def reader(self, request: AnyRequest, expected: Expected) -> RowReader:
        """Return the reader of a request of one stage, once it is checked as by a server.

        Raises: TokenfeedError.
        """
        try:
            datasets, store, _ = self._rows.check(request, expected)
        except CorpusChanged as error:
            raise self.explained(error) from None
        return self._rows.reader(request, datasets, store)

    @staticmethod
    def explained(error: TokenfeedError) -> TokenfeedError:
        """Return an error of a reader with the cure for who reads the files."""
        if isinstance(error, CorpusChanged | Unreadable):
            return type(error)(error.subject, _for_readers(error.problem))
        return error

    def close(self) -> None:
        """Close the files. Blocks that are being read fail with CorpusChanged."""
        if self._poller is not None:
            self._poller.close()
        for dataset in self._datasets:
            dataset.close()


@functools.lru_cache(maxsize=1)
def _poll_rate(process: int) -> PollRate:
    """Return the rate limit of all datasets of a process. Not that of a fork's parent, which may
    have been locked when it forked.
    """
    return PollRate()


@contextmanager
def _spelled() -> Iterator[None]:
    """Raise InvalidCorpus with the options of a target in place of those of a command line."""
    try:
        yield
    except InvalidCorpus as error:
        raise error.spelled(_in_target) from None


def _in_target(option: Option) -> str:
    if option.name == DATA.name and option.value:  # with a path in quotation marks
        return f"{option.value[0]}file:{option.value[1:]}"
    return f"?{option.name}={option.value}" if option.value else f"?{option.name}"


def _refused(option: Option, problem: str) -> InvalidRequest:
    return InvalidRequest("target", f"{option.name} {problem}")


def _given(options: Mapping[str, str]) -> dict[Option, str]:
    """Return the options of a target with their values, and ~ expanded.  Raises: InvalidRequest."""
    given = {}
    for name, text in options.items():
        if name not in BY_NAME:
            problem = f"has no option {name!r}, only {', '.join(BY_NAME)}"
            raise InvalidRequest("target", f"{problem}; in a glob write * instead of ?")
        option = BY_NAME[name]
        given[option] = _path(option, text) if option in _PATHS else text
    return given


def _path(option: Option, text: str) -> str:
    try:
        found = os.path.expanduser(os.fsencode(text))
    except ValueError:
        found = b""
    if not found or b"\0" in found:
        raise _refused(option, f"is {text!r}; it takes a {_PATHS[option]}")
    return _from_here(os.fsdecode(found))


def _from_here(path: str) -> str:
    """Return a path that means the same after a change of the working folder."""
    return path if scheme_of(path) or os.path.isabs(path) else os.path.join(os.getcwd(), path)


def _for_readers(problem: str) -> str:
    """Return a problem of a store with the cure for who reads its files, not for its clients."""
    problem, _, _ = problem.partition("; ")
    if problem.endswith(CHANGED):
        what = "changed while it was read; start again with complete files"
        return f"{problem.removesuffix(CHANGED)}{what}; {_LOG_SAYS}"
    if problem.endswith(WRONG_TOKEN):
        cure = f"omit ?{VOCAB_SIZE.name} to check all tokens at the start"
        return f"{problem}; {cure}; {_LOG_SAYS}"
    return f"{problem}; {_LOG_SAYS}"


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
