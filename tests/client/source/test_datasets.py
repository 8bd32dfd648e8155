"""Datasets on servers and in files: whoever reads from one may read from the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteTokens
from tests.server.rpc.test_service import serving
from tests.support import reference
from tests.support.redacting import redact
from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.source.datasets import Datasets
from tokenfeed.client.source.files import Files
from tokenfeed.client.source.plane_selection import PlaneSelection
from tokenfeed.client.source.servers import Servers
from tokenfeed.client.transport.timeouts import Timeouts
from tokenfeed.errors import InvalidRequest, LimitExceeded, ListMissing, NotFound, StreamMismatch
from tokenfeed.sampling import orders
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.sources import parse_datasets
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.stream.planes import LOSS_MASK
from tokenfeed.stream.position import Position
from tokenfeed.stream.stage import Redaction
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.request import Request

B, T = 4, 8
Open = Callable[..., Datasets]


def wanted(order: str = "shuffled", batch_size: int = B, context_length: int = T) -> Request:
    stream = Stream.of_dataset("", orders.latest(order), 7, context_length)
    return Request(stream, Position(0, batch_size), num_batches=5)


@pytest.fixture(params=["servers", "files"])
def opened(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Open the datasets of a file, by a server or in this process."""
    with ExitStack() as stack:

        def open_datasets(path: Path, asked: Request, **options: Any) -> Datasets:
            if request.param == "files":
                found: Datasets = Files(f"file:{path}", asked, reconnect_seconds=5.0, **options)
            else:
                (source,) = parse_datasets([str(path)])
                dataset = open_dataset(source, FormatOptions(), TokenChecks())
                stack.callback(dataset.close)
                peer = stack.enter_context(serving({dataset.name: dataset}))
                timeouts = Timeouts(reconnect_seconds=5.0)
                found = Servers(peer.address, asked, timeouts=timeouts, **options)
            return stack.enter_context(closing(found))

        yield open_datasets


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(1000), "train.bin")


def received(datasets: Datasets, request: Request, prefetch_bytes: int) -> list[list[int]]:
    """All rows of a request."""
    rows = datasets.open_rows(request, prefetch_bytes=prefetch_bytes, counters=Counters())
    rows.start()
    found: list[list[int]] = []
    while parts := rows.peek(B):
        found += [row for part in parts for row in part.tokens.tolist()]
        rows.consume(B)
    rows.close()
    return found


@pytest.mark.parametrize("order", ["shuffled", "sequential", "random"])
def test_rows_are_those_of_the_second_implementation(opened: Open, path: Path, order: str) -> None:
    """A trainer goes from a laptop to a cluster by another target."""
    request = wanted(order)
    datasets = opened(path, request)

    name = request.stream.source.order.NAME
    row = reference.rows([path.read_bytes()], 2, name, 7, T, range(5 * B))
    expected = [np.frombuffer(each, "<u2").tolist() for each in row]
    assert received(datasets, request, 1 << 20) == expected


def test_rows_are_counted_for_any_context_length(opened: Open, path: Path) -> None:
    """Validation has another one, perhaps, and `plan` asks for all orders."""
    datasets = opened(path, wanted())

    assert datasets.rows_of("shuffled-1") == 999 // T
    assert datasets.rows_of("shuffled-1", 100) == 9
    assert datasets.rows_of("sequential-1") == 999 // T
    with pytest.raises(NotFound, match="order: the servers of this feed do not know later-7"):
        datasets.rows_of("later-7")


def test_a_required_fingerprint_is_required(
    opened: Open, path: Path, write_tokens: WriteTokens
) -> None:
    """The file may be last week's."""
    fingerprint = opened(path, wanted()).await_described()[0].fingerprint
    assert opened(path, wanted(), fingerprint=fingerprint).await_described()
    other = write_tokens(range(500), "other.bin")

    with pytest.raises(StreamMismatch, match="another corpus") as caught:
        opened(other, wanted(), fingerprint=fingerprint).await_described()

    assert fingerprint.hex() in caught.value.problem


def test_a_list_of_redactions_has_to_be_there(opened: Open, path: Path) -> None:
    """Else a run would learn again what it was told to leave out."""
    listed = bytes.fromhex(redact([path], (0, 5, 60)))
    datasets = opened(path, wanted())

    datasets.require_redactions((Redaction(8, 0, listed),))
    with pytest.raises(ListMissing, match=f"lacks redaction list {bytes(32).hex()}"):
        datasets.require_redactions((Redaction(8, 0, bytes(32)),))


@pytest.mark.parametrize(
    ("request_", "error", "problem"),
    [
        (
            wanted(context_length=1000),
            InvalidRequest,
            r"context_length: 1000 is not in \[1, 1000\)",
        ),
        (wanted(batch_size=1 << 20, context_length=999), LimitExceeded, "batch_size: a batch of 2"),
        (wanted("packed"), InvalidRequest, "order: packed-1 needs to know where documents begin"),
    ],
)
def test_what_cannot_be_read_is_refused_in_the_same_words(
    opened: Open, path: Path, request_: Request, error: type[Exception], problem: str
) -> None:
    """By the name of the argument, before the first row."""
    datasets = opened(path, request_)

    with pytest.raises(error, match=f"^{problem}"):
        received(datasets, request_, 1 << 20)


def test_planes_are_those_that_are_wanted_and_there(opened: Open, tmp_path: Path) -> None:
    """What a state compares when a run goes on."""
    tokens = tmp_path / "train.ds"
    np.arange(1000, dtype="<u2").tofile(tokens)
    (np.arange(1000) % 2).astype("u1").tofile(f"{tokens}.loss")

    (masked,) = opened(tokens, wanted()).plane_fingerprints()
    (plain,) = opened(tokens, wanted(), planes=PlaneSelection(loss_mask=False)).plane_fingerprints()

    assert [kind for kind, _ in masked] == [LOSS_MASK]
    assert plain == ()


def test_what_is_closed_says_so(opened: Open, path: Path) -> None:
    """From a thread that did not know it."""
    datasets = opened(path, wanted())
    datasets.close()
    datasets.close()

    assert datasets.closed
    with pytest.raises(InvalidRequest, match="feed: is closed"):
        datasets.await_described()
