"""Files of this machine as a feed's dataset: opened once, late, and let go of."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from client import InvalidRequest, NotFound, RemoteBatches, StreamMismatch
from tests.conftest import WriteTokens
from tests.support.waiting import eventually, let_time_pass
from tokenfeed.client.runtime import awaited_task
from tokenfeed.client.runtime.notifier import Notifier
from tokenfeed.client.runtime.threads import Outcome
from tokenfeed.client.source import files
from tokenfeed.errors import CorpusChanged, InvalidCorpus

T = 8
MODES = [{}, {"prefetch_bytes": 0}, {"prefetch_bytes": 1}]


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(1, 20_000), "corpus-of-this-test.bin")


def mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(path.name)


def descriptors(path: Path) -> int:
    found = []
    for one in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing, and what a thread has closed
            found.append(os.readlink(f"/proc/self/fd/{one}"))
    return found.count(os.path.realpath(path))


_OTHERS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads of earlier tests."""


def own_threads() -> list[str]:
    found = [one for one in threading.enumerate() if one not in _OTHERS]
    return [one.name for one in found if one.name.startswith("tokenfeed-")]


@pytest.fixture(autouse=True, scope="module")
def quick_garbage_collection() -> Iterator[None]:
    """All of torch is garbage that would be looked at each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def threads_of_earlier_tests() -> None:
    gc.collect()
    _OTHERS.update(threading.enumerate())


def test_nothing_is_read_before_the_first_batch(tmp_path: Path) -> None:
    """A feed is made on a machine that has no such file."""
    feed = RemoteBatches(f"file:{tmp_path}/none.bin", 2, T)

    assert own_threads() == []
    with pytest.raises(InvalidCorpus, match=r"none\.bin: cannot be read: No such file"):
        next(feed)
    # And it may appear later.
    np.arange(100, dtype="<u2").tofile(tmp_path / "none.bin")
    assert next(feed)[0].shape == (2, T)


@pytest.mark.parametrize("way", ["map", "pread"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("use", [next, RemoteBatches.state_dict, lambda feed: feed.token_count])
def test_a_feed_that_is_dropped_leaves_no_thread_no_descriptor_and_no_mapping(
    path: Path, mode: dict[str, int], way: str, use: Callable[[RemoteBatches], object]
) -> None:
    """A sweep makes hundreds of them, and nobody calls close()."""
    feed = RemoteBatches(f"file:{path}?read={way}", 2, T, **mode)
    use(feed)
    assert mappings(path) == (way == "map")
    assert descriptors(path) == (way == "pread")

    del feed
    gc.collect()

    # Together: its supervisor may only be about to begin.
    assert eventually(lambda: (mappings(path), descriptors(path), own_threads()) == (0, 0, []))


@pytest.mark.parametrize("mode", MODES)
def test_a_closed_feed_is_at_its_end_and_has_its_state(path: Path, mode: dict[str, int]) -> None:
    """As one of a server."""
    feed = RemoteBatches(f"file:{path}", 2, T, **mode)
    next(feed)
    feed.close()
    feed.close()

    assert mappings(path) == 0
    assert eventually(lambda: own_threads() == [])
    assert list(feed) == []
    assert feed.state_dict()["sample"] == 2


def test_a_feed_closed_before_it_was_used_has_no_state(path: Path) -> None:
    feed = RemoteBatches(f"file:{path}", 2, T)
    feed.close()

    assert list(feed) == []
    with pytest.raises(InvalidRequest, match="feed: is closed; create a new one"):
        feed.state_dict()


@pytest.fixture
def slow_to_open(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Opening waits until the feed is closed, or for the event; as for a corpus of a terabyte."""
    may_open = threading.Event()
    open_files = files.Files._open_files

    def slow(self: files.Files) -> object:
        assert eventually(lambda: self.closed or may_open.is_set())
        return open_files(self)

    monkeypatch.setattr(files.Files, "_open_files", slow)
    return may_open


