"""The datasets and the rows of opened files, as a feed asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.source.calls import Calls
from tokenfeed.client.source.describe import describe_sources
from tokenfeed.client.source.file_rows import FileRows
from tokenfeed.server.open_local import LocalDatasets
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import Request
from tokenfeed.wire.row_block import RowBlock


def described(opened: LocalDatasets, context_length: int) -> Sequence[pb.Dataset]:
    """All datasets."""
    return opened.describe(pb.DescribeRequest(context_length=context_length)).datasets


def described_sources(opened: LocalDatasets, stream: Stream) -> tuple[pb.Dataset, ...]:
    """The dataset of each source; rows of documents are made."""
    answer = describe_sources(stream, stream.context_length, "the target", opened.describe)
    return tuple(answer.datasets)


def calls_of(opened: LocalDatasets, request: Request) -> Calls:
    """The calls of a request."""
    return Calls(request, described_sources(opened, request.stream))


class Blocks:
    """The rows of a request, whose stream may have several stages; nothing is tried again."""

    def __init__(self, opened: LocalDatasets, request: Request) -> None:
        calls = calls_of(opened, request)
        self._rows = FileRows(
            SimpleNamespace(closed=False),
            lambda _: (opened, calls),
            Counters(),
            reconnect_seconds=0.0,
            rows_ahead=0,
        )

    def next(self) -> RowBlock | None:
        return self._rows._block()
