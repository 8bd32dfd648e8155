"""A batch unpacks as x and y; what else it has is computed on first access."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.support.cuda import no_waits
from tests.support.rows_with_documents import rows_with_documents
from tokenfeed.client.device.documents import BatchDocuments
from tokenfeed.client.device.numpy_batch import BatchAttributes, HostPart, NumpyRichBatch
from tokenfeed.client.device.rich_batch import RichBatch
from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.planes import TOKEN_COUNTS

B, T = 3, 8
STARTS = [[3, 8], [], [1, 5]]
TOKENS = np.arange(B * (T + 1)).reshape(B, T + 1) + 40_000
MASKED = np.zeros((B, T), bool)
MASKED[0, -1] = MASKED[2, 2:5] = True

DOCUMENT_ATTRIBUTES = ("positions", "segment_ids", "cu_seqlens", "max_seqlen")
DOCUMENT_METHODS = ("cu_seqlens_fixed", "cu_seqlens_rows", "doc_lens")
Kind = Callable[..., BatchAttributes[Any]]


def as_tensors(dtype: type = np.int64, device: str = "cpu", **known: Any) -> RichBatch:
    """A batch of TOKENS, of which some targets are masked."""
    arguments = arguments_of(dtype, **known)
    x, y = (torch.from_numpy(arguments.pop(name)).to(device) for name in "xy")
    return RichBatch(x, y, **arguments)


def as_arrays(dtype: type = np.int64, **known: Any) -> NumpyRichBatch:
    return NumpyRichBatch(**arguments_of(dtype, **known))


def arguments_of(dtype: type, **known: Any) -> dict[str, Any]:
    host = HostPart.of(rows_with_documents(TOKENS, STARTS, split=2))
    if "documents" in known:
        host = host._replace(documents=known.pop("documents"))
    return {
        "x": TOKENS[:, :-1].astype(dtype),
        "y": np.where(MASKED, -100, TOKENS[:, 1:]),
        "host": host,
        "samples": lambda: np.array([70, 71, 72]),
        "sources": lambda: np.array([1, 0, 300]),
        "state_before": lambda: {"sample": 70},
        "state_after": lambda: {"sample": 76},
        **known,
    }


kinds = pytest.mark.parametrize("kind", [as_tensors, as_arrays])


@kinds
def test_a_batch_unpacks_as_x_and_y(kind: Kind) -> None:
    """A loop that takes pairs stays as it is."""
    batch = kind()

    x, y = batch

    assert x is batch.x
    assert y is batch.y
    assert x.tolist() == TOKENS[:, :-1].tolist()
    assert y.tolist() == np.where(MASKED, -100, TOKENS[:, 1:]).tolist()


@kinds
def test_tokens_are_whole_rows_also_where_a_target_is_masked(kind: Kind) -> None:
    """The last target of row 0 is -100 in y, but a token of the row."""
    tokens = kind().tokens

    assert tokens.tolist() == TOKENS.tolist()
    assert tokens.dtype in (torch.int64, np.int64)


@kinds
def test_the_loss_mask_is_where_y_is_not_ignored(kind: Kind) -> None:
    """Frameworks that take a mask ignore the same targets as those that take y."""
    mask = kind().loss_mask

    assert mask.tolist() == (~MASKED).tolist()
    assert mask.dtype in (torch.bool, np.bool_)


@kinds
def test_every_form_of_documents_is_that_of_the_starts(kind: Kind) -> None:
    """On the way to the device nothing changes, neither value nor type."""
    batch, documents = kind(), arguments_of(np.int64)["host"].documents

    found = [
        batch.positions,
        batch.segment_ids,
        batch.cu_seqlens,
        batch.cu_seqlens_fixed(),
        batch.cu_seqlens_fixed(20, 2),
        batch.cu_seqlens_rows(),
        batch.doc_lens()[0],
    ]

    expected = [
        documents.positions(),
        documents.segment_ids(),
        documents.cu_seqlens(),
        documents.cu_seqlens_fixed(),
        documents.cu_seqlens_fixed(20, 2),
        documents.cu_seqlens_rows(),
        documents.doc_lens()[0],
    ]
    assert [form.tolist() for form in found] == [form.tolist() for form in expected]
    assert [str(form.dtype).removeprefix("torch.") for form in found] == ["int64"] + ["int32"] * 6
    assert batch.max_seqlen == 8
    assert batch.doc_lens()[1] == [5, 8, 4]


@kinds
def test_origin_and_states_are_those_of_the_feed(kind: Kind) -> None:
    """For losses per source, and for trainers that hold a batch."""
    batch = kind()

    assert batch.sample.tolist() == batch.sample_numpy.tolist() == [70, 71, 72]
    assert batch.source.tolist() == batch.source_numpy.tolist() == [1, 0, 300]
    assert {batch.sample.dtype, batch.sample_numpy.dtype} <= {torch.int64, np.dtype(np.int64)}
    assert {batch.source.dtype, batch.source_numpy.dtype} <= {torch.int16, np.dtype(np.int16)}
    assert batch.state_before == {"sample": 70}
    assert batch.state_after == {"sample": 76}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_numpy_positions_and_tokens_have_the_type_of_x(dtype: type) -> None:
    """JAX works with int32, and would cut int64 silently."""
    batch = as_arrays(dtype)

    assert batch.positions.dtype == batch.tokens.dtype == batch.x.dtype == dtype
    assert batch.positions.tolist() == as_arrays().positions.tolist()
    assert batch.tokens.tolist() == TOKENS.tolist()


def test_tensors_are_int64_even_if_x_is_int32() -> None:
    """Embeddings take int32, losses and positions do not."""
    batch = as_tensors(np.int32)

    assert batch.x.dtype == torch.int32
    assert batch.positions.dtype == batch.tokens.dtype == torch.int64
    assert batch.tokens.tolist() == TOKENS.tolist()


class Counted(BatchDocuments):
    """Counts its computations."""

    computed = 0

    def positions(self, *arguments: Any) -> np.ndarray:
        Counted.computed += 1
        return super().positions(*arguments)


@kinds
def test_nothing_is_computed_before_it_is_asked_for_and_all_of_it_once(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes pairs pays for pairs."""
    monkeypatch.setattr(Counted, "computed", 0)
    names = ("samples", "sources", "state_before", "state_after")
    asked: list[str] = []

    def answer(name: str) -> Any:
        asked.append(name)
        return arguments_of(np.int64)[name]()

    batch = kind(
        documents=Counted(B, T, np.array([0, 1, 0]), np.array([4])),
        **{name: lambda name=name: answer(name) for name in names},
    )
    _, _ = batch
    assert repr(batch).endswith("3 x 8, 1 document starts>")
    assert (asked, Counted.computed) == ([], 0)

    for _ in range(2):
        assert batch.positions is batch.positions
        assert batch.sample is batch.sample
        assert batch.sample_numpy is batch.sample_numpy
        assert batch.source is batch.source
        assert batch.state_before is batch.state_before
        assert batch.state_after is batch.state_after
        assert batch.tokens is batch.tokens
        assert batch.loss_mask is batch.loss_mask

    assert asked == list(names)
    assert Counted.computed == 1


