"""Feeds over corpora that nobody has: what is resumed can be proved without a file."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.client.feed.feed_stream import FeedStream
from tokenfeed.client.feed.first_stream import first_stream
from tokenfeed.client.feed.options import FeedOptions, checked
from tokenfeed.client.feed.requested_changes import reweighted
from tokenfeed.client.feed.resume import Resumption, resumed
from tokenfeed.client.feed.state import read_state
from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.source.plane_selection import PlaneSelection
from tokenfeed.errors import InvalidRequest, NotFound, StreamMismatch
from tokenfeed.sampling import orders
from tokenfeed.sampling.mixture_v1 import locate_all
from tokenfeed.stream.stage import Redactions, Source
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import Request


class Corpus(NamedTuple):
    """A dataset.

    files: tokens of each.  number: of its content; those with the same one are equal.  planes:
    number of the content of each plane, by its kind.  lists: hashes of its lists of redactions.
    """

    files: tuple[int, ...]
    number: int
    planes: Mapping[int, int] = {}
    lists: tuple[bytes, ...] = ()

    @property
    def fingerprint(self) -> bytes:
        return bytes([self.number]) * 32

    def rows(self, context_length: int) -> int:
        return sum(max(0, tokens - 1) // context_length for tokens in self.files)

    def described(self, name: str, context_length: int) -> pb.Dataset:
        found = pb.Dataset(
            name=name,
            token_bytes=2,
            token_count=sum(self.files),
            longest_file_tokens=max(self.files),
            file_count=len(self.files),
            fingerprint=self.fingerprint,
            redaction_lists=self.lists,
        )
        for kind, number in self.planes.items():
            found.planes.add(kind=kind, fingerprint=bytes([number]) * 32)
        for order in orders.ORDERS.values():
            if order.LONG_DOCUMENTS:
                pieces = bytes([self.number, context_length % 256]) * 16
                found.rows.add(order=order.NAME, rows=self.rows(context_length), pieces_hash=pieces)
            elif order.HAS_EPOCHS:
                found.rows.add(order=order.NAME, rows=self.rows(context_length))
        return found


Corpora = Mapping[str, Corpus]


@dataclass
class ImaginedDatasets:
    """The datasets of the sources of a stream."""

    corpora: Corpora
    stream: Stream
    planes: PlaneSelection
    closed: bool = False
    forked: bool = field(default=False, init=False)
    reads_documents: bool = field(default=False, init=False)
    counted: set[int] = field(default_factory=set, init=False)

    def require_own_process(self) -> None:
        """It has no threads."""

    def await_described(self) -> tuple[pb.Dataset, ...]:
        return self._described

    @cached_property
    def _described(self) -> tuple[pb.Dataset, ...]:
        length = self.stream.context_length
        names = map(self._name, self.stream.sources)
        return tuple(self.corpora[name].described(name, length) for name in names)

    def require_redactions(self, redactions: Redactions) -> None:
        names = {source.number: self._name(source) for source in self.stream.sources}
        for each in redactions:
            if each.list_hash not in self.corpora[names[each.source]].lists:
                raise StreamMismatch("target", f"lacks redaction list {each.list_hash.hex()}")

    def plane_fingerprints(self) -> tuple[tuple[tuple[int, bytes], ...], ...]:
        return self.planes.fingerprints(self.await_described())

    def read_documents(self) -> None:
        self.reads_documents = True

    def rows_of(self, order: str, context_length: int | None = None, *, place: int = 0) -> int:
        name, length = self._name(self.stream.sources[place]), self.stream.context_length
        length = context_length or length
        if self.closed and length not in self.counted:
            raise InvalidRequest("feed", "is closed")
        self.counted.add(length)
        return self.corpora[name].rows(length)

    def open_rows(self, request: Request, *, prefetch_bytes: int, counters: Counters) -> Any:
        raise NotImplementedError

    def end_with(self, owner: object) -> None:
        """It holds nothing."""

    def close(self) -> None:
        self.closed = True

    def _name(self, source: Source) -> str:
        """The dataset of a source; without a name it is the first one."""
        name = source.dataset or next(iter(self.corpora))
        if name not in self.corpora:
            raise NotFound("dataset", f"{name!r} is nowhere")
        return name


def feed_of(
    corpora: Corpora, batch_size: int = 1, context_length: int = 8, **options: Any
) -> FeedStream:
    """What a feed of these arguments reads, on one rank."""

    def open_datasets(_: object, request: Request, **more: Any) -> ImaginedDatasets:
        return ImaginedDatasets(corpora, request.stream, more["planes"].of_pieces(request.stream))

    defaults = {"rank": 0, "world_size": 1, "order": "shuffled"}
    found, _ = first_stream(
        "localhost:1",
        batch_size,
        context_length,
        checked(FeedOptions, defaults | options, "a feed"),
        open_datasets,
    )
    return found


def state_of(feed: FeedStream) -> dict[str, Any]:
    """As `state_dict`."""
    return feed.state_at(feed.cursor.current)


def load(feed: FeedStream, state: dict[str, Any], *, allow: Collection[str] = ()) -> Resumption:
    """As `load_state_dict`."""
    found = resumed(feed, read_state(state), allow, None)
    for message in found.messages:
        logging.getLogger("tokenfeed.client").warning("%s", message)
    return found


def deliver(feed: FeedStream, batches: int = 1) -> list[Row]:
    """Deliver batches, and return their rows."""
    found = []
    for _ in range(batches):
        first, stride = feed.cursor.sample, feed.request.position.stride
        feed.cursor.current = feed.cursor.after(first, first + stride, first + stride)
        found += rows_of(feed.known(), range(first, first + stride))
    return found


class Row(NamedTuple):
    """What the tokens of a row depend on."""

    fingerprint: bytes
    order: str
    seed: int
    context_length: int
    own_sample: int


def rows_of(stream: Stream, samples: Collection[int]) -> list[Row]:
    """The rows of samples of a known stream."""
    wanted = np.array(list(samples), dtype=np.int64)
    if not wanted.size:
        return []
    numbers, own = locate_all(stream, wanted)
    sources = {source.number: source for source in stream.sources}
    found = []
    for sample, number, own_sample in zip(
        wanted.tolist(), numbers.tolist(), own.tolist(), strict=True
    ):
        source, stage = sources[number], stream.stages[stream.place_of(sample)]
        assert source.corpus is not None
        name, length = source.order.NAME, stage.context_length
        found.append(Row(source.corpus.fingerprint, name, source.seed, length, own_sample))
    return found


def changed(
    feed: FeedStream, weights: Mapping[str, float], at_sample: int | None = None
) -> FeedStream:
    """As `change_mixture`."""
    found, _ = reweighted(feed, weights, at_sample, None)
    return found


def moved(feed: FeedStream, sample: int) -> FeedStream:
    """The same feed at another sample."""
    return replace(feed, cursor=feed.cursor.moved(sample))
