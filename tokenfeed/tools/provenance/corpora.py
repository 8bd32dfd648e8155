"""The datasets of a run, as a server has them now: their names, and whether they are the same."""

from __future__ import annotations

from dataclasses import replace

from tokenfeed.client.source.check import Descriptions, corpora_of, counted_rows, no_rows
from tokenfeed.client.source.file_target import is_local_target, parse_local_target
from tokenfeed.client.source.open_source import open_to_look
from tokenfeed.client.transport.channel import describe
from tokenfeed.client.transport.credentials import with_environment
from tokenfeed.errors import RequestError, StreamMismatch
from tokenfeed.sampling import orders
from tokenfeed.stream.position import Position
from tokenfeed.stream.stage import FIRST_PREVIOUS, Share, Source, Stage
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.request import Request

from .queries import QUESTION_SECONDS
from .runs import Segment, segments


class Corpora:
    """The datasets of one target."""

    def __init__(self, target: str, dataset: str = "") -> None:
        """Ask nothing yet.

        dataset: the name that the target has for the only dataset of a run; "" is that of the
        state, or where the target has another dataset of this name, or none, the name of one with
        the same fingerprint.
        """
        self._target = target
        self._dataset = dataset
        self._names: dict[bytes, list[str]] | None = None
        self._described: dict[tuple[tuple[Source, ...], int], Descriptions] = {}

    def described(self, stream: Stream) -> Descriptions:
        """Return the description of each source; rows of orders over documents are waited for.

        Raises: TokenfeedError.
        """
        sources = tuple(replace(source, corpus=None) for source in stream.sources)
        key = sources, stream.context_length
        if key not in self._described:
            plain = replace(stream, redactions=())
            dataset = open_to_look(self._target, Request(plain, Position(0, 1)), QUESTION_SECONDS)
            try:
                self._described[key] = dataset.await_described()
            finally:
                dataset.close()
        return self._described[key]

    def known(self, stream: Stream) -> Stream:
        """Return a stream with the corpora of the target.  Raises: TokenfeedError."""
        return stream.known(corpora_of(stream, self.described(stream)))

    def segments(self, stream: Stream, first_sample: int, end_sample: int) -> list[Segment]:
        """Return the samples [first_sample, end_sample) of a known stream, in parts that the target
        can be asked for.

        Raises: as `checked`; InvalidRequest for samples whose stage is not known any more.
        """
        return [self.checked(each) for each in segments(stream, first_sample, end_sample)]

    def checked(self, segment: Segment) -> Segment:
        """Return a segment with the names that the target has for its datasets.

        Raises: StreamMismatch, naming what differs, if they are not those that the run read;
        TokenfeedError.
        """
        return segment._replace(stream=self._own(segment.stream))

    def alone(self, source: Source, context_length: int) -> Stream:
        """Return a known source as a stream of its own.  Raises: as `checked`."""
        stage = Stage(0, 0, context_length, (Share(0, 1, 0),), FIRST_PREVIOUS)
        return self._own(Stream(source.seed, (replace(source, number=0),), (stage,)))

    def name_of(self, source: Source) -> str:
        """Return the name that the target has for the dataset of a known source.

        Raises: TokenfeedError.
        """
        if self._dataset:
            return self._dataset
        if self._names is None:
            self._names = {}
            for dataset in self._served():
                self._names.setdefault(dataset.fingerprint, []).append(dataset.name)
        assert source.corpus is not None
        names = self._names.get(source.corpus.fingerprint, [])
        return source.dataset if source.dataset in names or not names else names[0]

    def _served(self) -> Descriptions:
        """Return the descriptions of all datasets; none if the target is files of several ones."""
        if not is_local_target(self._target):
            answer = describe(
                self._target, timeout_seconds=QUESTION_SECONDS, credentials=with_environment()
            )
            return tuple(answer.datasets)
        if len(parse_local_target(self._target).words) > 1:
            return ()
        try:
            return self.described(Stream.of_dataset("", orders.latest("sequential"), 0, 1))
        except RequestError:
            return ()  # a folder with several ones

    def _own(self, stream: Stream) -> Stream:
        """Return a known stream of one stage with the names of the target.  Raises: as
        `checked`.
        """
        sources = tuple(replace(each, dataset=self.name_of(each)) for each in stream.sources)
        stream, length = replace(stream, sources=sources), stream.context_length
        described = self.described(stream)
        now = corpora_of(stream, described)
        for source, dataset in zip(sources, described, strict=True):
            before, after = source.corpus, now[source.number]
            assert before is not None
            for what, cure, old, new in (
                (
                    "the fingerprint",
                    "ask a server with that corpus, or pass --dataset",
                    before.fingerprint,
                    after.fingerprint,
                ),
                (
                    "pieces of documents with the hash",
                    "serve it with the same document borders",
                    before.pieces_at(length),
                    after.pieces_at(length),
                ),
            ):
                if old != new:
                    raise StreamMismatch(
                        "dataset",
                        f"{dataset.name!r} at {self._target} has {what} {new.hex()}, but the run "
                        f"read {old.hex()}; {cure}",
                    )
        return stream

    def rows_per_epoch(self, stream: Stream) -> int | None:
        """Return the rows of an epoch of a stream over one dataset, at least 1; None for an order
        without epochs.

        Raises: TokenfeedError; InvalidRequest if there is no row.
        """
        order = stream.source.order
        if not order.HAS_EPOCHS:
            return None
        (dataset,) = self.described(stream)
        rows = counted_rows(dataset, order.NAME)
        if not rows:
            raise no_rows(dataset, order, stream.context_length)
        return rows
