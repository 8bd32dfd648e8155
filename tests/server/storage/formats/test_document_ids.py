"""The ids of documents: number -> id, and id -> numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.storage.formats.document_ids import DocumentIds

IDS = ["a", "bb", "", "東京", "a", "aa", "a", " a"]


@pytest.fixture
def ids(tmp_path: Path) -> DocumentIds:
    path = tmp_path / "x.ds.ids"
    path.write_text("".join(f"{one}\n" for one in IDS))
    return DocumentIds(str(path))


def test_each_document_has_its_id(ids: DocumentIds) -> None:
    assert len(ids) == len(IDS)
    assert [ids.id_of(number) for number in range(len(ids))] == IDS


@pytest.mark.parametrize("wanted", [*sorted(set(IDS)), "b", "a\nbb", "\n", "none"])
def test_an_id_has_all_of_its_documents_and_no_other(ids: DocumentIds, wanted: str) -> None:
    """Ids need not be unique, and one may be a part of another."""
    expected = [number for number, one in enumerate(IDS) if one == wanted]

    found = ids.numbers_of(wanted)

    assert found.tolist() == expected
    assert found.dtype.name == "int64"


@pytest.mark.parametrize("number", [-1, len(IDS)])
def test_a_document_that_is_not_there_has_no_id(ids: DocumentIds, number: int) -> None:
    with pytest.raises(IndexError, match=r"is not in \[0, 8\)"):
        ids.id_of(number)


def test_a_file_without_ids_has_no_documents(tmp_path: Path) -> None:
    (tmp_path / "x.ds.ids").touch()

    ids = DocumentIds(str(tmp_path / "x.ds.ids"))

    assert len(ids) == 0
    assert ids.numbers_of("").tolist() == []


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    """Its last id would be another one."""
    path = tmp_path / "x.ds.ids"
    path.write_text("a\nb")

    with pytest.raises(InvalidCorpus, match="does not end with a whole line"):
        DocumentIds(str(path))
    with pytest.raises(InvalidCorpus, match="cannot be read"):
        DocumentIds(str(tmp_path / "none.ds.ids"))
