"""Loss masks: found, checked, read with their rows, and never another mask."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.server.conftest import look_at_all, options
from tests.server.storage.formats.writing import megatron_index
from tests.support import reference
from tests.support.waiting import eventually, let_time_pass
from tokenfeed.errors import CorpusChanged, InvalidCorpus
from tokenfeed.sampling import orders
from tokenfeed.sampling.plan import plan
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.datasets.dataset import Dataset, start_polling
from tokenfeed.server.datasets.opening import TokenChecks, log_opened, open_dataset
from tokenfeed.server.datasets.options import PlaneOptions
from tokenfeed.server.datasets.sources import DatasetSource, parse_datasets
from tokenfeed.server.rows.reader import RowReader
from tokenfeed.server.storage.bytes import Extents
from tokenfeed.server.storage.door import StorageOptions
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.server.storage.local import choice, descriptors
from tokenfeed.server.storage.mixed_store import MixedStore
from tokenfeed.stream.planes import LOSS_MASK
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.request import Request
from tokenfeed.wire.row_block import Plane

T = 29
LENGTHS = (3000, 31, 1777)
Mask = npt.NDArray[np.uint8]
Masked = Callable[..., Dataset]


def random_masks(lengths: Sequence[int] = LENGTHS, seed: int = 1) -> list[Mask]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 2, length, dtype=np.uint8) for length in lengths]


@pytest.fixture
def masked(tmp_path: Path, storage: StorageOptions) -> Iterator[Masked]:
    """Open a dataset of files with masks beside them, or with masks that are named."""
    opened: list[Dataset] = []

    def open_masked(
        masks: Sequence[Mask],
        *,
        name: str = "x",
        named: bool = False,
        storage: StorageOptions = storage,
    ) -> Dataset:
        folder = tmp_path / f"{name}{len(opened)}"
        folder.mkdir()
        paths, mask_paths = [], []
        for index, mask in enumerate(masks):
            path = folder / f"{index}.{'bin' if named else 'ds'}"
            np.arange(1, mask.size + 1, dtype="<u2").tofile(path)
            mask_path = folder / f"mask-{index}.npy" if named else Path(f"{path}.loss")
            mask.tofile(mask_path)
            paths.append(str(path))
            mask_paths.append(str(mask_path))
        source = DatasetSource(name, tuple(paths))
        given = mask_paths if named else ()
        planes = PlaneOptions(given)
        opened.append(open_dataset(source, options(), TokenChecks(), storage, planes=planes))
        return opened[-1]

    yield open_masked
    for dataset in opened:
        dataset.close()


def rows_of(plane: Plane) -> list[bytes]:
    """The bytes of each row."""
    ends = np.cumsum(plane.row_lengths).tolist()
    return [plane.content[a:b].tobytes() for a, b in zip([0, *ends], ends, strict=False)]


def mask_of(dataset: Dataset) -> Path:
    """The first mask."""
    assert dataset.loss_mask is not None
    return Path(dataset.loss_mask.store.shards[0].path)


def planned(dataset: Dataset, order: str, rows: int = 10_000) -> Spans:
    stream = Stream.of_dataset("x", orders.latest(order), 5, T)
    return plan(stream, [dataset.store.shape], np.arange(rows))


def expected(masks: Sequence[Mask], spans: Spans) -> list[bytes]:
    """Row by row, by the second implementation."""
    return [
        reference.loss_mask_row(masks[shard].astype(bool).tolist(), first, T)
        for shard, first in zip(spans.shard.tolist(), spans.token_offset.tolist(), strict=True)
    ]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("order", ["random", "shuffled", "sequential"])
def test_each_row_has_the_mask_of_its_tokens(masked: Masked, order: str, named: bool) -> None:
    """10,000 rows of each order, against the files themselves."""
    masks = random_masks()
    dataset = masked(masks, named=named)
    spans = planned(dataset, order)

    found = [
        row
        for first in range(0, len(spans), 512)
        for row in rows_of(*dataset.store.gather_planes(spans[first : first + 512], (LOSS_MASK,)))
    ]

    assert found == expected(masks, spans)


def test_the_fingerprint_of_a_mask_is_the_published_one(masked: Masked) -> None:
    """So a server of another language has the same one."""
    masks = random_masks()

    dataset = masked(masks)

    entries = [mask.tobytes() for mask in masks]
    assert dataset.store.planes == {LOSS_MASK: reference.plane_fingerprint(LOSS_MASK, entries)}
    (plane,) = dataset.describe().planes
    assert (plane.kind, plane.fingerprint) == (LOSS_MASK, dataset.store.planes[LOSS_MASK])


def test_one_bit_of_a_mask_makes_another_plane(masked: Masked) -> None:
    """The tokens are the same, so only the fingerprint of the plane differs."""
    masks = random_masks()
    one = masked(masks)
    masks[1][7] ^= 1

    other = masked(masks)

    assert one.fingerprint == other.fingerprint
    assert one.store.planes != other.store.planes


def test_a_mask_beside_some_files_only_is_refused(masked: Masked, tmp_path: Path) -> None:
    """A lost mask would train a shard's prompts in silence."""
    dataset = masked(random_masks())
    paths = tuple(shard.path for shard in dataset.store.shards)
    os.unlink(f"{paths[1]}.loss")

    with pytest.raises(InvalidCorpus, match="has no loss mask, but another file") as caught:
        open_dataset(DatasetSource("x", paths), options(), TokenChecks())

    assert caught.value.subject == paths[1]
    assert "--loss-mask" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda mask: mask[:-1], "is a loss mask of 30 bytes, but "),
        (lambda mask: np.append(mask, mask[:1]), "is a loss mask of 32 bytes, but "),
        (lambda mask: np.append(mask[:-1], np.uint8(7)), "token 30 is 7, neither 0 nor 1"),
        (lambda mask: mask[:0], "is empty"),
    ],
)
def test_a_wrong_mask_is_refused_by_name(
    masked: Masked, tmp_path: Path, change: Callable[[Mask], Mask], problem: str
) -> None:
    """Before anything is served."""
    dataset = masked(random_masks())
    paths = tuple(shard.path for shard in dataset.store.shards)
    mask = Path(f"{paths[1]}.loss")
    change(np.fromfile(mask, np.uint8)).tofile(mask)

    with pytest.raises(InvalidCorpus, match=problem) as caught:
        open_dataset(DatasetSource("x", paths), options(), TokenChecks())

    assert caught.value.subject == str(mask)


