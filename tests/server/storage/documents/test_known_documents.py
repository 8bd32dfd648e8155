"""DocumentStarts from the index beside each file, for every format that has one."""

from __future__ import annotations

import json
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import WriteTokens
from tests.server.ingest.running import ingested
from tests.server.storage.documents.starts_corpora import (
    WRITERS,
    Corpus,
    Write,
    all_windows,
    found_starts,
    opened,
    require_agreement,
    starts_of,
    write_datatrove,
    write_lines,
    write_olmo,
)
from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.datasets.sources import parse_datasets
from tokenfeed.server.storage.documents import document_starts_of, index_file, known_documents
from tokenfeed.server.storage.formats import datatrove
from tokenfeed.server.storage.open_file import OpenFile
from tokenfeed.stream.planes import DOCUMENT_STARTS


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest) -> Write:
    return WRITERS[request.param]


FILES = st.lists(
    st.lists(st.sampled_from([0, 1, 1, 2, 3, 30]), min_size=1, max_size=9).filter(any),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20], ids=["mapped", "in memory"])
@pytest.mark.parametrize("form", WRITERS)
@settings(max_examples=40)
@given(files=FILES, row_tokens=st.integers(2, 31))
def test_every_window_has_the_documents_that_begin_in_it(
    form: str, memory_bytes: int, files: list[list[int]], row_tokens: int
) -> None:
    """Empty ones, ones of one token and ones longer than a row, at any place."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_file, "MEMORY_BYTES_MAX", memory_bytes)
        if not memory_bytes:  # some indices one by one, and some side by side
            patch.setattr(known_documents, "_ENTRIES_AT_ONCE", 8)
        corpus = WRITERS[form](Path(folder), files)
        with found_starts(corpus) as found:
            require_agreement(found, corpus, all_windows(corpus.counts, row_tokens))


def test_a_million_starts_are_those_of_the_index(write: Write, tmp_path: Path) -> None:
    """More than a block of any index, and more than stays in memory."""
    random = np.random.default_rng(3)
    files = [random.integers(0, 7, count).tolist() for count in (1, 150_000, 40_000, 70_000)]
    files[0] = [5]
    corpus = write(tmp_path, files)

    with found_starts(corpus) as found:
        require_agreement(found, corpus)


def test_the_fingerprint_is_that_of_the_protocol(tmp_path: Path) -> None:
    """The example of docs/protocol.md: documents that begin with tokens 0 and 2."""
    with found_starts(write_datatrove(tmp_path, [[2, 1]])) as found:
        expected = "aaa1b4026ad05f802ad423bb711aa9dc1abe9a546f9be786c831f0c14b004ead"
        assert (found.kind, found.count) == (DOCUMENT_STARTS, 2)
        assert found.fingerprint.hex() == expected


def test_tokens_that_belong_to_no_document_are_one(tmp_path: Path) -> None:
    """Before the first, between two, and behind the last: they belong to none of these."""
    path = tmp_path / "part.npy"
    np.ones(20, "<u2").tofile(path)
    write_lines(path, [(3, 5), (5, 6), (9, 9), (10, 12)])
    corpus = Corpus([str(path)], [[0, 3, 5, 6, 10, 12]], [20])

    with found_starts(corpus) as found:
        require_agreement(found, corpus)


def test_a_file_whose_index_lists_nothing_is_one_document(tmp_path: Path) -> None:
    """Its documents are known: there are none, and its tokens belong to none."""
    path = tmp_path / "part.npy"
    np.ones(9, "<u2").tofile(path)
    write_lines(path, [])
    other = write_olmo(tmp_path, [[4, 5]])

    corpus = Corpus([str(path), *other.paths], [[0], [0, 4]], [9, 9])
    with found_starts(corpus) as found:
        require_agreement(found, corpus)


def test_documents_are_unknown_if_those_of_one_file_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows of that file would seem to have one document each. The log names it."""
    corpus = write_datatrove(tmp_path, [[3, 4], [5, 6]])
    Path(f"{corpus.paths[1]}.index").unlink()
    with opened(Corpus(corpus.paths, [], [], "<u2")) as store:
        assert document_starts_of(store) is None
    expected = "document borders unknown dataset=train: 1 of 2 files have no index, first=00001.ds"
    assert caplog.messages == [expected]


