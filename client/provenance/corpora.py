"""The datasets of a run, as a server has them now: their names, and whether they are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokenfeed.errors import StreamMismatch
from tokenfeed.sampling import orders
from tokenfeed.stream.parts import SourceValues, StreamParts
from tokenfeed.stream.position import Position
from tokenfeed.stream.spec import Source, StreamSpec
from tokenfeed.wire.request import Expected, StreamRequest

from ..local.choice import open_to_look
from ..local.provenance import QUESTION_SECONDS
from ..local.target import is_local_target
from ..stream.usable import Datasets, corpora_of, counted_rows, no_rows
from ..transport.channel import describe
from ..transport.credentials import with_environment
from .runs import Segment, segments

_PARTS = (
    ("fingerprint", "the fingerprint", "ask a server with that corpus, or pass --dataset"),
    ("pieces", "pieces of documents with the hash", "serve it with the same document borders"),
)


class Corpora:
    """The datasets of one target."""

    def __init__(self, target: str, dataset: str = "") -> None:
        """Ask nothing yet.

        dataset: name for streams of one dataset, whose saved states do not have it; by default the
        only dataset of the target, or the one with the fingerprint of the state.
        """
        self._target = target
        self._dataset = dataset
        self._served: dict[bytes, str] | None = None
        self._described: dict[tuple[tuple[Source, ...], int], Datasets] = {}

    def described(self, spec: StreamSpec) -> Datasets:
        """Return the description of each source; rows of orders over documents are waited for.

        Raises: TokenfeedError.
        """
        key = spec.sources, spec.context_length
        if key not in self._described:
            plain = replace(spec, redactions=(), planes=())
            request = StreamRequest(plain, Position(0, 1))
            dataset = open_to_look(self._target, request, QUESTION_SECONDS)
            try:
                self._described[key] = dataset.await_described()
            finally:
                dataset.close()
        return self._described[key]

    def parts(self, spec: StreamSpec) -> StreamParts:
        """Return a stream of these datasets as plain values.  Raises: TokenfeedError."""
        return spec.parts(corpora_of(spec, self.described(spec)))

    def segments(self, parts: StreamParts, first_sample: int, end_sample: int) -> list[Segment]:
        """Return the samples [first_sample, end_sample) of a stream, in parts that one request can
        ask for.

        Raises: StreamMismatch, naming what differs, if these datasets are not those of the stream;
        InvalidRequest for an order of a later release.
        """
        name = "" if parts.stages else self.name_of(parts.fingerprint)
        found = segments(parts, first_sample, end_sample, name)
        for spec in {id(each.spec): each.spec for each in found}.values():
            self._require_same(spec, [parts.each_source[number] for number in spec.numbers])
        return found

    def name_of(self, fingerprint: str) -> str:
        """Return the name of the dataset of a stream of one dataset.  Raises: TokenfeedError."""
        if self._dataset or is_local_target(self._target):
            return self._dataset
        if self._served is None:
            answer = describe(
                self._target, timeout_seconds=QUESTION_SECONDS, credentials=with_environment()
            )
            self._served = {each.fingerprint: each.name for each in reversed(answer.datasets)}
        return self._served.get(bytes.fromhex(fingerprint), "")

    def _require_same(self, spec: StreamSpec, saved: Sequence[SourceValues]) -> None:
        """Raise StreamMismatch, naming what differs, unless datasets are those that a run read.

        saved: of each source.
        """
        described = self.described(spec)
        corpora = corpora_of(spec, described)
        for values, dataset, now in zip(saved, described, corpora, strict=True):
            before = values.corpus
            for field, what, cure in _PARTS:
                old, new = getattr(before, field), getattr(now, field)
                if old != new:
                    raise StreamMismatch(
                        "dataset",
                        f"{dataset.name!r} at {self._target} has {what} {new.hex()}, but the run "
                        f"read {old.hex()}; {cure}",
                    )

    def alone(self, values: SourceValues, context_length: int) -> tuple[StreamSpec, Expected]:
        """Return a source as a stream of its own, and what is expected of a server.

        values: of a stream (`StreamParts.each_source`).
        Raises: TokenfeedError; StreamMismatch, as `segments`.
        """
        spec = StreamSpec.of_dataset(
            values.dataset or self.name_of(values.fingerprint),
            orders.find(values.order),
            values.seed,
            context_length,
            long_documents=values.long_documents,
        )
        self._require_same(spec, [values])
        identity = spec.identity([values.corpus])
        return spec, Expected(identity, spec.identity_version)

    def rows_per_epoch(self, spec: StreamSpec, place: int = 0) -> int | None:
        """Return the rows of an epoch of a source, at least 1; None for an order without epochs.

        place: of the source among the sources.
        Raises: TokenfeedError; InvalidRequest if there is no row.
        """
        order = spec.sources[place].order
        if not order.HAS_EPOCHS:
            return None
        dataset = self.described(spec)[place]
        rows = counted_rows(dataset, order.NAME)
        if not rows:
            raise no_rows(dataset, spec.context_length)
        return rows