def test_each_file_needs_a_named_mask(masked: Masked) -> None:
    """Two masks of three files leave open which files they are of."""
    dataset = masked(random_masks(), named=True)
    source = DatasetSource("x", tuple(shard.path for shard in dataset.store.shards))

    with pytest.raises(InvalidCorpus, match=r"2 file\(s\) of masks do not match 3 of tokens"):
        open_dataset(source, options(), TokenChecks(), planes=PlaneOptions([source.paths[0]] * 2))


@pytest.mark.parametrize("finder", ["gather", "poll"])
def test_a_mask_that_is_truncated_fails_its_dataset(masked: Masked, finder: str) -> None:
    """Half a mask is another mask; and tokens without it would be another training set."""
    masks = [np.ones(length, dtype=np.uint8) for length in (300_000, 300_000)]
    dataset = masked(masks)
    let_time_pass(mask_of(dataset))
    os.truncate(mask_of(dataset), 5000)

    if finder == "gather":
        spans = Spans.of_windows(T + 1, np.zeros(1, dtype=np.int64), np.array([299_000]))
        with pytest.raises(CorpusChanged, match="changed while it was served"):
            dataset.store.gather_planes(spans, (LOSS_MASK,))
    else:
        assert dataset.loss_mask is not None
        dataset.loss_mask.poll_file(0)

    assert dataset.store.files.failed


