"""DocumentStarts at tokens that separate documents, in files whose format knows nothing of them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import WriteTokens
from tests.server.storage.documents.starts_corpora import (
    Corpus,
    all_windows,
    found_starts,
    opened,
    require_agreement,
    starts_by,
    write_datatrove,
)
from tests.server.storage.formats.writing import llmc_header
from tests.support.memory_store import MemoryStore
from tests.support.stores import STORES
from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.storage.documents import Delimiters, delimiters, document_starts_of
from tokenfeed.server.storage.formats import STORED

END, START = 5, 6
CHOICES = {
    "end": Delimiters(end=END),
    "start": Delimiters(start=START),
    "both": Delimiters(end=END, start=START),
    "one token for both": Delimiters(end=END, start=END),
}


@pytest.mark.parametrize("chosen", CHOICES.values(), ids=CHOICES)
@settings(max_examples=100)
@given(
    files=st.lists(
        st.lists(st.sampled_from([END, START, 0, 1]), min_size=1, max_size=30),
        min_size=1,
        max_size=4,
    ),
    dtype=st.sampled_from(sorted(STORED)),
    row_tokens=st.integers(2, 12),
    read=st.sampled_from(sorted(STORES)),
)
def test_every_window_has_the_documents_that_begin_in_it(
    chosen: Delimiters, files: list[list[int]], dtype: str, row_tokens: int, read: str
) -> None:
    """Delimiters in the first and the last place, several in a row, beside ends of blocks."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimiters, "PIECE_BYTES", 8)
        paths = [str(Path(folder) / f"{number}.bin") for number in range(len(files))]
        for path, tokens in zip(paths, files, strict=True):
            np.array(tokens, STORED[dtype]).tofile(path)
        starts = [starts_by(tokens, chosen.end, chosen.start) for tokens in files]
        corpus = Corpus(paths, starts, list(map(len, files)), STORED[dtype].str)
        occurring = {token for tokens in files for token in tokens}
        with opened(corpus, read) as store:
            if not occurring.issuperset(chosen.options.values()):
                with pytest.raises(InvalidCorpus, match="does not occur in its tokens"):
                    document_starts_of(store, chosen)
                return
            found = document_starts_of(store, chosen)
            assert found is not None
            assert found.is_known
            require_agreement(found, corpus, all_windows(corpus.counts, row_tokens))


@pytest.mark.parametrize("chosen", CHOICES.values(), ids=CHOICES)
def test_delimiters_beside_the_border_of_a_block_are_found(
    write_tokens: WriteTokens, chosen: Delimiters
) -> None:
    """Tokens are read a MiB at a time."""
    tokens = np.ones(1_200_000, dtype=np.uint16)
    border = (1 << 20) // 2
    tokens[[border - 1, border, 2 * border - 1]] = END
    tokens[[border + 1, 2 * border]] = START
    starts = starts_by(tokens.tolist(), chosen.end, chosen.start)
    corpus = Corpus([str(write_tokens(tokens))], [starts], [tokens.size])

    with found_starts(corpus, chosen) as found:
        require_agreement(found, corpus)


def test_headers_of_a_format_are_no_tokens(tmp_path: Path) -> None:
    """llm.c's has 1,024 bytes, of which one is 5."""
    path = tmp_path / "train.bin"
    path.write_bytes(llmc_header(5) + np.array([1, END, 1, 1, 1], "<u2").tobytes())
    corpus = Corpus([str(path)], [[0, 2]], [5])

    with found_starts(corpus, Delimiters(end=END)) as found:
        require_agreement(found, corpus, all_windows([5], 3))


def test_a_store_without_files_has_document_starts_too() -> None:
    """Nothing is kept of it."""
    store = MemoryStore("train", [np.array([1, END, 1]), np.array([1, 1])])
    found = document_starts_of(store, Delimiters(end=END))

    assert found is not None
    assert found.is_known
    assert found.count == 3


@pytest.mark.parametrize(
    ("dtype", "chosen", "vocab_size", "problem"),
    [
        (
            "<u2",
            Delimiters(end=65_536),
            None,
            r"uint16 .* --document-end-token 65536 .* 0\.\.65535",
        ),
        ("<i2", Delimiters(start=40_000), None, r"int16 .* --document-start-token .* 0\.\.32767"),
        ("<i8", Delimiters(end=1 << 32), None, r"0\.\.4294967295"),
        ("<u4", Delimiters(end=-1), None, r"--document-end-token -1 is not in 0\.\."),
        ("<u2", Delimiters(end=7), 7, r"--document-end-token 7 is not below --vocab-size 7"),
        ("<u2", Delimiters(end=1, start=9), 7, r"--document-start-token 9 is not below"),
    ],
)
def test_a_delimiter_that_cannot_occur_names_its_limit(
    write_tokens: WriteTokens,
    dtype: str,
    chosen: Delimiters,
    vocab_size: int | None,
    problem: str,
) -> None:
    """Otherwise all tokens would be read to find none."""
    corpus = Corpus([str(write_tokens([1, 2, 3], dtype=dtype))], [], [], dtype)
    with opened(corpus) as store, pytest.raises(InvalidCorpus, match=rf"train\.bin: .*{problem}"):
        document_starts_of(store, chosen, vocab_size=vocab_size)


