"""RemoteBatches against a scripted server: arguments, shapes, iteration."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from client import RemoteBatches
from tests.client.conftest import Message, ScriptedServer, honest
from tests.client.device.simulated_device import Device
from tests.conftest import Serve, WriteTokens
from tests.support.waiting import eventually
from tokenfeed.client.device.numpy_batch import Note
from tokenfeed.client.device.transfer import DirectTransfer, PinnedTransfer
from tokenfeed.errors import InvalidRequest, NotFound, SamplesExhausted, TokenfeedError
from tokenfeed.v1 import tokenfeed_pb2 as pb


def first_tokens(x: torch.Tensor) -> list[int]:
    return x[:, 0].tolist()


def test_a_batch_is_two_contiguous_int64_tensors_of_the_callers_shape(
    scripted: ScriptedServer,
) -> None:
    """What every model and loss expects."""
    with RemoteBatches(scripted.address, 4, 10, num_batches=1) as feed:
        x, y = next(feed)

    for tensor in (x, y):
        assert tensor.shape == (4, 10)
        assert tensor.dtype == torch.int64
        assert tensor.is_contiguous()
        assert tensor.device.type == "cpu"
    assert torch.equal(x[:, 1:], y[:, :-1])


def test_a_second_loop_continues_after_the_last_delivered_batch(scripted: ScriptedServer) -> None:
    """Breaking out of a loop loses nothing."""
    with RemoteBatches(scripted.address, 3, 5, num_batches=6) as feed:
        found = []
        for x, _ in feed:
            found += first_tokens(x)
            if len(found) == 6:
                break
        for x, _ in feed:
            found += first_tokens(x)

    assert found == list(range(18))


def test_batches_belong_to_the_caller(scripted: ScriptedServer) -> None:
    """list(feed) is right: no batch is overwritten by a later one."""
    with RemoteBatches(scripted.address, 3, 5, num_batches=50) as feed:
        batches = list(feed)

    assert [token for x, _ in batches for token in first_tokens(x)] == list(range(150))


@pytest.mark.parametrize("start", [{"start_step": 5}, {"start_sample": 30}])
def test_a_start_step_is_that_many_batches_of_all_ranks(
    scripted: ScriptedServer, start: dict[str, int]
) -> None:
    """start_step is sugar for a sample index at this batch size and world size."""
    with RemoteBatches(
        scripted.address, 3, 5, rank=1, world_size=2, num_batches=2, **start
    ) as feed:
        found = [first_tokens(x) for x, _ in feed]

    assert found == [[33, 34, 35], [39, 40, 41]]


def test_rows_that_are_missing_when_a_call_breaks_are_asked_for_and_no_others(
    scripted: ScriptedServer,
) -> None:
    """Of a list that a sampler made."""

    def breaks(request: Message, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield next(honest(request, context))
        context.abort(grpc.StatusCode.UNAVAILABLE, "away")

    scripted.windows_per_epoch, scripted.scripts = 100, [breaks, breaks]
    samples = [7, 7, 93, 0, 12, 50, 3, 99, 98]
    with RemoteBatches(scripted.address, 1, 5, rank=0, world_size=1) as feed:
        found = [int(x[0]) for x, _ in feed.as_dataset().__getitems__(samples)]

    assert found == samples
    asked = [list(each.samples) for each in scripted.requests if type(each) is pb.GetRowsRequest]
    assert asked == [samples, samples[3:], samples[6:]]
    assert scripted.requests[0].client_name


def test_no_batches_is_an_empty_loop(scripted: ScriptedServer) -> None:
    """A loop over what is left of a finished run."""
    assert list(RemoteBatches(scripted.address, 3, 5, num_batches=0)) == []


def test_the_constructor_does_no_io() -> None:
    """A config may be built on a machine that never sees the server."""
    threads = set(threading.enumerate())

    feed = RemoteBatches("no.such.host.invalid:50051", 32, 2048)

    assert set(threading.enumerate()) <= threads
    assert feed._datasets._replicas._known == {}


def test_an_iterator_that_is_let_go_of_leaves_no_thread(scripted: ScriptedServer) -> None:
    """Users do not call close() after a break."""
    for x, _ in RemoteBatches(scripted.address, 3, 5):
        assert first_tokens(x) == [0, 1, 2]
        break
    gc.collect()

    receivers = "tokenfeed-receiver"
    assert eventually(lambda: all(t.name != receivers for t in threading.enumerate()))


def test_a_closed_iterator_is_at_its_end(scripted: ScriptedServer) -> None:
    """Iterating on neither hangs nor reconnects."""
    feed = RemoteBatches(scripted.address, 3, 5)
    next(feed)
    feed.close()
    feed.close()

    assert list(feed) == []
    assert feed.state_dict()["sample"] == 3


def test_a_feed_closed_before_it_was_used_has_no_state(scripted: ScriptedServer) -> None:
    """What it was a position in was never asked for."""
    feed = RemoteBatches(scripted.address, 3, 5)
    feed.close()

    assert list(feed) == []
    with pytest.raises(InvalidRequest, match="is closed"):
        feed.state_dict()


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": -1}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"batch_size": "8"}, "batch_size"),
        ({"context_length": 0}, "context_length"),
        ({"context_length": -5}, "context_length"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"num_batches": -1}, "num_batches"),
        ({"start_step": -1}, "start_step"),
        ({"start_sample": -1}, "start_sample"),
        ({"start_step": 1, "start_sample": 1}, "start_sample"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": -1, "world_size": 2}, "rank"),
        ({"rank": 0, "world_size": 0}, "world_size"),
        ({"device": "gpu"}, "device"),
        ({"x_dtype": torch.float32}, "x_dtype"),
        ({"prefetch_bytes": -1}, "prefetch_bytes"),
        ({"target": "localhost"}, "target"),
        ({"target": ""}, "target"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_before_anything_is_sent(
    arguments: dict[str, Any], subject: str
) -> None:
    """A negative number would travel as a huge one."""
    given = {"target": "localhost:1", "batch_size": 2, "context_length": 4} | arguments

    with pytest.raises(InvalidRequest) as caught:
        RemoteBatches(**given)

    assert caught.value.subject == subject


def test_an_unknown_order_is_refused_before_anything_is_sent() -> None:
    """With the names that there are."""
    with pytest.raises(NotFound, match="is not one of random, shuffled, sequential"):
        RemoteBatches("localhost:1", 2, 4, order="shuffle")


@pytest.mark.parametrize(
    ("start", "limit"),
    [
        ({"start_step": 2**63}, 2**60 - 1),
        ({"start_step": 2**60}, 2**60 - 1),
        ({"start_sample": 2**63}, 2**63 - 8),
        ({"start_sample": 2**63 - 7}, 2**63 - 8),
    ],
)
def test_a_start_whose_samples_reach_2_63_is_refused_by_the_name_that_was_given(
    start: dict[str, int], limit: int
) -> None:
    """Samples have to fit an int64, and the user did not pass first_sample."""
    ((name, given),) = start.items()

    with pytest.raises(SamplesExhausted, match=rf"{given} is not in \[0, {limit}\]") as caught:
        RemoteBatches("localhost:1", 2, 4, rank=0, world_size=4, **start)

    assert caught.value.subject == name
    RemoteBatches("localhost:1", 2, 4, rank=0, world_size=4, **{name: limit})


@pytest.mark.parametrize("start", [{"start_step": 2**63}, {"start_step": 1}])
def test_a_wrong_size_is_named_before_the_start_that_it_makes_wrong(
    start: dict[str, int],
) -> None:
    """The start would be right with the right size."""
    for batch_size in (0, 2**70):
        with pytest.raises(InvalidRequest) as caught:
            RemoteBatches("localhost:1", batch_size, 4, **start)
        assert caught.value.subject == "batch_size"


def test_the_last_batches_below_sample_2_63_come_and_then_the_end(
    scripted: ScriptedServer,
) -> None:
    """An endless stream ends where the numbers do."""
    with RemoteBatches(scripted.address, 2, 4, start_sample=2**63 - 5) as feed:
        assert len(list(feed)) == 2


def test_every_error_is_a_tokenfeed_error_of_one_of_three_kinds() -> None:
    """One except clause catches what tokenfeed raises on purpose, and nothing else."""
    import client
    from tokenfeed import errors

    named = [getattr(client, name) for name in client.__all__]
    exported = [kind for kind in named if isinstance(kind, type) and issubclass(kind, Exception)]

    assert len(exported) >= 16
    for kind in exported:
        assert kind in vars(errors).values()
        assert issubclass(kind, TokenfeedError)
        if kind is not TokenfeedError:
            bases = (errors.RequestError, errors.CorpusError, errors.ServerUnavailable)
            assert issubclass(kind, bases)


def test_inputs_may_be_int32_and_targets_stay_int64(scripted: ScriptedServer) -> None:
    """Embeddings take either; cross_entropy takes only int64."""
    with RemoteBatches(scripted.address, 3, 5, x_dtype=torch.int32) as feed:
        x, y = next(feed)

    assert (x.dtype, y.dtype) == (torch.int32, torch.int64)
    assert first_tokens(x) == [0, 1, 2]


def test_a_batch_may_be_put_into_tensors_of_the_callers(scripted: ScriptedServer) -> None:
    """A captured graph reads the same memory at each replay."""
    x, y = torch.full((3, 5), -1), torch.full((3, 5), -1)
    with RemoteBatches(scripted.address, 3, 5, num_batches=2) as feed:
        assert feed.copy_into(x, y)
        assert first_tokens(x) == [0, 1, 2]
        assert feed.copy_into(x, y)
        assert first_tokens(x) == [3, 4, 5]
        assert not feed.copy_into(x, y)
        assert first_tokens(x) == [3, 4, 5]
        assert y.min() >= 0


MEMORY = torch.zeros(30, dtype=torch.int64)


@pytest.mark.parametrize(
    ("x", "y", "problem"),
    [
        (
            torch.empty(3, 4, dtype=torch.int64),
            torch.empty(3, 5, dtype=torch.int64),
            "x: has shape",
        ),
        (
            torch.empty(3, 5, dtype=torch.int64),
            torch.empty(5, 3, dtype=torch.int64),
            "y: has shape",
        ),
        (torch.empty(3, 5), torch.empty(3, 5, dtype=torch.int64), "x: is torch.float32"),
        (
            torch.empty(3, 5, dtype=torch.int64),
            torch.empty(3, 5, dtype=torch.int64, device="meta"),
            "y: is on meta",
        ),
        (MEMORY[:15].view(3, 5), MEMORY[14:29].view(3, 5), "y: shares memory with x"),
        (MEMORY[15:].view(3, 5), MEMORY[1:16].view(3, 5), "y: shares memory with x"),
    ],
)
def test_tensors_that_a_batch_does_not_fit_into_are_refused(
    x: torch.Tensor, y: torch.Tensor, problem: str
) -> None:
    """Before anything is sent, and named."""
    with pytest.raises(InvalidRequest, match=problem):
        RemoteBatches("localhost:1", 3, 5).copy_into(x, y)


def test_tensors_side_by_side_are_filled(scripted: ScriptedServer) -> None:
    """Parts of one tensor, which share no byte."""
    with RemoteBatches(scripted.address, 3, 5) as feed:
        assert feed.copy_into(MEMORY[15:].view(3, 5), MEMORY[:15].view(3, 5))

    assert first_tokens(MEMORY[15:].view(3, 5)) == [0, 1, 2]


def test_a_feed_that_is_refused_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks compare the n-th feed of each: with a device that one rank lacks, all later ones would
    be compared with others.
    """
    counted: list[Any] = []
    monkeypatch.setattr(
        "tokenfeed.client.feed.first_stream.rank_agreement", lambda *_: counted.append(1)
    )

    with pytest.raises(InvalidRequest, match="device"):
        RemoteBatches("localhost:1", 3, 5, device="no such device")
    assert counted == []
    RemoteBatches("localhost:1", 3, 5)
    assert counted == [1]


