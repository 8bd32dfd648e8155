"""Changes of opened files: what a check finds, what it does not, and what causes a reread."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteTokens
from tests.server.conftest import look, options
from tests.support.gathering import gather_block
from tests.support.stores import STORES, map_store
from tests.support.waiting import eventually, let_time_pass
from tokenfeed.errors import CorpusChanged, Unreadable
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.datasets.warmup import warm
from tokenfeed.server.runtime.threads.poll_rate import PollRate
from tokenfeed.server.storage.bytes import Extents, run_inline
from tokenfeed.server.storage.door import StorageOptions
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.server.storage.local import watched_bytes
from tokenfeed.server.storage.local.safe_copy import FILES_AT_ONCE
from tokenfeed.server.storage.local.watched_bytes import FailedRead
from tokenfeed.server.storage.store import TokenStore

Store = TokenStore
Open = Callable[..., Store]
PIECE_BYTES = 1 << 20


@pytest.fixture
def open_store(storage: StorageOptions, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    monkeypatch.setattr(watched_bytes, "_PAUSES_SECONDS", (0.001,) * 4)
    stores: list[Any] = []

    def start(*paths: Path, poll_rate: PollRate | None = None) -> Any:
        kind = STORES[storage.read or ""]
        stores.append(
            kind("train", [str(path) for path in paths], options("<u2"), poll_rate or PollRate())
        )
        return stores[-1]

    yield start
    for store in stores:
        store.close()


def refusing(code: int) -> Callable[..., Any]:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT])
def test_a_stat_that_fails_is_logged_once_and_changes_nothing(
    open_store: Open,
    write_tokens: WriteTokens,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
) -> None:
    """It is unknown whether the file is there: it is still served, and checked again."""
    paths = [write_tokens(range(1, 9), f"{index}.bin") for index in range(3)]
    store = open_store(*paths)
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refusing(code))
        for _ in range(3):
            look(store)

    (line,) = caplog.messages
    reason = os.strerror(code)
    assert line == f"check failed, still serving dataset=train file=0.bin reason={reason}"
    look(store)
    paths[1].unlink()
    look(store)
    assert "file=1.bin change=replaced or removed" in caplog.messages[1]
    assert not store.files.failed


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ENOTDIR])
def test_a_file_that_is_not_there_any_more_was_removed(
    open_store: Open,
    write_tokens: WriteTokens,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
) -> None:
    store = open_store(write_tokens(range(1, 9)))
    monkeypatch.setattr(os, "stat", refusing(code))

    look(store)

    assert "replaced or removed" in caplog.text


def test_a_file_is_looked_at_where_it_is_although_links_lead_elsewhere_by_now(
    open_store: Open, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    """The corpus of a link that was turned is the next one to be written to."""
    old = write_tokens(range(1, 9), "old/a.bin")
    write_tokens(range(1, 9), "new/a.bin")
    (tmp_path / "current").symlink_to("old")
    store = open_store(tmp_path / "current" / "a.bin")
    (tmp_path / "next").symlink_to("new")
    (tmp_path / "next").rename(tmp_path / "current")
    look(store)
    assert not store.files.failed

    let_time_pass(old)
    with old.open("r+b") as file:
        file.write(b"other")
    look(store)

    assert store.files.failed


@pytest.mark.parametrize(("then", "lost"), [(True, False), (False, True)])
def test_a_reread_that_fails_is_repeated_after_the_next_check(
    open_store: Open,
    write_tokens: WriteTokens,
    monkeypatch: pytest.MonkeyPatch,
    then: bool,
    lost: bool,
) -> None:
    """Its new time is known by then, so nothing else would cause another reread."""
    monkeypatch.setattr(watched_bytes, "_REREAD_PAUSE", 0)
    path = write_tokens(np.arange(1, 5000))
    other = write_tokens(np.arange(1, 9), "other.bin")
    store = open_store(path, other)
    let_time_pass(path)
    path.chmod(0o600)
    answers = [None, None, then]

    store.files.poll_file(0, lambda: answers.pop(0), run_inline)
    store.files.poll_file(1, lambda: answers.pop(0), run_inline)
    assert not store.files.failed
    store.files.poll_file(0, lambda: answers.pop(0), run_inline)
    store.files.poll_file(1, lambda: pytest.fail("it was reread"), run_inline)

    assert answers == []
    assert store.files.failed is lost


def failing(store: Store, shard: int, failures: float) -> Callable[[Extents, Any], None]:
    """Reads bytes as a store does, but a shard only after some failures."""
    right = store.files._read

    def read(extents: Extents, target: Any) -> None:
        nonlocal failures
        if (extents.file == store.files.first_file + shard).any() and failures > 0:
            failures -= 1
            raise FailedRead(shard, OSError(errno.EIO, os.strerror(errno.EIO)))
        right(extents, target)

    return read


def row_of(store: Store, shard: int, patient: bool = True) -> list[int]:
    """The first tokens of a shard."""
    spans = Spans.of_windows(4, np.array([shard]), np.zeros(1, dtype=np.int64))
    tokens: list[int] = gather_block(store, spans, patient=patient).tokens[0].tolist()
    return tokens


def test_an_error_that_goes_away_fails_no_dataset_although_its_file_was_replaced(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators are told to replace files by rename."""
    path = write_tokens(range(1, 9))
    store = open_store(path)
    os.replace(write_tokens(range(11, 19), "new.bin"), path)
    monkeypatch.setattr(store.files, "_read", failing(store, 0, 4))

    assert row_of(store, 0) == [1, 2, 3, 4]