def test_a_byte_that_is_written_into_a_mask_is_found_by_polling(masked: Masked) -> None:
    """By the poller that a server starts for the dataset."""
    dataset = masked(random_masks())
    poller = start_polling([dataset])
    try:
        let_time_pass(mask_of(dataset))
        with open(mask_of(dataset), "r+b") as file:
            file.write(b"\1\0\1")
        assert eventually(lambda: dataset.store.files.failed)
    finally:
        poller.close()


def test_a_touched_mask_with_the_same_content_is_served_further(masked: Masked) -> None:
    """A backup tool changes times, not masks."""
    dataset = masked(random_masks())
    os.chmod(mask_of(dataset), 0o600)

    assert dataset.loss_mask is not None
    dataset.loss_mask.poll_file(0)
    look_at_all(dataset)

    assert not dataset.store.files.failed


@pytest.mark.parametrize(("planes", "is_advised"), [((LOSS_MASK,), True), ((), False)])
def test_a_cold_mask_is_read_ahead_for_those_who_want_it(
    masked: Masked, monkeypatch: pytest.MonkeyPatch, planes: tuple[int, ...], is_advised: bool
) -> None:
    """Each row would wait for a page of its mask, though its tokens are in memory."""
    dataset = masked(random_masks())
    assert dataset.loss_mask is not None
    mask = dataset.loss_mask.store
    advised: list[Extents] = []
    monkeypatch.setattr(mask.files, "seem_resident", lambda extents: False)
    monkeypatch.setattr(mask.files, "read_ahead", advised.append)
    dataset.store.files.readahead.cold = False  # type: ignore[attr-defined]
    assert not dataset.store.cold, "no client has wanted the mask"
    stream = Stream.of_dataset("x", orders.latest("shuffled"), 5, T)
    request = Request(stream, Position(0, 4), planes, num_batches=8)
    rows = RowReader(request, dataset.store, lambda: dataset.store)

    dataset.store.gather_planes(planned(dataset, "shuffled", 4), (LOSS_MASK,))
    mask.files.readahead.cold = True  # type: ignore[attr-defined]
    assert dataset.store.cold
    rows.take(4)

    assert bool(advised) is is_advised
    wanted = plan(stream, [dataset.store.shape], np.arange(32))
    for extents in advised:
        assert np.array_equal(extents.first_byte, mask.extents(wanted).first_byte)


def test_a_row_of_a_source_without_a_mask_has_no_bytes_of_it(
    masked: Masked, tmp_path: Path
) -> None:
    """In a mixture; each other row has the mask of its own source."""
    masks = random_masks()
    dataset = masked(masks)
    np.arange(500, dtype="<u2").tofile(tmp_path / "plain.bin")
    plain = open_dataset(
        DatasetSource("plain", (str(tmp_path / "plain.bin"),)), options(), TokenChecks()
    )
    random = np.random.default_rng(3)
    source = random.integers(0, 2, 400)
    shard = np.where(source, random.integers(0, len(masks), 400), 0)
    ends = np.where(source, np.array(LENGTHS)[shard], 500) - T
    spans = Spans(T + 1, source, shard, (random.random(400) * ends).astype(np.int64))

    try:
        (plane,) = MixedStore([plain.store, dataset.store]).gather_planes(spans, (LOSS_MASK,))
    finally:
        plain.close()

    wanted = [
        row if is_masked else b""
        for row, is_masked in zip(expected(masks, spans), source.tolist(), strict=True)
    ]
    assert rows_of(plane) == wanted


