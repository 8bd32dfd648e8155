"""The stores of local files and their gather, on real files: what both of them promise."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteTokens
from tests.server.conftest import look, options
from tests.support.gathering import gather_block
from tests.support.stores import map_store, pread_store
from tests.support.waiting import let_time_pass
from tokenfeed.errors import CorpusChanged, InvalidCorpus
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.storage.store import TokenStore

PAGE_TOKENS = 2048
Store = TokenStore
OpenCorpus = Callable[..., Store]


@pytest.fixture(
    params=[map_store, pread_store, partial(pread_store, open_max=1)], ids=["map", "pread", "few"]
)
def store_kind(request: pytest.FixtureRequest) -> Callable[..., Store]:
    """Return how to open a store; the last way keeps one file open."""
    found: Callable[..., Store] = request.param
    return found


@pytest.fixture
def open_corpus(store_kind: Callable[..., Store]) -> Iterator[OpenCorpus]:
    """Open stores that are closed after the test: open_corpus(path, ..., dtype="<u2")."""
    opened: list[Store] = []

    def start(*paths: Path, dtype: str = "<u2") -> Store:
        opened.append(store_kind("train", [str(path) for path in paths], options(dtype)))
        return opened[-1]

    yield start
    for store in opened:
        store.close()


def windows(row_tokens: int, *places: tuple[int, int]) -> Spans:
    shard, token_offset = np.array(places, dtype=np.int64).T
    return Spans.of_windows(row_tokens, shard.copy(), token_offset.copy())


def gathered(store: Store, row_tokens: int, *places: tuple[int, int]) -> list[list[int]]:
    rows: list[list[int]] = gather_block(store, windows(row_tokens, *places)).tokens.tolist()
    return rows


class Changing(list[str]):
    """Paths of files that change once all of them have been read."""

    def __init__(self, paths: Iterable[Path], change: Callable[[], object]) -> None:
        super().__init__(map(str, paths))
        self._change = change

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        self._change()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("grow", "changed while it was being opened"),
        ("remove", "cannot be read: No such file"),
        ("replace", "has a header that numpy cannot read"),
    ],
)
def test_a_shard_that_changes_between_listing_and_opening_is_named(
    write_tokens: WriteTokens, change: str, problem: str
) -> None:
    """It is still being written: half a corpus is another corpus."""
    one, two = (write_tokens(range(1, 10), name) for name in ("one.bin", "two.bin"))
    changes = {
        "grow": lambda: write_tokens(range(9000), "two.bin"),
        "remove": two.unlink,
        "replace": lambda: two.write_bytes(b"\x93NUMPY" + bytes(9)),
    }

    with pytest.raises(InvalidCorpus, match=rf"two\.bin: {problem}"):
        map_store("train", Changing([one, two], changes[change]), options("<u2"))


def test_rows_come_from_every_file_of_the_corpus(
    open_corpus: OpenCorpus, write_tokens: WriteTokens
) -> None:
    """One address range: a frame is one copy, however many files its rows lie in."""
    one = write_tokens(range(1, 10), "one.bin")
    two = write_tokens(range(100, 5000), "two.bin")
    corpus = open_corpus(one, two)

    rows = gathered(corpus, 4, (1, 4896), (0, 0), (1, 0), (0, 5), (1, 2046))

    assert rows == [
        [4996, 4997, 4998, 4999],
        [1, 2, 3, 4],
        [100, 101, 102, 103],
        [6, 7, 8, 9],
        [2146, 2147, 2148, 2149],
    ]


def test_uint32_tokens_are_gathered_whole(
    open_corpus: OpenCorpus, write_tokens: WriteTokens
) -> None:
    """A vocabulary beyond 65,536 needs them."""
    corpus = open_corpus(write_tokens([70_000, 2**32 - 1, 5], dtype="<u4"), dtype="<u4")

    assert gathered(corpus, 2, (0, 0), (0, 1)) == [[70_000, 2**32 - 1], [2**32 - 1, 5]]


def test_more_rows_than_one_system_call_takes_are_all_there(
    open_corpus: OpenCorpus, write_tokens: WriteTokens
) -> None:
    """The kernel takes 1,024 ranges at once; short rows make frames of many more."""
    corpus = open_corpus(write_tokens(range(1, 60_001)))

    rows = gathered(corpus, 2, *((0, i) for i in range(5000)))

    assert rows == [[i + 1, i + 2] for i in range(5000)]


@pytest.mark.parametrize("store_kind", [map_store])
def test_ten_thousand_files_leave_no_descriptor_open(
    open_corpus: OpenCorpus, tmp_path: Path
) -> None:
    """Corpora have more shards than processes may have descriptors."""
    before = len(os.listdir("/proc/self/fd"))
    paths = [tmp_path / f"{i:05}.bin" for i in range(10_000)]
    for i, path in enumerate(paths):
        path.write_bytes(np.array([i, i + 1, i + 2], dtype="<u2").tobytes())

    corpus = open_corpus(*paths)

    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert gathered(corpus, 3, (9999, 0), (0, 0)) == [[9999, 10_000, 10_001], [0, 1, 2]]


@pytest.mark.parametrize("size_tokens", [0, 1, 10 * PAGE_TOKENS, 10 * PAGE_TOKENS + 77])
def test_a_row_beyond_the_new_end_of_a_file_is_an_error_and_no_signal(
    open_corpus: OpenCorpus, write_tokens: WriteTokens, size_tokens: int
) -> None:
    """Reading it through the map in user space would end the process with SIGBUS."""
    path = write_tokens(np.arange(1, 20 * PAGE_TOKENS + 1) % 60_000 + 1)
    corpus = open_corpus(path)
    os.truncate(path, 2 * size_tokens)

    with pytest.raises(CorpusChanged, match="'train' changed"):
        gathered(corpus, 3000, (0, 17 * PAGE_TOKENS))


@pytest.mark.parametrize("cut_bytes", [1, 2, 3, 100, 2000, 4094])
@pytest.mark.parametrize("warm", [False, True])
def test_a_cut_within_the_last_page_is_noticed_although_it_reads_as_zeros(
    open_corpus: OpenCorpus, write_tokens: WriteTokens, cut_bytes: int, warm: bool
) -> None:
    """The kernel clears the rest of that page instead of reporting anything."""
    path = write_tokens(np.full(4 * PAGE_TOKENS, 0x0101))
    corpus = open_corpus(path)
    if warm:
        gathered(corpus, 10, (0, 0))
    os.truncate(path, path.stat().st_size - cut_bytes)

    with pytest.raises(CorpusChanged):
        gathered(corpus, PAGE_TOKENS, (0, 3 * PAGE_TOKENS))


@pytest.mark.parametrize("zeros", [50, PAGE_TOKENS, PAGE_TOKENS + 50, 17 * PAGE_TOKENS])
@pytest.mark.parametrize("are_written", [True, False])
def test_a_cut_is_noticed_where_the_file_ended_in_zeros(
    open_corpus: OpenCorpus, write_tokens: WriteTokens, zeros: int, are_written: bool
) -> None:
    """Then its last bytes look the same as before, and its size has to tell. What was never written
    is a hole, and is not even read.
    """
    tokens = np.full(20 * PAGE_TOKENS, 257)
    tokens[-zeros:] = 0
    path = write_tokens(tokens)
    if not are_written:
        os.truncate(path, 2 * (tokens.size - zeros))
        os.truncate(path, 2 * tokens.size)
    corpus = open_corpus(path)
    for _ in range(2):
        last = gathered(corpus, 60, (0, tokens.size - zeros - 10))[0]
        assert last == ([257] * 10 + [0] * zeros)[:60]
    os.truncate(path, path.stat().st_size - 2 * zeros - 200)

    with pytest.raises(CorpusChanged):
        gathered(corpus, 60, (0, tokens.size - zeros - 120))


def test_a_file_cut_and_grown_again_is_noticed(
    open_corpus: OpenCorpus, write_tokens: WriteTokens
) -> None:
    """Its size is what it was, and its content is zeros."""
    path = write_tokens(np.full(4 * PAGE_TOKENS, 257))
    corpus = open_corpus(path)
    gathered(corpus, 10, (0, 0))
    os.truncate(path, 0)
    os.truncate(path, 2 * 4 * PAGE_TOKENS)

    with pytest.raises(CorpusChanged):
        gathered(corpus, 10, (0, 5))


def test_a_file_is_not_lost_when_another_gather_finds_its_last_byte_meanwhile(
    open_corpus: OpenCorpus, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte that was read at one place says nothing of another."""
    tokens = np.full(60 * PAGE_TOKENS, 257)
    tokens[-40 * PAGE_TOKENS :] = 0
    corpus = open_corpus(write_tokens(tokens))
    right = corpus.files._read_bytes

    def read_while_another_gathers(*arguments: Any) -> Any:
        found = right(*arguments)
        monkeypatch.setattr(corpus.files, "_read_bytes", right)
        gathered(corpus, 10, (0, 50 * PAGE_TOKENS))
        return found

    monkeypatch.setattr(corpus.files, "_read_bytes", read_while_another_gathers)

    for _ in range(2):
        assert gathered(corpus, 10, (0, 50 * PAGE_TOKENS)) == [[0] * 10]