def test_an_interrupted_call_loses_nothing(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a notebook, and the cell is run again."""
    with RemoteBatches(scripted.address, 3, 5) as feed:
        found = first_tokens(next(feed)[0])
        with monkeypatch.context() as patch:

            def interrupted(*_: Any) -> None:
                raise KeyboardInterrupt

            patch.setattr("tokenfeed.client.device.host_transfer.widen_here", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(feed)
        found += first_tokens(next(feed)[0])

    assert found == list(range(6))


def test_a_device_without_a_ring_gets_the_same_batches(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPS and others: widened on the host, and copied."""
    monkeypatch.setattr(
        "tokenfeed.client.batches.remote.transfer_for",
        lambda *place, masks, note: DirectTransfer(place[1], place[2], place[0], masks),
    )
    with RemoteBatches(scripted.address, 3, 5, num_batches=4) as feed:
        batches = list(feed)

    assert [token for x, _ in batches for token in first_tokens(x)] == list(range(12))
    assert all((y == 0).all() for _, y in batches)


def test_a_device_with_a_ring_gets_the_same_batches(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call sends the following batch on its way, and none is lost in between."""
    device = Device()

    def staged(*place: Any, masks: tuple[int, ...], note: Note | None) -> PinnedTransfer:
        return PinnedTransfer(place[1], place[2], place[0], device, masks)

    monkeypatch.setattr("tokenfeed.client.batches.remote.transfer_for", staged)
    with RemoteBatches(scripted.address, 3, 5, num_batches=40) as feed:
        batches = [next(feed) for _ in range(13)]
        state = feed.state_dict()["sample"]
        feed.skip(3)
        batches += list(feed)
    device.finish()

    assert state == 39
    found = [token for x, _ in batches for token in first_tokens(x)]
    assert found == [*range(39), *range(42, 120)]


def test_a_batch_of_one_row_on_one_rank_is_a_batch(scripted: ScriptedServer) -> None:
    """2^63 batches are left then, which is one more than a number on the wire may say."""
    with RemoteBatches(scripted.address, 1, 5) as feed:
        assert first_tokens(next(feed)[0]) == [0]


def test_a_token_that_an_int32_cannot_hold_is_an_error(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """Cast, it would be a negative one."""
    tokens = np.full(1000, 2**31, dtype=np.int64)
    server = serve("--data", write_tokens(tokens, dtype="<u4"), "--dtype", "uint32")
    with RemoteBatches(server.address, 2, 8, x_dtype=torch.int32) as feed:
        with pytest.raises(InvalidRequest, match="x_dtype: token 2147483648 does not fit"):
            next(feed)
    with RemoteBatches(server.address, 2, 8) as feed:
        assert (next(feed)[0] == 2**31).all()


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [
        ({"dataset": 5}, "dataset"),
        ({"dataset": "\ud800"}, "dataset"),
        ({"order": 5}, "order"),
        ({"timeouts": 5.0}, "timeouts"),
        ({"timeouts": None}, "timeouts"),
        ({"credentials": {"tls_ca": "ca.pem"}}, "credentials"),
        ({"client_name": 17}, "client_name"),
        ({"client_name": "run-17\n"}, "client_name"),
        ({"client_name": "\ud800"}, "client_name"),
        ({"client_name": "n" * 129}, "client_name"),
        ({"device": "mps"}, "device"),
        ({"device": "meta"}, "device"),
    ],
)
def test_what_an_argument_cannot_be_is_said_before_anything_is_sent(
    arguments: dict[str, Any], subject: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        RemoteBatches("localhost:1", 2, 8, **arguments)

    assert caught.value.subject == subject


@pytest.mark.parametrize("name", ["run-17 rank 3", "größter Lauf", "n" * 128, ""])
def test_a_client_has_the_name_that_it_was_given(name: str) -> None:
    """By which a server's log names it."""
    assert RemoteBatches("localhost:1", 2, 8, client_name=name)._datasets.hints.client_name == name


@pytest.mark.parametrize(
    ("host", "shown"),
    [("node-4", "node-4"), ("a\nb\udcff", "a?b?"), ("n" * 255, "n" * 64)],
)
def test_a_client_is_named_by_its_machine_and_rank_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, host: str, shown: str
) -> None:
    """So that the one that is stuck can be found; whatever a machine is called, a feed begins."""
    monkeypatch.setattr("socket.gethostname", lambda: host)

    feed = RemoteBatches("localhost:1", 2, 8, rank=3, world_size=4)

    assert feed._datasets.hints.client_name == f"{shown} rank 3"


@pytest.mark.parametrize(
    "target",
    [
        "localhost:99999", "localhost:-1", "localhost:", ":50051", "http://localhost:50051",
        "a:1,b:2", "localhost:abc", "\ud800:1", "unix:", "a b:1", "dns:///:1",
    ],
)  # fmt: skip
def test_what_is_no_address_is_not_waited_for(target: str) -> None:
    """gRPC takes all of these; port 99999 would be 34463, which may be another server."""
    with pytest.raises(InvalidRequest, match="target"):
        RemoteBatches(target, 2, 8)


@pytest.mark.parametrize("target", ["localhost:1", "[::1]:1", "10.0.0.1:65535", "unix:/run/x"])
def test_what_is_an_address_is_taken(target: str) -> None:
    RemoteBatches(target, 2, 8)


def test_a_batch_in_many_frames_is_put_together_while_more_arrive(
    scripted: ScriptedServer,
) -> None:
    """The receiving thread appends to what the consumer walks along."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with RemoteBatches(scripted.address, 64, 5, num_batches=300) as feed:
            found = [token for x, _ in feed for token in first_tokens(x)]
    finally:
        sys.setswitchinterval(interval)

    assert found == list(range(64 * 300))


def test_a_feed_is_closed_by_another_thread_in_the_middle_of_a_loop(
    scripted: ScriptedServer,
) -> None:
    """The loop ends, as it does at the end of a stream."""
    for milliseconds in range(20):
        feed = RemoteBatches(scripted.address, 3, 5)
        next(feed)
        closing = threading.Timer(milliseconds / 1000, feed.close)
        closing.start()
        for _ in feed:
            pass
        closing.join()


def test_tensors_that_share_memory_are_refused(scripted: ScriptedServer) -> None:
    z = torch.zeros(3, 5, dtype=torch.int64)
    with RemoteBatches(scripted.address, 3, 5, device="cpu:0") as feed:
        for x, y in ((z, z), (z, torch.zeros(1, 5, dtype=torch.int64).expand(3, 5)), (None, z)):
            with pytest.raises(InvalidRequest):
                feed.copy_into(x, y)
        assert feed.copy_into(z, z.clone())
