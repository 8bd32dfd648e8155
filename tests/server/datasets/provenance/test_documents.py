"""Documents are found by number, by id and by their tokens, in every format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.server.datasets.provenance.corpora import (
    documents_in,
    id_of,
    opened,
    write_documents,
)
from tests.server.storage.documents.starts_corpora import write_lines
from tests.support.packed_corpora import Corpus, random_lengths
from tokenfeed.commands.printable import printable
from tokenfeed.errors import InvalidRequest, NotFound, Unreadable
from tokenfeed.server.datasets.provenance import documents as documents_module
from tokenfeed.server.datasets.provenance.documents import DatasetDocuments, shown_name

FORMS = ("ids", "datatrove", "megatron", "olmo", "raw")


@pytest.mark.parametrize("form", FORMS)
def test_every_document_is_found_by_its_number_and_in_its_file(tmp_path: Path, form: str) -> None:
    """Also empty documents have a number, or those behind them would have another one."""
    corpus = write_documents(tmp_path, random_lengths(1, 16), form)
    expected = documents_in(corpus)

    with opened(corpus) as dataset:
        found = DatasetDocuments(dataset)
        assert found.first_numbers[-1] == len(expected)
        for number, (file, first, end) in enumerate(expected):
            one = found.by_number(number)
            assert (one.number, one.file) == (number, file)
            assert (one.first_token, one.end_token) == (first, end)
            own = found.of_file(file)
            place = number - own.first_number
            assert (own.first_tokens[place], own.end_tokens[place]) == (first, end)
        with pytest.raises(NotFound, match="document: "):
            found.by_number(len(expected))
        with pytest.raises(NotFound):
            found.by_number(1 << 63)


def test_an_id_has_all_of_its_documents(tmp_path: Path) -> None:
    """A deletion request names an id, and every document that has it has to go."""
    lengths = random_lengths(2, 16)
    corpus = write_documents(tmp_path, lengths, "ids")
    firsts = np.cumsum([0, *map(len, lengths)])

    with opened(corpus) as dataset:
        found = DatasetDocuments(dataset)
        assert found.by_id("doc-1-4") == [found.by_number(int(firsts[1]) + 4)]
        assert found.by_number(int(firsts[1]) + 4).id == "doc-1-4"
        same = [
            int(first) + number
            for first, file in zip(firsts, lengths, strict=False)
            for number in range(len(file))
            if id_of(0, number) == "same"
        ]
        assert [one.number for one in found.by_id("same")] == same
        for unknown in ("doc-1", "same\nsame", "", "doc-1-4\n"):
            with pytest.raises(NotFound, match="document_id: "):
                found.by_id(unknown)
        with pytest.raises(InvalidRequest, match="more than 3 documents"):
            DatasetDocuments(dataset).by_id("same", most=3)


def test_a_search_of_ids_ends_in_time_and_goes_on_with_the_next_call(tmp_path: Path) -> None:
    """The ids of ten thousand files take longer than a call may."""
    corpus = write_documents(tmp_path, [[2, 3]] * 5, "ids")

    with opened(corpus) as dataset:
        found = DatasetDocuments(dataset)
        for done in (20, 40, 60, 80):
            with pytest.raises(Unreadable, match=f"{done}.0 % are done"):
                found.by_id("doc-4-1", seconds=0.0)
        (one,) = found.by_id("doc-4-1", seconds=0.0)
    assert (one.number, one.first_token, one.end_token) == (9, 2, 5)


def test_tokens_between_documents_are_of_none(tmp_path: Path) -> None:
    """OLMo's index may leave tokens out."""
    path = tmp_path / "0.npy"
    np.arange(20, dtype="<u2").tofile(path)
    write_lines(path, [(2, 5), (5, 5), (9, 12)])

    with opened(Corpus("train", (path,), ((20,),))) as dataset:
        documents = DatasetDocuments(dataset)
        own = documents.of_file(0)
        assert not own.have_all_tokens
        pairs = zip(own.first_tokens.tolist(), own.end_tokens.tolist(), strict=True)
        assert list(pairs) == [(2, 5), (5, 5), (9, 12)]
        described = documents.described(0, [0, 2])
        assert [(one.first_token, one.end_token) for one in described] == [(2, 5), (9, 12)]


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    """A wrong document would be worse than none."""
    with opened(write_documents(tmp_path, [[9]], "unknown")) as dataset:
        found = DatasetDocuments(dataset)
        assert not found.are_known
        for ask in (lambda: found.by_number(0), lambda: found.by_id("x")):
            with pytest.raises(InvalidRequest, match="are not known"):
                ask()


def test_an_index_that_changed_is_no_answer(tmp_path: Path) -> None:
    """And the refusal names no path: it goes to clients."""
    corpus = write_documents(tmp_path, [[3, 4], [5]], "ids")

    with opened(corpus) as dataset:
        for suffix in (".index", ".ids"):
            path = Path(f"{corpus.paths[0]}{suffix}")
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 2])
            with pytest.raises(Unreadable) as error:
                DatasetDocuments(dataset).by_number(0)
            assert str(tmp_path) not in str(error.value)
            path.write_bytes(content)
        assert DatasetDocuments(dataset).by_number(0).end_token == 3


def test_what_is_kept_of_indices_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand files have indices of 8 GB together."""
    monkeypatch.setattr(documents_module, "_KEPT_BYTES", 150)
    corpus = write_documents(tmp_path, [[1, 2, 3]] * 20, "ids")

    with opened(corpus) as dataset:
        found = DatasetDocuments(dataset)
        for _ in range(2):
            assert [found.by_number(number).file for number in range(60)] == [
                number // 3 for number in range(60)
            ]
        assert found.kept_bytes <= 150


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain é 文.bin", "plain é 文.bin"),
        ("a\nb\x1b[2J.bin", "a\\nb\\x1b[2J.bin"),
        ("b\udcff.bin", "b\\xff.bin"),
        ("c\u2028\ud800d", "c\\u2028\\ud800d"),
    ],
)
def test_names_are_one_line_of_utf_8(name: str, shown: str) -> None:
    """They reach terminals, logs and JSON."""
    assert printable(name) == shown_name(f"/folder/{name}") == shown
    assert shown.encode().decode() == shown