@pytest.mark.parametrize("zeros", [0, 1, PAGE_TOKENS, 5 * PAGE_TOKENS + 7, 40 * PAGE_TOKENS])
@pytest.mark.parametrize("grown_by", [0, 2, 5000])
@pytest.mark.parametrize("first_seen_by", ["gather", "scan"])
def test_a_hole_in_a_file_that_ended_in_zeros_is_told_from_growth(
    open_corpus: OpenCorpus,
    write_tokens: WriteTokens,
    zeros: int,
    grown_by: int,
    first_seen_by: str,
) -> None:
    """Cut to half and grown again between two frames: its end looks as it always did."""
    tokens = np.full(60 * PAGE_TOKENS, 257)
    tokens[tokens.size - zeros :] = 0
    path = write_tokens(tokens)
    corpus = open_corpus(path)
    gathered(corpus, 10, (0, 0))
    let_time_pass(path)
    os.truncate(path, 2 * 10 * PAGE_TOKENS)
    os.truncate(path, 2 * 60 * PAGE_TOKENS + grown_by)
    if first_seen_by == "scan":
        look(corpus)

    with pytest.raises(CorpusChanged):
        gathered(corpus, 3000, (0, 10 * PAGE_TOKENS - 20))


def test_once_a_file_was_found_truncated_nothing_more_is_delivered(
    open_corpus: OpenCorpus, write_tokens: WriteTokens
) -> None:
    """Half a corpus is another corpus: even rows that could still be read are refused."""
    path = write_tokens(np.full(20 * PAGE_TOKENS, 257))
    corpus = open_corpus(path)
    os.truncate(path, 100)
    with pytest.raises(CorpusChanged):
        gathered(corpus, 10, (0, 10 * PAGE_TOKENS))

    with pytest.raises(CorpusChanged):
        gathered(corpus, 10, (0, 0))