def test_a_removed_file_that_cannot_be_read_fails_the_dataset_unless_a_descriptor_is_open(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been truncated; with a descriptor its size is still known."""
    path = write_tokens(range(1, 9))
    store = open_store(path)
    path.unlink()
    monkeypatch.setattr(store.files, "_read", failing(store, 0, np.inf))

    with pytest.raises(CorpusChanged if store.files.kind == "map" else Unreadable):
        row_of(store, 0)
    assert store.files.failed is (store.files.kind == "map")


def test_many_retries_of_one_file_do_not_block_another_file(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More retries than concurrent gathers are allowed."""
    monkeypatch.setattr(watched_bytes, "_PAUSES_SECONDS", (60.0,))
    store = open_store(write_tokens(range(1, 9), "sick.bin"), write_tokens(range(11, 19)))
    tries: list[int] = []
    right = failing(store, 0, np.inf)
    monkeypatch.setattr(
        store.files, "_read", lambda extents, target: (tries.append(0), right(extents, target))
    )

    def wait() -> None:
        with suppress(CorpusChanged, Unreadable):
            row_of(store, 0)

    waiting = [threading.Thread(target=wait) for _ in range(FILES_AT_ONCE + 1)]
    found: list[list[int]] = []
    other = threading.Thread(target=lambda: found.append(row_of(store, 1, patient=False)))
    for thread in waiting:
        thread.start()
    try:
        assert eventually(lambda: len(tries) >= FILES_AT_ONCE)
        other.start()
        other.join(10)
        assert found == [[11, 12, 13, 14]]
        assert all(thread.is_alive() for thread in waiting)
    finally:
        store.close()
        for thread in [*waiting, other]:
            thread.join()


def test_files_that_never_change_are_not_checked(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to store a digest either; but a dataset that failed stays failed."""
    store = open_store(write_tokens(range(1, 9)), poll_rate=PollRate(never=True))
    monkeypatch.setattr(os, "stat", refusing(errno.EIO))

    assert store.files.unchanged_since(store.files.facts, lambda: False)
    store.close()
    assert not store.files.unchanged_since(store.files.facts, lambda: False)


def test_a_file_of_zeros_that_never_changes_is_not_checked_for_its_rows(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end cannot tell a truncation, and no stat call is made."""
    poll_rate = PollRate(never=True)
    store = open_store(write_tokens(np.zeros(2 << 20)), poll_rate=poll_rate)
    monkeypatch.setattr(poll_rate, "wait_turn", lambda: pytest.fail("it was checked"))

    for _ in range(2):
        spans = Spans.of_windows(9, np.zeros(1, dtype=np.int64), np.array([100]))
        assert not gather_block(store, spans).tokens.any()


def test_a_file_touched_since_is_not_unchanged(open_store: Open, write_tokens: WriteTokens) -> None:
    store = open_store(write_tokens(range(1, 9), "one.bin"), write_tokens(range(1, 9), "two.bin"))
    facts = store.files.facts
    assert store.files.unchanged_since(facts, lambda: False)
    assert not store.files.unchanged_since(facts, lambda: True)
    path = Path(store.shards[1].path)
    let_time_pass(path)
    path.chmod(0o600)

    assert not store.files.unchanged_since(facts, lambda: False)


def test_a_warm_up_ends_at_a_file_that_was_cut(open_store: Open, write_tokens: WriteTokens) -> None:
    """It ends where the file ends, in both stores."""
    path = write_tokens(np.full(4 * PIECE_BYTES // 2, 7))
    store = open_store(path)

    def cut() -> bool:
        os.truncate(path, PIECE_BYTES + 100)
        return False

    assert warm(store, cut) == PIECE_BYTES


def test_a_warm_up_tells_how_far_it_is(open_store: Open, write_tokens: WriteTokens) -> None:
    """Its metric and the status page show it."""
    tokens = np.random.default_rng(3).integers(1, 1 << 16, 1_300_000)
    store = open_store(
        write_tokens(tokens[:700_001], "a.bin"), write_tokens(tokens[700_001:], "b.bin")
    )

    told = list(store.files.bring_in())

    assert told == sorted(set(told))
    assert told[-1] == store.files.memory_bytes


def test_a_warm_up_counts_the_bytes_behind_the_tokens_of_the_last_file_too(
    tmp_path: Path, storage: StorageOptions
) -> None:
    """Another tensor, for example, which need not be read."""
    header = json.dumps({
        "tokens": {"dtype": "U16", "shape": [4], "data_offsets": [0, 8]},
        "others": {"dtype": "U16", "shape": [50], "data_offsets": [8, 108]},
    }).encode()  # fmt: skip
    paths = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    for path in paths:
        path.write_bytes(len(header).to_bytes(8, "little") + header + b"\1\0" * 54)
    words = FormatOptions.parse(None, None, "tokens")
    kind = STORES[storage.read or ""]
    with closing(kind("train", [str(path) for path in paths], words, PollRate())) as store:
        assert warm(store, lambda: False) == store.files.memory_bytes


@pytest.mark.parametrize("zeros", [64 << 10, 200 << 10])
@pytest.mark.parametrize("tokens", [0, 5000])
def test_a_file_that_ends_in_many_zeros_is_checked_for_its_first_rows_alone(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch, zeros: int,
    tokens: int,
) -> None:  # fmt: skip
    """Otherwise padded shards would use up the rate limit, and wait for it at every frame."""
    path = write_tokens(np.append(np.full(tokens, 257), np.zeros(zeros)))
    store = open_store(path)
    spans = Spans.of_windows(9, np.zeros(1, dtype=np.int64), np.array([tokens + 100]))
    for _ in range(2):
        assert not gather_block(store, spans).tokens.any()
    with monkeypatch.context() as patched:
        for name in ("stat", "fstat"):
            patched.setattr(os, name, lambda *_: pytest.fail("it was checked"))
        assert not gather_block(store, spans).tokens.any()
    os.truncate(path, tokens)
    os.truncate(path, 2 * (tokens + zeros))

    if tokens:
        with pytest.raises(CorpusChanged):
            gather_block(store, spans)
    else:
        assert not gather_block(store, spans).tokens.any()


def test_a_mapped_file_that_was_truncated_and_removed_fails_the_dataset(
    write_tokens: WriteTokens,
) -> None:
    """Only its name led to it, so retries would never end."""
    path = write_tokens(range(1, 20_001))
    with closing(map_store("train", [str(path)], options("<u2"), PollRate())) as store:
        os.truncate(path, 0)
        path.unlink()

        first = np.zeros(1, dtype=np.int64)
        with pytest.raises(CorpusChanged):
            gather_block(store, Spans.of_windows(9, first, first))


def test_touching_all_files_does_not_reread_the_dataset_for_each_of_them(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`chmod -R` on 10,000 shards would be 10,000 times the whole corpus."""
    now = 0.0
    monkeypatch.setattr(watched_bytes, "time", SimpleNamespace(monotonic=lambda: now))
    paths = [write_tokens(range(1, 1001), f"{index}.bin") for index in range(20)]
    store = open_store(*paths)
    read_at = []

    def same_content() -> bool:
        nonlocal now
        now += 1.0
        read_at.append(now)
        return True

    let_time_pass(paths[-1])
    for path in paths:
        path.chmod(0o600)
    for shard in range(len(paths)):
        store.files.poll_file(shard, same_content, run_inline)
    assert read_at == [1.0]

    now = 10.9
    store.files.poll_file(0, same_content, run_inline)
    assert read_at == [1.0]
    now = 11.0
    store.files.poll_file(0, same_content, run_inline)
    assert read_at == [1.0, 12.0]
