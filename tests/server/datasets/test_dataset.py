"""Opening a dataset: its fingerprint, and tokens that cannot be right."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import WriteTokens
from tests.server.conftest import look_at_all, options
from tests.support import reference
from tests.support.gathering import gather_block
from tests.support.waiting import let_time_pass
from tokenfeed.errors import CorpusChanged, InvalidCorpus
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.storage.door import StorageOptions
from tokenfeed.server.storage.formats import FormatOptions

OpenDataset = Callable[..., Dataset]


@pytest.fixture
def open_(storage: StorageOptions) -> Iterator[OpenDataset]:
    """Open datasets that are closed after the test."""
    opened: list[Dataset] = []

    def start(*paths: Path, dtype: str | None = None, checks: TokenChecks | None = None) -> Dataset:
        source = DatasetSource("train", tuple(map(str, paths)))
        opened.append(open_dataset(source, options(dtype), checks or TokenChecks(), storage))
        return opened[-1]

    yield start
    for dataset in opened:
        dataset.close()


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_the_fingerprint_is_the_published_one(
    open_: OpenDataset, write_tokens: WriteTokens, dtype: str
) -> None:
    """Blocks of 1 MiB that run over the borders of files, hashed in several threads."""
    random = np.random.default_rng(0)
    lengths = (300_001, 3, 1_500_000, 700_777)
    paths = [
        write_tokens(random.integers(0, 60_000, length), f"{index}.bin", dtype)
        for index, length in enumerate(lengths)
    ]

    dataset = open_(*paths, dtype=dtype)

    contents = [path.read_bytes() for path in paths]
    width = np.dtype(dtype).itemsize
    assert dataset.fingerprint == reference.fingerprint(f"uint{8 * width}", contents, width)


@pytest.mark.slow
def test_the_fingerprint_of_a_large_corpus_is_over_the_published_blocks(
    open_: OpenDataset, tmp_path: Path
) -> None:
    """Just above 1 GiB, over two sparse files with a few tokens in them."""
    sizes = (2**29 + 6, 2**29 - 2)
    paths = [tmp_path / f"{index}.bin" for index in range(2)]
    for path, size in zip(paths, sizes, strict=True):
        with path.open("wb") as file:
            file.truncate(size)
            for place in (0, size // 3 // 2 * 2, size - 2):
                file.seek(place)
                file.write(b"\x07\x01")

    dataset = open_(*paths)

    contents = [path.read_bytes() for path in paths]
    assert dataset.fingerprint == reference.fingerprint("uint16", contents, 2)


def test_one_token_changed_anywhere_is_another_fingerprint(
    open_: OpenDataset, write_tokens: WriteTokens
) -> None:
    """Up to 1 GiB it guards every token."""
    tokens = np.arange(1_200_000) % 5000
    fingerprints = {open_(write_tokens(tokens)).fingerprint}
    for place in (0, 599_999, 1_199_999):
        changed = tokens.copy()
        changed[place] += 1
        fingerprints.add(open_(write_tokens(changed)).fingerprint)

    assert len(fingerprints) == 4


def test_a_token_beyond_the_vocabulary_is_named_with_its_place(
    open_: OpenDataset, write_tokens: WriteTokens
) -> None:
    """An embedding fails on it hours later, on the device, without saying why."""
    tokens = np.zeros(3_000_000, dtype=int)
    tokens[2_345_678] = 50_257
    path = write_tokens(tokens)

    with pytest.raises(InvalidCorpus, match="token 2345678 is 50257, not below --vocab-size 50257"):
        open_(path, checks=TokenChecks(vocab_size=50_257))
    assert open_(path, checks=TokenChecks(vocab_size=50_258))


def above_1_gib(
    path: Path, first_byte: int = 0, content: bytes = b"", *, size_bytes: int = 2**30 + 2**22
) -> Path:
    """A file of zeros, so large that only a sample of it is checked, with some content. Its
    size decides where the sample lies.
    """
    path.touch()
    os.truncate(path, size_bytes)
    with path.open("r+b") as file:
        file.seek(first_byte)
        file.write(content)
    return path


def test_every_token_is_checked_on_request(open_: OpenDataset, tmp_path: Path) -> None:
    """Above 1 GiB only a sample is checked otherwise."""
    path = tmp_path / "sparse.bin"
    above_1_gib(path, 2 * 123_456_789, b"\xff\xff", size_bytes=2**30 + 2**21)

    open_(path, checks=TokenChecks(vocab_size=50_257))
    with pytest.raises(InvalidCorpus, match="token 123456789 is 65535"):
        open_(path, checks=TokenChecks(vocab_size=50_257, all_tokens=True))


@pytest.mark.parametrize(
    ("dtype", "token", "problem"),
    [
        ("<i4", -100, "token 70000 is -100, negative"),
        ("<i2", -1, "token 70000 is -1, negative"),
        ("<i8", 2**32, "token 70000 is 4294967296, above the maximum of uint32"),
        ("<u8", 2**63, "token 70000 is 9223372036854775808, above the maximum of uint32"),
    ],
)
def test_an_invalid_token_is_named_with_its_file_and_index(
    open_: OpenDataset, write_tokens: WriteTokens, dtype: str, token: int, problem: str
) -> None:
    """Also in the second file, and whether or not a vocabulary is known."""
    one = write_tokens(range(10), "one.bin", dtype)
    tokens = np.zeros(100_000, dtype)
    tokens[70_000] = token
    two = write_tokens(tokens, "two.bin", dtype)

    with pytest.raises(InvalidCorpus, match=rf"two\.bin: {problem}"):
        open_(one, two, dtype=dtype)
    with pytest.raises(InvalidCorpus, match=rf"two\.bin: token 70000 is {token}, "):
        open_(one, two, dtype=dtype, checks=TokenChecks(vocab_size=50_257))


def test_tokens_are_served_as_narrow_as_they_fit(
    open_: OpenDataset, write_tokens: WriteTokens
) -> None:
    """By the greatest of them, or by the vocabulary where it is known."""
    path = write_tokens([0, 50_256, 7], dtype="<i8")

    assert open_(path, dtype="<i8").store.dtype == np.dtype("<u2")
    known = TokenChecks(vocab_size=128_256)
    assert open_(path, dtype="<i8", checks=known).store.dtype == np.dtype("<u4")
    path = write_tokens([0, 65_536], dtype="<i4")
    assert open_(path, dtype="<i4").store.dtype == np.dtype("<u4")


@pytest.mark.slow
def test_a_large_corpus_is_scanned_in_full_before_it_is_narrowed(
    open_: OpenDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless the vocabulary is known: then a sample is, and what is served."""
    content = np.array([70_000, -1], "<i4").tobytes()
    path = above_1_gib(tmp_path / "sparse.npy", 4 * 123_456_789, content)

    with pytest.raises(InvalidCorpus, match="token 123456790 is -1, negative"):
        open_(path, dtype="<i4")
    store = open_(path, dtype="<i4", checks=TokenChecks(vocab_size=50_257)).store
    spans = Spans.of_windows(20, np.array([0]), np.array([123_456_780]))
    told = "'train' has a token that cannot be served; the log of its server says where"
    with pytest.raises(CorpusChanged, match=told):
        gather_block(store, spans)
    assert store.files.failed
    assert "sparse.npy: token 123456789 is 70000, which cannot be served; " in caplog.text