def test_documents_of_raw_tokens_are_unknown(write_tokens: WriteTokens) -> None:
    with opened(Corpus([str(write_tokens([1, 2, 3]))], [], [])) as store:
        assert document_starts_of(store) is None


@pytest.mark.parametrize(
    ("ends", "problem"),
    [
        ([4, 3, 9], "document ends have to ascend and be at most 9"),
        ([4, 10, 9], "document ends have to ascend and be at most 9"),
        ([4, 8, 10], "document ends have to ascend and be at most 9"),
        ([4, 2**63 + 5, 9], "document ends have to ascend and be at most 9"),
        ([4, 9], "changed while it was being opened"),
        ([4, 5, 6, 9], "changed while it was being opened"),
    ],
)
def test_an_index_that_has_changed_since_it_was_checked_is_named(
    tmp_path: Path, ends: list[int], problem: str
) -> None:
    """The start of a large corpus takes minutes, and another program may write meanwhile."""
    corpus = write_datatrove(tmp_path, [[4, 3, 2]])
    with opened(corpus) as store:
        np.array(ends, "<u8").tofile(f"{corpus.paths[0]}.index")

        with pytest.raises(InvalidCorpus, match=rf"00000\.ds\.index: {problem}"):
            document_starts_of(store)


def test_indices_of_a_large_corpus_are_looked_at_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an object store each is a round trip, and 10,000 in a row are minutes."""
    monkeypatch.setattr(index_file, "MEMORY_BYTES_MAX", 1)
    found, both = known_documents.open_file, threading.Barrier(2)

    def open_file(path: str) -> OpenFile:
        both.wait(20)
        return found(path)

    monkeypatch.setattr(known_documents, "open_file", open_file)
    with opened(write_datatrove(tmp_path, [[4, 3, 2], [5, 6]])) as store:
        starts = document_starts_of(store, cache_dir=str(tmp_path))
        assert starts is not None
        starts.close()


def test_small_indices_are_read_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an object store each is a round trip or more, and 10,000 in a row are minutes."""
    found, both = datatrove.open_file, threading.Barrier(2)

    def open_file(path: str) -> OpenFile:
        both.wait(20)
        return found(path)

    with opened(write_datatrove(tmp_path, [[4, 3, 2], [5, 6]])) as store:
        monkeypatch.setattr(datatrove, "open_file", open_file)
        starts = document_starts_of(store)
        assert starts is not None
        assert starts.starts_of(0).tolist() == [0, 4, 7]
        assert starts.starts_of(1).tolist() == [0, 5]
        starts.close()


def test_a_start_that_is_stopped_ends_early(tmp_path: Path) -> None:
    with (
        opened(write_datatrove(tmp_path, [[4, 3, 2]])) as store,
        pytest.raises(InvalidCorpus, match="was closed while it was being opened"),
    ):
        document_starts_of(store, stopped=lambda: True)


@pytest.mark.skipif(not find_spec("pyarrow"), reason="ingest needs pyarrow")
def test_texts_that_were_ingested_have_their_documents(tmp_path: Path) -> None:
    """A document that a shard boundary splits begins again in the next shard."""
    texts = ["a" * length for length in (5, 1, 40, 3, 9, 2500, 25)]
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    ingested(
        source, "--out", tmp_path / "out", "--tokenizer", "bytes", "--val-fraction", "0",
        "--shard-tokens", "1000",
    )  # fmt: skip
    (source,) = parse_datasets([str(tmp_path / "out")])
    contents = [Path(path).read_bytes() for path in source.paths]
    ends = [np.fromfile(f"{path}.index", "<u8").tolist() for path in source.paths]
    lengths = [np.diff(one, prepend=0).astype(int).tolist() for one in ends]
    counts = list(map(sum, lengths))
    corpus = Corpus(list(source.paths), list(map(starts_of, lengths)), counts, None)
    assert (sum(counts), len(counts)) == (sum(map(len, texts)), 3)

    with found_starts(corpus) as found:
        require_agreement(found, corpus)
        assert found.count == len(texts) + 2
        assert sum(map(len, contents)) == 2 * sum(counts)