@pytest.mark.parametrize("change", ["replaced", "removed", "grown"])
def test_a_file_replaced_removed_or_grown_is_still_served(
    open_corpus: OpenCorpus, write_tokens: WriteTokens, change: str
) -> None:
    """The opened content is still there, whatever its name leads to now."""
    path = write_tokens([1, 2, 3, 0])
    corpus = open_corpus(path)
    if change == "replaced":
        write_tokens([9], "new.bin").replace(path)
    elif change == "removed":
        path.unlink()
    else:
        with path.open("ab") as file:
            file.write(b"\x05\x00")

    assert gathered(corpus, 4, (0, 0)) == [[1, 2, 3, 0]]


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (lambda path: os.truncate(path, path.stat().st_size - 1), True),
        (lambda path: path.write_bytes(path.read_bytes()), True),
        (lambda path: os.utime(path), True),
        (lambda path: path.write_bytes(b"\x07" * 40), True),
        (lambda path: path.unlink(), False),
        (lambda path: path.open("ab").write(b"12"), False),
        (lambda path: path.chmod(0o600), False),
    ],
    ids=[
        "cut",
        "written in place",
        "touched",
        "overwritten by a longer one",
        "removed",
        "grown",
        "permissions",
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_check_of_the_files_finds_what_reading_them_cannot(
    open_corpus: OpenCorpus,
    write_tokens: WriteTokens,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Path], Any],
    lost: bool,
) -> None:
    """Wrong tokens can be read as well as the right ones."""
    path = write_tokens([70_000, 80_000, 90_000], dtype="<u4")
    corpus = open_corpus(path, dtype="<u4")
    let_time_pass(path)
    change(path)

    look(corpus)
    look(corpus)

    if lost:
        with pytest.raises(CorpusChanged):
            gathered(corpus, 2, (0, 0))
    else:
        assert gathered(corpus, 2, (0, 1)) == [[80_000, 90_000]]
    assert len(caplog.messages) <= 1


