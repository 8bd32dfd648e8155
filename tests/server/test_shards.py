"""From the words after --data to names and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.shards import parse_data, require_distinct_names
from tokenfeed.errors import BadCorpus, InvalidRequest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as nanoGPT leaves it, with shards whose byte order is not their natural order."""
    for name in ("b.bin", "B.bin", "a10.bin", "a9.bin", "é.bin", "prepare.py", "readme.md"):
        (tmp_path / "corpus" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "corpus" / name).write_bytes(b"12")
    return tmp_path / "corpus"


ORDERED = ["B.bin", "a10.bin", "a9.bin", "b.bin", "é.bin"]


def names(paths: tuple[str, ...]) -> list[str]:
    return [Path(path).name for path in paths]


def test_a_file_is_named_by_its_stem(folder: Path) -> None:
    """`--data train.bin` needs no more."""
    source = parse_data([str(folder / "b.bin")])

    assert (source.name, names(source.paths)) == ("b", ["b.bin"])


def test_a_folder_stands_for_its_shards_in_byte_order_and_for_nothing_else(folder: Path) -> None:
    """The order decides which tokens a sample has, so no locale may change it."""
    source = parse_data([str(folder)])

    assert (source.name, names(source.paths)) == ("corpus", ORDERED)


def test_a_glob_stands_for_its_files_in_byte_order(folder: Path) -> None:
    """Compose files and service units pass it unexpanded."""
    source = parse_data([f"val={folder}/*.bin"])

    assert (source.name, names(source.paths)) == ("val", ORDERED)


def test_several_paths_keep_the_order_in_which_they_are_given(folder: Path) -> None:
    """What the shell expands, and what somebody orders on purpose."""
    source = parse_data([f"mix={folder}/b.bin", f"{folder}/B.bin", f"{folder}/a*.bin"])

    assert (source.name, names(source.paths)) == ("mix", ["b.bin", "B.bin", "a10.bin", "a9.bin"])


def test_only_a_word_before_the_first_equals_sign_is_a_name(tmp_path: Path) -> None:
    """A path may hold an equals sign; `./` in front says that it is one."""
    path = tmp_path / "k=1" / "tokens.bin"
    path.parent.mkdir()
    path.write_bytes(b"12")

    assert parse_data([str(path)]).paths == (str(path),)
    assert parse_data([f"x={path}"]).name == "x"
    assert parse_data(["a=b.bin"]).paths == ("b.bin",)
    assert parse_data(["./a=b/c.bin"]).paths == ("./a=b/c.bin",)


def test_a_file_whose_name_is_a_pattern_is_that_file(tmp_path: Path) -> None:
    """What exists is meant."""
    path = tmp_path / "odd[1].bin"
    path.write_bytes(b"12")

    assert parse_data([f"odd={path}"]).paths == (str(path),)


@pytest.mark.parametrize(
    ("word", "problem"),
    [("{}/none*.bin", "matches no file"), ("{}/empty", "folder without shards")],
)
def test_a_word_that_stands_for_nothing_is_named(tmp_path: Path, word: str, problem: str) -> None:
    """A typing error must not become an empty dataset."""
    (tmp_path / "empty").mkdir()

    with pytest.raises(BadCorpus, match=problem):
        parse_data([word.format(tmp_path)])


def test_a_stem_that_is_no_name_asks_for_one(tmp_path: Path) -> None:
    """Names go into health checks, metrics and command lines."""
    path = tmp_path / "my corpus.bin"
    path.write_bytes(b"12")

    with pytest.raises(BadCorpus, match="NAME="):
        parse_data([str(path)])


def test_equal_names_are_refused(folder: Path) -> None:
    """Else one of two datasets would silently be the other."""
    sources = [parse_data([str(folder / "b.bin")]), parse_data([f"b={folder}/B.bin"])]

    with pytest.raises(InvalidRequest, match="two datasets are named 'b'"):
        require_distinct_names(sources)