@pytest.mark.parametrize(
    ("chosen", "option"),
    [
        (Delimiters(end=END), "--document-end-token"),
        (Delimiters(start=START), "--document-start-token"),
    ],
)
def test_a_delimiter_of_files_that_know_their_documents_is_an_error(
    tmp_path: Path, chosen: Delimiters, option: str
) -> None:
    """Of the two, one would be ignored."""
    corpus = write_datatrove(tmp_path, [[3, 4]])
    problem = rf"00000\.ds: its documents are known from .*00000\.ds\.index; omit {option}"
    with opened(corpus) as store, pytest.raises(InvalidCorpus, match=problem):
        document_starts_of(store, chosen)


def test_a_delimiter_for_all_datasets_is_not_for_those_that_know_their_documents(
    tmp_path: Path,
) -> None:
    """A server has several datasets, some with an index."""
    corpus = write_datatrove(tmp_path, [[3, 4]])
    with opened(corpus) as store:
        found = document_starts_of(store, Delimiters(end=2, are_general=True))
        assert found is not None
        assert found.is_known
        require_agreement(found, corpus)


@pytest.mark.parametrize("are_general", [True, False])
def test_files_of_which_only_some_have_an_index_are_two_datasets(
    tmp_path: Path, are_general: bool
) -> None:
    """To pass the delimiter would be wrong for the one half, and to omit it for the other."""
    corpus = write_datatrove(tmp_path, [[3, 4], [5, 6]])
    Path(f"{corpus.paths[1]}.index").unlink()
    chosen = Delimiters(end=END, are_general=are_general)
    problem = (
        r"00000\.ds: its documents are known from .*index; those of .*00001\.ds are not: serve"
    )
    with opened(corpus) as store, pytest.raises(InvalidCorpus, match=problem):
        document_starts_of(store, chosen)


def test_a_search_that_is_stopped_ends_early(write_tokens: WriteTokens) -> None:
    corpus = Corpus([str(write_tokens([1, END, 3]))], [], [])
    with opened(corpus) as store, pytest.raises(InvalidCorpus, match="was closed while"):
        document_starts_of(store, Delimiters(end=END), stopped=lambda: True)


def documents_ended_by(end: int, mean: int, count: int = 400) -> np.ndarray:
    """Documents of bursts of words, each with END behind it."""
    random = np.random.default_rng(mean)
    lengths = random.integers(mean // 2, 2 * mean, count)
    words = random.zipf(1.3, int(lengths.sum())) % 8000
    words[np.cumsum(lengths) - 1] = end
    return words


@pytest.mark.parametrize("mean", [60, 700])
def test_a_delimiter_that_does_not_occur_is_an_error_that_names_likely_ones(
    write_tokens: WriteTokens, mean: int
) -> None:
    """One document was never meant."""
    path = write_tokens(documents_ended_by(9000, mean))
    with opened(Corpus([str(path)], [], [], "<u2")) as store:
        with pytest.raises(InvalidCorpus) as caught:
            document_starts_of(store, Delimiters(end=8500))

    problem = caught.value.problem
    assert problem.startswith("--document-end-token 8500 does not occur in its tokens")
    assert "likely 9000" in problem


def test_the_end_token_of_a_tokenizer_beside_the_files_is_named_first(
    write_tokens: WriteTokens, tmp_path: Path
) -> None:
    """Also where documents are too few, or too short, to tell."""
    path = write_tokens([5, 6, 2, 7, 8, 9, 2, 5])
    special = [
        {"id": 1, "content": "<s>"},
        {"id": 2, "content": "</s>"},
        {"id": 3, "content": "<eos>"},
    ]
    (path.parent / "tokenizer.json").write_text(json.dumps({"added_tokens": special}))

    with opened(Corpus([str(path)], [], [], "<u2")) as store:
        for wrong in (Delimiters(end=40), Delimiters(start=40)):
            with pytest.raises(InvalidCorpus) as caught:
                document_starts_of(store, wrong)
            what = "ends" if wrong.end else "begins"
            assert caught.value.problem.endswith(f"pass the token that {what} documents, likely 2")


def test_tokens_that_come_at_random_are_not_named(write_tokens: WriteTokens) -> None:
    """A guess that is taken would be documents that nobody wrote."""
    path = write_tokens(np.random.default_rng(1).integers(0, 5000, 100_000))

    with opened(Corpus([str(path)], [], [], "<u2")) as store:
        with pytest.raises(InvalidCorpus) as caught:
            document_starts_of(store, Delimiters(end=9000))

    assert caught.value.problem.endswith("pass the token that ends documents, or omit it")


def test_a_delimiter_of_a_large_corpus_is_looked_for_in_a_sample(
    write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a server starts as fast; pieces are spread over all files."""
    monkeypatch.setattr(delimiters, "_SAMPLE_BYTES", 100_000)
    tokens = documents_ended_by(9000, 60)
    paths = [str(write_tokens(tokens + 0, f"{number}.bin")) for number in range(9)]
    with opened(Corpus(paths, [], [], "<u2")) as store:
        with pytest.raises(InvalidCorpus, match=r"in a sample of \d\d,\d{3} of its tokens, so"):
            document_starts_of(store, Delimiters(end=8500))
        assert document_starts_of(store, Delimiters(end=9000)) is not None


def test_documents_of_millions_of_tokens_are_a_warning(
    write_tokens: WriteTokens, caplog: pytest.LogCaptureFixture
) -> None:
    """A token that occurs by accident."""
    tokens = np.ones(3_000_000, dtype=np.uint16)
    tokens[[5, 70]] = END
    with opened(Corpus([str(write_tokens(tokens))], [], [], "<u2")) as store:
        document_starts_of(store, Delimiters(end=END))

    assert "makes documents of 1500000 tokens on average" in caplog.text