def test_a_log_line_names_a_file_and_not_its_folder(
    open_corpus: OpenCorpus,
    write_tokens: WriteTokens,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """Logs travel further than files; and a name with a line break is still one line."""
    paths = [write_tokens([1, 2, 3], name) for name in ("one.bin", "two\n.bin")]
    corpus = open_corpus(*paths)
    paths[0].unlink()
    let_time_pass(paths[1])
    write_tokens([3, 2, 1], "two\n.bin")

    look(corpus)

    replaced, lost = caplog.messages
    assert "file=one.bin change=replaced or removed" in replaced
    assert r"'two\n.bin': truncated or written to" in lost
    assert str(tmp_path) not in caplog.text


def test_a_file_that_grew_once_is_still_checked(
    open_corpus: OpenCorpus, write_tokens: WriteTokens
) -> None:
    """The warning about it must not be the last thing that is noticed."""
    path = write_tokens([1, 2, 3])
    corpus = open_corpus(path)
    with path.open("ab") as file:
        file.write(b"\x04\x00")
    look(corpus)
    write_tokens([3, 2, 1])

    look(corpus)

    with pytest.raises(CorpusChanged):
        gathered(corpus, 2, (0, 0))


def test_zeros_that_belong_to_the_corpus_are_served(
    open_corpus: OpenCorpus, tmp_path: Path
) -> None:
    """Token 0 is a token; a sparse file is full of it."""
    path = tmp_path / "sparse.bin"
    path.touch()
    os.truncate(path, 1 << 40)
    corpus = open_corpus(path)

    assert gathered(corpus, 3, (0, 0), (0, (1 << 39) - 3)) == [[0, 0, 0], [0, 0, 0]]


def test_gathers_in_turn_use_the_same_memory(
    open_corpus: OpenCorpus, write_tokens: WriteTokens
) -> None:
    """Freshly faulted memory costs twenty times the copy."""
    corpus = open_corpus(write_tokens(range(1, 60_001)))
    gathered(corpus, 1000, *((0, i) for i in range(500)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    for _ in range(20):
        gather_block(corpus, windows(1000, *((0, i) for i in range(500))))

    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 1000


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "odd", "pipe", "link to nothing"])
def test_a_file_that_cannot_be_served_is_named(
    open_corpus: OpenCorpus, tmp_path: Path, kind: str
) -> None:
    """The operator reads which file and what is wrong with it."""
    path = tmp_path / "tokens.bin"
    make: dict[str, Callable[[], Any]] = {
        "missing": lambda: None,
        "folder": path.mkdir,
        "empty": path.touch,
        "odd": lambda: path.write_bytes(b"123"),
        "pipe": lambda: os.mkfifo(path),
        "link to nothing": lambda: path.symlink_to("nowhere"),
    }
    make[kind]()

    with pytest.raises(InvalidCorpus, match=r"tokens\.bin: ") as caught:
        open_corpus(path)

    assert caught.value.subject == str(path)
