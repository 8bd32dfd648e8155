"""The lists that a server knows of a dataset, while their file grows."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.support.memory_files import files_in_memory
from tests.support.object_server import object_server
from tests.support.waiting import eventually
from tokenfeed.errors import InvalidCorpus, WriteFailed
from tokenfeed.server.datasets.redactions import list_file
from tokenfeed.server.datasets.redactions.list_file import ListedDataset, RedactionLists, read_list
from tokenfeed.server.datasets.redactions.list_format import ListContent
from tokenfeed.server.datasets.redactions.list_writing import locked, write_list
from tokenfeed.server.datasets.redactions.ranges import RedactionList, TokenRanges
from tokenfeed.server.storage.door import Entry

FINGERPRINT = bytes(range(32))
DATASET = ListedDataset(FINGERPRINT, np.array([100, 50]), 65_535)


def a_list(*firsts: int, fill: int = 0, fingerprint: bytes = FINGERPRINT) -> ListContent:
    found = ListContent(fingerprint, fill, ())
    for first in firsts:
        found = found.with_addition(TokenRanges.of([(0, first, first + 2)]), "now")
    return found


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "list.jsonl")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the file with each use."""
    monkeypatch.setattr(list_file, "_LOOK_SECONDS", 0.0)


def of_lists(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of lists: threads that other tests have left may log too."""
    logged = [one.getMessage() for one in caplog.records if one.module == "list_file"]
    return [each for each in logged if "file=list.jsonl" in each]


@pytest.mark.usefixtures("looks")
def test_a_list_that_appears_later_is_found(path: str) -> None:
    """A server runs when the first document is taken out."""
    lists = RedactionLists(path, DATASET, read_list(path))
    assert lists.hashes == ()
    write_list(path, a_list(5))

    assert lists.hashes == a_list(5).hashes


def test_an_unknown_list_is_looked_for_at_once(path: str) -> None:
    """A run names it right after the operator has copied it."""
    write_list(path, a_list(5))
    lists = RedactionLists(path, DATASET, read_list(path))
    longer = a_list(5, 20)
    write_list(path, longer)

    found = lists.find(longer.hashes[1])
    assert found is not None
    assert found.ranges.triples() == [(0, 5, 7), (0, 20, 22)]
    assert lists.find(bytes(32)) is None


def test_who_waits_for_a_look_that_does_not_end_gets_what_is_known(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler in the middle of that look may be what waits."""
    monkeypatch.setattr(list_file, "_HELD_SECONDS", 0.1)
    content = a_list(5)
    lists = RedactionLists(path, DATASET, content)
    with lists._lock:
        assert lists.find(bytes(32)) is None
        assert lists.content_now() is content


def test_older_lists_are_found_after_later_additions(path: str) -> None:
    """A run goes on with the list that it took up."""
    content = a_list(*range(0, 60, 3))
    write_list(path, content)
    lists = RedactionLists(path, DATASET, read_list(path))

    for count, each in enumerate(content.hashes, 1):
        found = lists.find(each)
        assert found is not None
        assert (found.hash, len(found.ranges)) == (each, count)


def test_the_last_of_some_lists_has_the_tokens_of_all(path: str) -> None:
    """A stream of weeks takes up one list after another, and reads by one of them."""
    content = a_list(*range(0, 60, 3))
    write_list(path, content)
    lists = RedactionLists(path, DATASET, read_list(path))

    assert lists.last_of([content.hashes[each] for each in (3, 11, 7)]) == content.hashes[11]
    longer = a_list(*range(0, 63, 3))
    write_list(path, longer)
    assert lists.last_of([longer.hashes[-1], longer.hashes[0]]) == longer.hashes[-1]
    with pytest.raises(KeyError):
        lists.last_of([content.hashes[0], bytes(32)])


def test_a_list_is_found_while_another_one_is_being_computed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a million ranges takes seconds; streams with other lists go on."""
    content = a_list(5, 20, 40)
    write_list(path, content)
    lists = RedactionLists(path, DATASET, read_list(path))
    compute, may_end = ListContent.list_of, threading.Event()

    def slow(of: ListContent, count: int) -> RedactionList:
        if count == 1:
            assert may_end.wait(10)
        return compute(of, count)

    monkeypatch.setattr(ListContent, "list_of", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lists.find, content.hashes[0])
        try:
            other = lists.find(content.hashes[1])
        finally:
            may_end.set()
        found = first.result(10)
    assert [len(each.ranges) for each in (found, other) if each is not None] == [1, 2]


def test_the_file_is_looked_at_once_a_second(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the file system of a network each look is a request."""
    write_list(path, a_list(5))
    lists = RedactionLists(path, DATASET, read_list(path))
    assert lists.hashes
    monkeypatch.setattr(os, "stat", lambda path: pytest.fail("looked again"))

    assert all(len(lists.hashes) == 1 and lists.erased is None for _ in range(100))


def test_a_start_waits_for_a_list_in_a_store_that_is_away(tmp_path: Path) -> None:
    """As for a corpus: a store may restart while a server does."""
    write_list(str(tmp_path / "list"), a_list(5))
    with object_server() as store:
        store.put("bucket/list", (tmp_path / "list").read_bytes())
        store.faults.extend(5 * ["503"])  # more than the library tries again
        found = read_list("s3://bucket/list")
        assert found is not None
        assert found.hashes == a_list(5).hashes
        assert read_list("s3://bucket/none") is None


def test_a_list_in_a_store_that_hangs_holds_up_no_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each stream looks at it twice a second, also those of local files. Only who names a list that
    is not known waits; after an error, not even that until a while later.
    """
    monkeypatch.setattr(list_file, "_STORE_LOOK_SECONDS", 0.3)
    contents = []
    for content in (a_list(5), a_list(5, 20)):
        write_list(str(tmp_path / "list"), content)
        contents.append((tmp_path / "list").read_bytes())
    with files_in_memory({"list": contents[0]}) as door:
        lists = RedactionLists("memory://list", DATASET, read_list("memory://list"))
        entry, goes_on, looks = door.entry, threading.Event(), list[float]()

        def hang(path: str, *, at_once: bool = False) -> Entry | None:
            looks.append(time.monotonic())
            assert goes_on.wait(10)
            return entry(path, at_once=at_once)

        monkeypatch.setattr(door, "entry", hang)
        door.files["list"] = contents[1]
        began = time.monotonic()
        while time.monotonic() - began < 1:
            assert len(lists.hashes) == 1
            assert lists.erased is None
        assert len(looks) == 1
        goes_on.set()
        assert eventually(lambda: len(lists.hashes) == 2)

        def fail(path: str, *, at_once: bool = False) -> Entry | None:
            looks.append(time.monotonic())
            raise InvalidCorpus(path, "cannot be read: the store is away")

        monkeypatch.setattr(list_file, "_STORE_LOOK_SECONDS", 60.0)
        monkeypatch.setattr(door, "entry", fail)
        count = len(looks)
        for _ in range(5):
            assert lists.find(bytes(32)) is None
        assert len(looks) == count + 1


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{}\n", "is damaged"),
        (a_list(9).to_bytes(), "lacks what it had"),
        (a_list(5, 99).to_bytes(), "end at token 101 of file 0"),
        (a_list(5, fingerprint=bytes(32)).to_bytes(), "is of another dataset"),
    ],
)
def test_a_file_that_is_no_longer_right_is_logged_once_and_ignored(
    path: str, content: bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Streams that use what was known must not fail."""
    write_list(path, a_list(5))
    lists = RedactionLists(path, DATASET, read_list(path))
    assert lists.hashes
    Path(path).write_bytes(content)

    assert [lists.hashes for _ in range(3)] == [a_list(5).hashes] * 3
    (logged,) = of_lists(caplog)
    assert problem in logged
    write_list(path, a_list(5, 11))
    assert lists.hashes == a_list(5, 11).hashes


@pytest.mark.usefixtures("looks")
def test_a_file_that_is_gone_stays_known(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """It may be replaced by a copy at this moment."""
    write_list(path, a_list(5))
    lists = RedactionLists(path, DATASET, read_list(path))
    assert lists.hashes
    os.unlink(path)

    assert [lists.hashes for _ in range(3)] == [a_list(5).hashes] * 3
    (logged,) = of_lists(caplog)
    assert "gone" in logged


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (a_list(5, fingerprint=bytes(32)), "is of another dataset"),
        (a_list(99), "end at token 101 of file 0, which has only 100"),
        (a_list(5, fill=65_536), "by 65536, but the greatest one here is 65535"),
    ],
)
def test_a_list_that_does_not_fit_is_refused_at_the_start(
    path: str, content: ListContent, problem: str
) -> None:
    """Other tokens would be taken out."""
    with pytest.raises(InvalidCorpus, match=problem) as error:
        RedactionLists(path, DATASET, content)
    assert "move it away, or restore it" in str(error.value)


def test_a_file_that_is_no_list_is_refused(path: str) -> None:
    """By name, with the cure."""
    os.mkfifo(path)
    with pytest.raises(InvalidCorpus, match="not a regular file; restore it"):
        read_list(path)
    os.unlink(path)
    Path(path).write_text("{}")
    with pytest.raises(InvalidCorpus, match="is damaged; restore it"):
        read_list(path)


def test_a_list_that_cannot_be_written_is_an_error_with_the_cure(tmp_path: Path) -> None:
    """The corpus may lie on a file system that is mounted read-only."""
    path = str(tmp_path / "nowhere" / "list.jsonl")
    with pytest.raises(WriteFailed, match="pass --list"), locked(path):
        pass
    with pytest.raises(WriteFailed, match="pass --list"):
        write_list(path, a_list(5))