@kinds
def test_what_depends_on_unknown_documents_is_refused_and_the_rest_is_there(kind: Kind) -> None:
    """Positions that take each row for one document would leak from one into the next."""
    batch = kind(documents=None)

    for name in DOCUMENT_ATTRIBUTES:
        with pytest.raises(InvalidRequest, match=f"^{name}: needs .* --document-end-token"):
            getattr(batch, name)
    for name in DOCUMENT_METHODS:
        with pytest.raises(InvalidRequest, match=f"^{name}: needs .* --document-end-token"):
            getattr(batch, name)()
    assert batch.tokens.tolist() == TOKENS.tolist()
    assert batch.loss_mask.sum() == B * T - 4
    assert batch.state_after == {"sample": 76}


@kinds
def test_a_row_without_starts_in_a_stream_that_has_them_is_one_document(kind: Kind) -> None:
    """So says the contract for rows of a source without borders, in a mixture with others."""
    batch = kind(documents=BatchDocuments(B, T, np.zeros(B, np.int64), np.array([], np.int64)))

    assert batch.positions.tolist() == [list(range(T))] * B
    assert batch.cu_seqlens.tolist() == [0, T, 2 * T, 3 * T]


@kinds
def test_an_array_of_a_batch_is_the_callers_own(kind: Kind) -> None:
    """Writing into it must change no other attribute, and nothing of the feed."""
    known = np.array([70, 71, 72], np.uint64)
    known.setflags(write=False)
    batch = kind(samples=lambda: known)

    batch.sample[:] = 0
    batch.tokens[:] = 0
    batch.positions[:] = 0

    assert batch.sample_numpy.tolist() == [70, 71, 72]
    assert batch.sample_numpy.dtype == np.int64
    batch.sample_numpy[:] = 1
    assert batch.x.tolist() == TOKENS[:, :-1].tolist()
    assert batch.segment_ids.tolist() == kind().segment_ids.tolist()
    assert batch.cu_seqlens.tolist() == kind().cu_seqlens.tolist()