@pytest.mark.slow
def test_a_long_scan_of_all_tokens_logs_its_progress(
    open_: OpenDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A terabyte of int32 takes many minutes: a silent server would be taken for a dead one."""
    monkeypatch.setattr("tokenfeed.server.datasets.content._PROGRESS_SECONDS", 0.0)
    path = above_1_gib(tmp_path / "sparse.npy")

    with caplog.at_level("INFO"):
        assert open_(path, dtype="<i4").store.dtype == np.dtype("<u2")

    done = [float(line.partition("done=")[2][:-1]) for line in caplog.messages if "done=" in line]
    assert done == sorted(done)
    assert len(done) > 2
    assert done[-1] == 100.0


@pytest.mark.parametrize("shards", [1, 2])
def test_uint32_tokens_read_as_uint16_are_noticed(
    open_: OpenDataset, write_tokens: WriteTokens, shards: int
) -> None:
    """Every other token would be 0 or 1, and a model would learn it."""
    random = np.random.default_rng(0)
    paths = [
        write_tokens(random.integers(0, 128_256, 1001), f"{index}.bin", "<u4")
        for index in range(shards)
    ]

    with pytest.raises(InvalidCorpus, match=r"looks like uint32. Pass --dtype uint32"):
        open_(*paths)
    assert open_(*paths, dtype="<u4").store.shape.token_counts.tolist() == [1001] * shards
    assert open_(*paths, dtype="<u2")


def test_int64_tokens_read_as_uint16_are_noticed_for_what_they_are(
    open_: OpenDataset, write_tokens: WriteTokens
) -> None:
    """With the wrong type uint32, a server would deliver a 0 after each token."""
    path = write_tokens(np.random.default_rng(0).integers(0, 128_256, 1001), dtype="<i8")

    with pytest.raises(InvalidCorpus, match=r"looks like int64. Pass --dtype int64"):
        open_(path)
    assert open_(path, dtype="<i8").store.shape.token_counts.tolist() == [1001]


def test_each_file_whose_type_is_assumed_is_doubted_by_itself(
    open_: OpenDataset, tmp_path: Path
) -> None:
    """One file without metadata, among others with theirs."""
    tokens = np.random.default_rng(0).integers(0, 60_000, 1000)
    known, lost = tmp_path / "a.ds", tmp_path / "b.ds"
    tokens.astype("<u2").tofile(known)
    Path(f"{known}.metadata").write_text("gpt2|2\n1000\n1 KT")
    tokens.astype("<u4").tofile(lost)

    with pytest.raises(InvalidCorpus, match=r"b\.ds: every second token .* looks like uint32"):
        open_(known, lost)


@pytest.mark.parametrize("tokens", [[5, 0] * 20, [0, 1, 2, 3] * 1000, [0] * 5000, range(5000)])
def test_tokens_that_are_plausible_as_uint16_are_accepted(
    open_: OpenDataset, write_tokens: WriteTokens, tokens: list[int]
) -> None:
    """A tiny vocabulary, a tiny corpus, or a sparse file prove nothing."""
    assert open_(write_tokens(tokens))


def test_a_file_that_is_given_twice_is_refused(
    open_: OpenDataset,
    write_tokens: WriteTokens,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its rows would come twice in an epoch. Links are said: two shards of a cache may be equal."""
    path, link = write_tokens(range(1, 99)), tmp_path / "link.bin"
    link.symlink_to(path)

    with pytest.raises(InvalidCorpus, match=f"^{path}: is given twice; name it once"):
        open_(path, path)
    assert open_(path, link).store.shape.token_counts.tolist() == [98, 98]
    assert "files are there twice, by links dataset=train files=1 first=link.bin" in caplog.text


def test_a_dataset_that_cannot_be_opened_leaves_nothing_mapped(
    open_: OpenDataset, write_tokens: WriteTokens
) -> None:
    """A failed start in a long-lived process must not leak address space or descriptors."""
    path = write_tokens([9] * 100)
    descriptors = len(os.listdir("/proc/self/fd"))

    with pytest.raises(InvalidCorpus):
        open_(path, checks=TokenChecks(vocab_size=5))

    assert str(path) not in Path("/proc/self/maps").read_text()
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.fixture
def served(tmp_path: Path, storage: StorageOptions) -> Iterator[tuple[Path, Dataset]]:
    """A file of 10 kB and its dataset; what is done to it now shows in its times."""
    path = tmp_path / "train.bin"
    np.arange(1, 5000).astype("<u2").tofile(path)
    dataset = open_dataset(
        DatasetSource("train", (str(path),)), FormatOptions(), TokenChecks(), storage
    )
    let_time_pass(path)
    yield path, dataset
    dataset.close()


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4000)
        file.write(b"\7\7")


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\5\5")


