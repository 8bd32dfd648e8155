"""A dataset that is served while its files are replaced by ones without their erased tokens."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from tests.conftest import WriteTokens
from tests.server.conftest import look_at_all
from tests.support.redacted_corpora import ERASE, redact, tokens_of
from tests.support.waiting import let_time_pass
from tokenfeed.errors import CorpusChanged, Deleted
from tokenfeed.sampling import orders
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.redactions.redacted_rows import Redactor
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.rows.reader import RowReader
from tokenfeed.server.storage.door import StorageOptions
from tokenfeed.server.storage.exchanges import EXCHANGES
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.tools.redact import erasing
from tokenfeed.wire.request import Request

Open = Callable[..., Dataset]


class Memory(NamedTuple):
    rows: slice
    tokens: npt.NDArray[np.uint16]


def reader_of(dataset: Dataset, stream: Stream) -> RowReader:
    request = Request(stream, Position(0, 1), num_batches=9)
    wrap = partial(Redactor().wrap, dataset.store, [dataset], stream)
    return RowReader(request, dataset.store, wrap)


def test_a_served_dataset_goes_on(open_: Open, write_tokens: WriteTokens) -> None:
    """Every other row of it is still right. Erased are also the last tokens of a file, by which a
    truncation is found.
    """
    path = write_tokens(np.arange(256, 5256))
    dataset = open_(path)
    look_at_all(dataset)
    let_time_pass(path)
    redact(path, "--range=0:5:11", "--range=0:3000:5000", *ERASE)

    assert tokens_of(dataset, 0, 4990, 5000) == list(range(5246, 5256))
    look_at_all(dataset)
    look_at_all(dataset)
    assert not dataset.store.files.failed
    assert tokens_of(dataset, 0, 2990, 3010) == [*range(3246, 3256), *[0] * 10]
    assert tokens_of(dataset, 0, 4990, 5000) == [0] * 10
    assert tokens_of(dataset, 0, 0, 6) == [*range(256, 261), 0]


def test_no_map_and_no_descriptor_of_the_old_file_is_left(
    open_: Open, write_tokens: WriteTokens
) -> None:
    """Its blocks are freed only then, and no process can read the tokens any more."""
    path = write_tokens(np.arange(256, 5256))
    dataset = open_(path)
    redact(path, "--range=0:5:11", *ERASE)

    def holds() -> bool:
        links = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
        maps = Path("/proc/self/maps").read_text()
        return any(f"{path} (deleted)" in each for each in (maps, *links))

    assert holds()
    assert dataset.describe().erased_list == b""
    look_at_all(dataset)
    assert not holds()
    assert dataset.redactions is not None
    assert dataset.describe().erased_list == dataset.redactions.hashes[-1]


def test_rows_are_gathered_while_their_file_is_exchanged(
    open_: Open, write_tokens: WriteTokens
) -> None:
    """Each token is the one or the other. Also the byte by which a truncation is found changes."""
    path = write_tokens(np.arange(256, 5256))
    dataset = open_(path)
    ended, wrong = threading.Event(), []

    def gather() -> None:
        while not ended.is_set():
            found = tokens_of(dataset, 0, 4000, 5000)
            if any(token not in (0, 4256 + place) for place, token in enumerate(found)):
                wrong.append(found)

    threads = [threading.Thread(target=gather) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for first in range(4999, 4949, -5):
            redact(path, f"--range=0:{first}:5000", *ERASE)
            look_at_all(dataset)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert not dataset.store.files.failed
    assert tokens_of(dataset, 0, 4954, 5000) == [0] * 46


def test_no_row_has_the_fill_of_an_erasure_that_its_stream_does_not_know(
    write_tokens: WriteTokens, storage: StorageOptions
) -> None:
    """A stream looks at the list each half second; its file may be exchanged in between."""
    path = write_tokens(np.arange(256, 5256))
    source = DatasetSource("train", (str(path),))
    with closing(open_dataset(source, FormatOptions(), TokenChecks(), storage)) as dataset:
        stream = Stream.of_dataset("train", orders.find("sequential-1"), 0, 9)
        reader = reader_of(dataset, stream)
        spans = Spans(5, *(np.array([number]) for number in (0, 0, 4995)))
        memory: list[Memory] = []

        def first(planes: object) -> list[Memory]:
            memory.append(Memory(slice(0, 1), np.empty((1, 5), dtype="<u2")))
            return memory[-1:]

        def exchanged(planes: object) -> list[Memory]:
            if len(memory) == 1:
                look_at_all(dataset)  # which exchanges the file, before it is read
            return first(planes)

        reader.fill(spans, first)
        redact(path, "--range=0:4990:5000", *ERASE)
        with pytest.raises(Deleted):
            reader.fill(spans, exchanged)
    assert memory[0].tokens.tolist() == [list(range(5251, 5256))]
    assert memory[1].tokens.tolist() == [[0] * 5]  # what a stream would have had


def test_nothing_is_mapped_once_a_dataset_is_closed(
    open_: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that polls may still read the new file: its addresses are those of others by
    then.
    """
    path = write_tokens(np.arange(256, 5256))
    dataset = open_(path)
    redact(path, "--range=0:5:11", *ERASE)
    assert dataset.replaced_shards is not None
    is_erased_file = dataset.replaced_shards.is_erased_file

    def closing_meanwhile(*arguments: Any) -> bool:
        found = is_erased_file(*arguments)
        dataset.close()
        return found

    dataset.store.files.allow_replacement(closing_meanwhile)
    look_at_all(dataset)

    maps = Path("/proc/self/maps").read_text()
    opened = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    assert str(path) not in maps
    assert not any(each.startswith(str(path)) for each in opened)