@kinds
def test_documents_are_unknown_if_one_source_does_not_know_them(kind: Kind) -> None:
    """Its rows come without starts, beside rows that have some, and would pass for one document."""
    parts = rows_with_documents(TOKENS, STARTS, split=2, counts=[9, None, 6])
    host = HostPart.of(parts, knows_documents=False, row_documents_max=4)

    batch = kind(host=host)

    assert host.documents is None
    for name in DOCUMENT_ATTRIBUTES:
        with pytest.raises(InvalidRequest, match=f"^{name}: needs to know where documents begin"):
            getattr(batch, name)
    assert batch.tokens.tolist() == TOKENS.tolist()


@kinds
def test_padding_is_segment_0_and_a_document_of_its_own(kind: Kind) -> None:
    """Attention has to be told something about every position, and a loss ignores it."""
    parts = rows_with_documents(TOKENS, STARTS, split=2, counts=[9, None, 6])

    batch = kind(host=HostPart.of(parts, row_documents_max=4))

    assert batch.segment_ids.tolist() == [
        [1, 1, 1, 2, 2, 2, 2, 2],
        [1, 1, 1, 1, 1, 1, 1, 1],
        [1, 2, 2, 2, 2, 3, 0, 0],
    ]
    assert batch.positions.tolist()[2] == [0, 0, 1, 2, 3, 0, 0, 1]
    assert batch.cu_seqlens.tolist() == [0, 3, 8, 16, 17, 21, 22, 24]
    assert batch.cu_seqlens_fixed().tolist() == [0, 3, 8, 16, 17, 21, 22] + [24] * 6
    assert batch.doc_lens()[0].tolist() == [[3, 5, 0, 0], [8, 0, 0, 0], [1, 4, 1, 2]]
    assert batch.max_seqlen == 8
    assert batch.padding_mask.tolist() == (batch.segment_ids == 0).tolist()
    assert batch.padding_mask.dtype in (torch.bool, np.bool_)


@kinds
def test_windows_have_no_padding_and_rows_of_pieces_have_it_without_known_documents(
    kind: Kind,
) -> None:
    """A model that routes tokens leaves padding out, whatever is known of documents."""
    unknown = HostPart.of(
        rows_with_documents(TOKENS, STARTS, counts=[9, None, 6]), knows_documents=False
    )

    assert not kind(documents=None).padding_mask.any()
    assert kind(host=unknown).padding_mask.sum(1).tolist() == [0, 0, 2]