@pytest.mark.parametrize("mode", MODES)
def test_files_that_take_long_to_open_are_said_to(
    path: Path,
    slow_to_open: threading.Event,
    mode: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who waits for a terabyte must not think that it hangs."""
    monkeypatch.setattr(files, "_LOG_SECONDS", 0.1)
    said = "files are still being opened: they are read for their fingerprint"
    opening = threading.Thread(
        target=lambda: (eventually(lambda: said in caplog.text), slow_to_open.set())
    )
    opening.start()

    assert next(RemoteBatches(f"file:{path}", 2, T, **mode))[0].shape == (2, T)

    opening.join()
    assert said in caplog.text


@pytest.mark.alone
@pytest.mark.usefixtures("slow_to_open")
@pytest.mark.parametrize("mode", MODES)
def test_closing_ends_the_wait_for_files_that_are_being_opened(
    path: Path, mode: dict[str, int]
) -> None:
    """From another thread, within a moment, and without an error; the files are closed again."""
    seconds = []
    for _ in range(3):
        feed = RemoteBatches(f"file:{path}", 2, T, **mode)
        closing = threading.Timer(0.1, feed.close)
        closing.start()
        began = time.monotonic()
        assert list(feed) == []
        seconds.append(time.monotonic() - began)
        closing.join()
        assert eventually(lambda: own_threads() == [])

    assert min(seconds) < 0.6
    assert (mappings(path), descriptors(path)) == (0, 0)


@pytest.mark.parametrize("mode", MODES)
def test_an_interrupted_wait_for_files_is_continued_by_the_next_one(
    path: Path, slow_to_open: threading.Event, mode: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a large corpus is opened; what was read of it is not lost."""
    feed = RemoteBatches(f"file:{path}", 2, T, order="sequential", **mode)
    with monkeypatch.context() as patch:

        def interrupting(wait: Callable[..., object]) -> Callable[..., object]:
            def waited(*arguments: object) -> object:
                # A Ctrl-C comes in the main thread.
                if threading.current_thread() is threading.main_thread():
                    raise KeyboardInterrupt
                return wait(*arguments)

            return waited

        patch.setattr(Notifier, "wait", interrupting(Notifier.wait))
        patch.setattr(Outcome, "_get", interrupting(Outcome._get))
        with pytest.raises(KeyboardInterrupt):
            next(feed)
    slow_to_open.set()

    assert next(feed)[0][0, 0] == 1
    assert mappings(path) == 1
    feed.close()


@pytest.mark.alone
def test_a_thread_that_never_starts_does_not_delay_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C may come before the thread that opens the files has started."""
    feed = RemoteBatches(f"file:{path}", 2, T)
    with monkeypatch.context() as patch:

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(awaited_task, "start_thread", interrupted)
        with pytest.raises(KeyboardInterrupt):
            feed.state_dict()
    began = time.monotonic()
    feed.close()

    assert time.monotonic() - began < 0.9
    assert own_threads() == []


def test_files_are_opened_once_for_all_streams_of_a_feed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each epoch and each skip begins another stream."""
    opened = []
    open_files = files.Files._open_files

    def counted(self: files.Files) -> object:
        opened.append(self)
        return open_files(self)

    monkeypatch.setattr(files.Files, "_open_files", counted)
    with RemoteBatches(f"file:{path}", 2, T, order="shuffled") as feed:
        next(feed)
        feed.skip(100)
        next(feed)
        list(zip(range(3), feed.epoch(2), strict=False))
        feed.load_state_dict(feed.state_dict())
        next(feed)

    assert len(opened) == 1


def test_a_relative_path_stays_where_it_was_when_the_folder_changes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer goes to the folder of its results; the files, and lists beside them, do not."""
    monkeypatch.chdir(path.parent)
    with RemoteBatches(f"file:{path.name}", 2, T, **MODES[1]) as feed:
        next(feed)
        (tmp_path / "results").mkdir()
        monkeypatch.chdir(tmp_path / "results")
        let_time_pass(path)
        with path.open("r+b") as file:
            file.write(b"other")

        with pytest.raises(CorpusChanged):
            list(feed)


def test_files_of_another_corpus_are_named_as_such_and_closed(path: Path) -> None:
    """The file may be last week's."""
    with (
        RemoteBatches(f"file:{path}", 2, T, fingerprint=64 * "0") as feed,
        pytest.raises(StreamMismatch, match=r"^target: has another corpus: fingerprint "),
    ):
        next(feed)

    assert mappings(path) == 0


@pytest.mark.parametrize("mode", MODES)
def test_what_is_wrong_with_a_request_is_said_as_by_a_server(
    path: Path, mode: dict[str, int]
) -> None:
    """By the name of the argument."""
    with RemoteBatches(f"file:{path}", 2, 20_000, **mode) as feed:
        with pytest.raises(InvalidRequest, match=r"context_length: 20000 is not in \[1, 19999\)"):
            next(feed)
    with RemoteBatches(f"file:{path}", 2, T, dataset="none", **mode) as feed:
        with pytest.raises(NotFound, match="dataset: 'none' is not in the target, only corpus"):
            next(feed)
    with RemoteBatches(f"file:{path}?vocab=5", 2, T, **mode) as feed:
        with pytest.raises(InvalidRequest, match="target: has no option 'vocab'"):
            next(feed)


def test_an_installation_without_the_server_s_packages_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image of a trainer has none, and reads from servers."""
    monkeypatch.setattr("tokenfeed._links.find_spec", lambda name: None)

    with pytest.raises(InvalidRequest, match="local files cannot be read here"):
        next(RemoteBatches(f"file:{path}", 2, 4))