def test_a_file_that_is_not_the_erased_one_is_not_taken_up(
    open_: Open, write_tokens: WriteTokens, caplog: pytest.LogCaptureFixture
) -> None:
    """A sync may put any file there; the one that was opened is served until the restart."""
    path = write_tokens(np.arange(256, 5256))
    dataset = open_(path)
    redact(path, "--range=0:5:11", *ERASE)
    other = write_tokens(np.arange(257, 5257), "other.bin")
    os.replace(other, path)
    look_at_all(dataset)

    assert "replaced or removed; still serving the opened file" in caplog.text
    assert tokens_of(dataset, 0, 0, 6) == list(range(256, 262))
    assert dataset.describe().erased_list == b""


@pytest.mark.parametrize("moment", ["while", "after"])
def test_other_writes_still_fail_a_served_dataset(
    open_: Open, write_tokens: WriteTokens, moment: str
) -> None:
    """An erasure explains its own bytes, and no other."""
    path = write_tokens(np.arange(256, 5256))
    dataset = open_(path)
    redact(path, "--range=0:5:11")
    assert dataset.redactions is not None
    if moment == "while":
        content = dataset.redactions.content_now()
        assert content is not None
        erasing.begin(dataset.redactions.path, content, dataset.store, dataset.digest, ())
    else:
        redact(path, *ERASE)
        look_at_all(dataset)
    let_time_pass(path)
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"x")
    look_at_all(dataset)

    with pytest.raises(CorpusChanged):
        tokens_of(dataset, 0, 0, 6)


def test_a_truncation_still_fails_a_dataset_that_was_erased(
    open_: Open, write_tokens: WriteTokens
) -> None:
    """The byte by which it is found is another one now."""
    path = write_tokens(np.arange(256, 5256))
    dataset = open_(path)
    redact(path, "--range=0:4000:5000", *ERASE)
    look_at_all(dataset)
    assert tokens_of(dataset, 0, 4990, 5000) == [0] * 10
    os.truncate(path, 6000)

    with pytest.raises(CorpusChanged):
        tokens_of(dataset, 0, 3990, 4000)


def test_rows_are_gathered_once_more_only_if_what_is_erased_has_changed(
    open_: Open, write_tokens: WriteTokens
) -> None:
    """While ten thousand files are exchanged, the streams of other datasets go on."""
    path = write_tokens(np.arange(1, 300))
    dataset, reads = open_(path), list[int]()
    reader = reader_of(dataset, Stream.of_dataset("train", orders.find("sequential-1"), 0, 8))

    def exchanged(planes: object) -> list[Memory]:
        reads.append(1)
        if len(reads) == 2:
            redact(path, "--range=0:5:9", *ERASE)
        EXCHANGES.add()
        return []

    reader.fill(reader.take(1), exchanged)
    assert len(reads) == 1
    reader.fill(reader.take(1), exchanged)
    assert len(reads) == 3