@kinds
def test_the_number_of_targets_is_a_number_of_the_host(kind: Kind) -> None:
    """A sum of losses becomes a mean by it, and nothing waits for the device."""
    parts = rows_with_documents(TOKENS, STARTS, split=2, counts=[9, None, 6])

    batch = kind(host=HostPart.of(parts, masks=(TOKEN_COUNTS,)))

    # Of 24 targets two begin documents of row 0, two of row 2, and row 2 has three of padding; row
    # 1 is a window.
    assert type(batch.num_valid_targets) is int
    assert batch.num_valid_targets == 24 - 2 - 2 - 3


def test_a_model_of_transformers_gets_its_names() -> None:
    """labels=y alone would be shifted once more, and the loss would look sane."""
    batch = as_tensors()

    names = batch.as_kwargs("transformers")

    assert names["input_ids"] is batch.x
    assert names["labels"] is names["shift_labels"] is batch.y
    assert names["use_cache"] is False
    assert names["position_ids"] is batch.positions
    assert names["cu_seq_lens_q"] is names["cu_seq_lens_k"] is batch.cu_seqlens
    assert names["max_length_q"] == names["max_length_k"] == 8
    alone = as_tensors(documents=None).as_kwargs("transformers")
    assert sorted(alone) == ["input_ids", "labels", "shift_labels", "use_cache"]


def test_pieces_of_unknown_documents_are_given_to_no_model() -> None:
    """In a mixture with a source that does not know its own; they would attend to each other."""
    parts = rows_with_documents(TOKENS, STARTS, counts=[9, None, 6])
    batch = as_tensors(host=HostPart.of(parts, knows_documents=False))

    with pytest.raises(InvalidRequest, match=r"^as_kwargs: needs to know where documents begin"):
        batch.as_kwargs("transformers")


@kinds
def test_names_of_an_unknown_framework_are_refused_with_those_that_are_known(kind: Kind) -> None:
    """A guess would train on the wrong tokens."""
    with pytest.raises(InvalidRequest, match=r"^framework: 'keras' is not known, only transform"):
        kind().as_kwargs("keras")


class One(IterableDataset):
    """A dataset of one batch."""

    def __init__(self, batch: RichBatch) -> None:
        self.batch = batch

    def __iter__(self) -> Any:
        return iter([self.batch])


def test_a_dataloader_hands_a_batch_through() -> None:
    """It would turn a tuple, and what inherits from one, into a list without attributes."""
    batch = as_tensors()

    (found,) = DataLoader(One(batch), batch_size=None)

    assert found is batch


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nothing_that_a_batch_computes_waits_for_the_device() -> None:
    """The device is busy with steps that were enqueued before."""
    host, device = as_tensors(), as_tensors(device="cuda")
    # The first pinned memory is allocated here: that may wait.
    warm = as_tensors(device="cuda")
    assert all(form.is_cuda for form in (warm.positions, warm.tokens, warm.cu_seqlens))
    names = ("tokens", "positions", "segment_ids", "cu_seqlens", "loss_mask", "sample", "source")
    names += ("padding_mask",)
    torch.cuda._sleep(200_000_000)
    event = torch.cuda.Event()
    event.record()
    with no_waits():
        found = [getattr(device, name) for name in names]
        found += [device.cu_seqlens_fixed(), device.cu_seqlens_rows(), device.doc_lens()[0]]
        assert device.num_valid_targets == B * T
        assert device.as_kwargs("transformers")["input_ids"] is device.x
        was_done = event.query()

    assert not was_done, "the device was still busy"
    assert all(form.is_cuda for form in found)
    expected = [getattr(host, name) for name in names]
    expected += [host.cu_seqlens_fixed(), host.cu_seqlens_rows(), host.doc_lens()[0]]
    assert [form.tolist() for form in found] == [form.tolist() for form in expected]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_attributes_of_a_batch_are_no_part_of_a_graph() -> None:
    """Replayed, they would be those of this batch for ever."""
    batch = as_tensors(device="cuda")
    count = torch.zeros(1, device="cuda")

    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        count += 1
        with pytest.raises(InvalidRequest, match="CUDA graph"):
            assert batch.positions is not None
    torch.cuda.synchronize()