def test_a_file_overwritten_with_its_modification_time_set_back_fails(
    served: tuple[Path, Dataset],
) -> None:
    """`rsync --inplace --times` does that."""
    path, dataset = served
    status = path.stat()
    overwrite(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    look_at_all(dataset)

    assert dataset.store.files.failed


def test_a_file_overwritten_with_invalid_tokens_fails_too(
    tmp_path: Path, storage: StorageOptions
) -> None:
    """It can be read, and is another."""
    path = tmp_path / "train.npy"
    np.save(path, np.arange(1, 5000, dtype="<i4"))
    dataset = open_dataset(
        DatasetSource("train", (str(path),)), FormatOptions(), TokenChecks(), storage
    )
    status = path.stat()
    let_time_pass(path)
    with path.open("r+b") as file:
        file.seek(4000)
        file.write(b"\xff" * 4)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    look_at_all(dataset)

    assert dataset.store.files.failed
    dataset.close()


@pytest.mark.parametrize("looks_between", [0, 1])
def test_a_file_that_has_grown_fails_once_its_opened_part_is_written_to(
    served: tuple[Path, Dataset], looks_between: int
) -> None:
    """Its end, which shows that it grew, shows nothing of its beginning."""
    path, dataset = served
    append(path)
    for _ in range(looks_between):
        look_at_all(dataset)
        assert not dataset.store.files.failed
    let_time_pass(path)
    overwrite(path)

    look_at_all(dataset)

    assert dataset.store.files.failed


def test_a_file_may_grow_again_and_again(served: tuple[Path, Dataset]) -> None:
    path, dataset = served
    for _ in range(3):
        append(path)
        look_at_all(dataset)

    assert not dataset.store.files.failed


def test_a_file_whose_mode_or_name_changes_is_served_on(
    served: tuple[Path, Dataset], caplog: pytest.LogCaptureFixture
) -> None:
    """Its content is read again, once, and is the same."""
    path, dataset = served
    path.chmod(0o600)
    look_at_all(dataset)
    let_time_pass(path)
    path.rename(path.with_name("other.bin"))
    path.with_name("other.bin").rename(path)
    look_at_all(dataset)
    look_at_all(dataset)

    assert not dataset.store.files.failed
    assert caplog.text == ""