def test_masks_are_read_without_maps_where_a_process_may_have_no_more(
    masked: Masked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60,000 shards and their masks would be 120,000 maps; the kernel's limit is 65,530."""
    assert choice.fit_into_maps(10_000)
    assert not choice.fit_into_maps(1 << 31)
    monkeypatch.setattr(choice, "_MAPS_SPARE", 1 << 31)
    masks = random_masks()

    dataset = masked(masks, storage=StorageOptions())

    assert dataset.loss_mask is not None
    assert (dataset.store.files.kind, dataset.loss_mask.store.files.kind) == ("map", "pread")
    spans = planned(dataset, "random", 100)
    found = rows_of(*dataset.store.gather_planes(spans, (LOSS_MASK,)))
    assert found == expected(masks, spans)


def test_where_there_is_no_room_for_maps_the_cure_is_not_to_map(
    masked: Masked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --read map, the start would fail at the first mask behind the limit."""
    monkeypatch.setattr(choice, "_MAPS_SPARE", 1 << 31)
    monkeypatch.setattr(descriptors, "_SPARE", 1 << 31)

    with pytest.raises(InvalidCorpus, match="raise the hard limit of open files") as refused:
        masked(random_masks(), storage=StorageOptions())

    assert refused.value.problem.endswith(", or raise vm.max_map_count")


LAYOUTS = {
    "OLMo-core": ("token_ids_part_{:04}.npy", "labels_mask_part_{:04}.npy"),
    "Megatron": ("web{}_text_document.bin", "web{}_mask_document.bin"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("word", ["{}", "{}/*.[nb]*"])
@pytest.mark.parametrize("save", ["tofile", "numpy.save", "bool"])
def test_masks_that_a_layout_names_are_the_masks_of_their_files(
    tmp_path: Path, layout: str, word: str, save: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By name they come before the tokens, of which they would be a third."""
    masks = random_masks()
    for number, mask in enumerate(masks):
        tokens_path, mask_path = (tmp_path / name.format(number) for name in LAYOUTS[layout])
        tokens = np.arange(1, mask.size + 1, dtype="<u2")
        held = mask.astype(np.bool_) if save == "bool" else mask
        if save == "numpy.save" and layout == "OLMo-core":
            np.save(tokens_path, tokens)
            np.save(mask_path, held)
        else:
            tokens.tofile(tokens_path)
            held.tofile(mask_path)
        if layout == "Megatron":
            for path, code in ((tokens_path, 8), (mask_path, 1)):
                path.with_suffix(".idx").write_bytes(megatron_index([mask.size], [0], [0, 1], code))
    (source,) = parse_datasets([word.format(tmp_path)])

    with (
        caplog.at_level("INFO", "tokenfeed.server"),
        closing(open_dataset(source, options(), TokenChecks())) as dataset,
    ):
        log_opened(dataset)
        assert [Path(shard.path).name for shard in dataset.store.shards] == [
            LAYOUTS[layout][0].format(number) for number in range(3)
        ]
        assert dataset.loss_mask is not None
        spans = planned(dataset, "sequential")
        assert rows_of(dataset.loss_mask.read(spans)) == expected(masks, spans)
    assert f"loss mask opened dataset={source.name} files=3" in caplog.text


def test_a_file_without_the_mask_that_others_have_is_refused(tmp_path: Path) -> None:
    """Its tokens would all be targets."""
    for number in range(2):
        np.arange(500, dtype="<u2").tofile(tmp_path / f"token_ids_part_{number:04}.npy")
    np.ones(500, np.bool_).tofile(tmp_path / "labels_mask_part_0001.npy")
    (source,) = parse_datasets([str(tmp_path)])

    with pytest.raises(InvalidCorpus, match=r"token_ids_part_0000\.npy: has no loss mask, but"):
        open_dataset(source, options(), TokenChecks())


def test_a_file_that_is_called_a_mask_and_has_other_numbers_is_named(tmp_path: Path) -> None:
    """With a cure, since nobody named it."""
    np.save(tmp_path / "token_ids_part_0000.npy", np.arange(100, dtype="<u2"))
    np.save(tmp_path / "labels_mask_part_0000.npy", np.ones(100, dtype="<i8"))
    source = DatasetSource("x", (str(tmp_path / "token_ids_part_0000.npy"),))

    problem = "labels_mask_part_0000.npy: is taken for a loss mask, but has int64; save it as bool"
    with pytest.raises(InvalidCorpus, match=problem):
        open_dataset(source, FormatOptions(), TokenChecks())
