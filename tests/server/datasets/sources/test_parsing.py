"""From the words after --data to names and files."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from tokenfeed.errors import InvalidCorpus, InvalidRequest
from tokenfeed.server.cli.dataset_options import parse_all, parse_per_dataset
from tokenfeed.server.datasets.sources import (
    DatasetSource,
    is_text,
    parse_data,
    parse_text,
    require_distinct_names,
)
from tokenfeed.server.storage.documents import Delimiters
from tokenfeed.server.storage.option_names import DTYPE


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


def test_a_circular_link_is_an_error_when_it_is_opened(folder: Path) -> None:
    (folder / "c.bin").symlink_to(folder / "c.bin")

    assert "c.bin" in names(parse_data([str(folder)]).paths)


def test_a_file_is_named_by_its_stem(folder: Path) -> None:
    """`--data train.bin` needs no more."""
    source = parse_data([str(folder / "b.bin")])

    assert (source.name, names(source.paths)) == ("b", ["b.bin"])


def test_a_folder_stands_for_its_shards_in_byte_order_and_for_nothing_else(folder: Path) -> None:
    """The order decides which tokens a sample has, so no locale may change it."""
    source = parse_data([str(folder)])

    assert (source.name, names(source.paths)) == ("corpus", ORDERED)


def test_a_glob_names_each_file_once(folder: Path) -> None:
    """Python's own returns a path for each way in which the folders can be split."""
    below = folder / "x" / "y"
    below.mkdir(parents=True)
    (below / "c.bin").write_bytes(b"12")

    assert parse_data([f"{folder}/**/**/c.bin"]).paths == (str(below / "c.bin"),)


def test_a_glob_stands_for_its_files_in_byte_order(folder: Path) -> None:
    """Compose files and service units pass it unexpanded."""
    source = parse_data([f"val={folder}/*.bin"])

    assert (source.name, names(source.paths)) == ("val", ORDERED)


def test_several_paths_keep_the_order_in_which_they_are_given(folder: Path) -> None:
    """The order of a shell's expansion, or one chosen on purpose."""
    source = parse_data([f"mix={folder}/b.bin", f"{folder}/B.bin", f"{folder}/a*.bin"])

    assert (source.name, names(source.paths)) == ("mix", ["b.bin", "B.bin", "a10.bin", "a9.bin"])


def test_only_a_word_before_the_first_equals_sign_is_a_name(tmp_path: Path) -> None:
    """A path may contain an equals sign; `./` in front marks it as a path."""
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
    [("{}/none*.bin", "matches no file"), ("{}/empty", "folder without files named")],
)
def test_a_word_that_stands_for_nothing_is_named(tmp_path: Path, word: str, problem: str) -> None:
    """A typing error must not become an empty dataset."""
    (tmp_path / "empty").mkdir()

    with pytest.raises(InvalidCorpus, match=problem):
        parse_data([word.format(tmp_path)])


def test_a_stem_that_is_not_a_valid_name_requires_one(tmp_path: Path) -> None:
    """Names go into health checks, metrics and command lines."""
    path = tmp_path / "my corpus.bin"
    path.write_bytes(b"12")

    with pytest.raises(InvalidCorpus, match="NAME="):
        parse_data([str(path)])


def test_equal_names_are_refused(folder: Path) -> None:
    """Else one of two datasets would silently be the other."""
    sources = [parse_data([str(folder / "b.bin")]), parse_data([f"b={folder}/B.bin"])]

    with pytest.raises(InvalidRequest, match="two datasets are named 'b'"):
        require_distinct_names(sources)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """Tokens of several formats, with their companion files."""
    for name in (
        *("a.bin", "a.idx", "b.bin", "c.ds", "c.ds.index", "c.ds.metadata", "c.ds.loss"),
        "c.ds.ids",
        *("d.npy", "d.csv.gz", "e.safetensors", "f.idx", "g.csv.gz", "h.txt"),
    ):
        (tmp_path / name).write_bytes(b"12")
    return tmp_path


def test_an_index_that_is_given_alone_stands_for_its_tokens(beside: Path) -> None:
    """By either name."""
    for word in ("a.idx", "c.ds.index", "c.ds.metadata"):
        (path,) = parse_data([str(beside / word)]).paths
        assert path == str(beside / word.partition(".")[0]) + path[-len(Path(path).suffix) :]
        assert Path(path).suffix in (".bin", ".ds")
    assert parse_data([str(beside / "a.idx")]).name == "a"


def test_companions_of_tokens_are_dropped_if_both_are_given(beside: Path) -> None:
    """As a glob does, of ours or of the shell's."""
    assert names(parse_data([str(beside / "[a-d]*")]).paths) == ["a.bin", "b.bin", "c.ds", "d.npy"]
    words = [str(beside / name) for name in ("a.idx", "a.bin", "d.csv.gz", "d.npy")]
    assert names(parse_data(words).paths) == ["a.bin", "d.npy"]


def test_a_folder_stands_for_the_tokens_in_it(beside: Path) -> None:
    assert names(parse_data([str(beside)]).paths) == [
        "a.bin", "b.bin", "c.ds", "d.npy", "e.safetensors",
    ]  # fmt: skip


def test_a_folder_of_something_else_says_what_it_has(tmp_path: Path) -> None:
    """For example parquet, which has no tokens yet."""
    for name in ("a.parquet", "b.parquet", "index.json"):
        (tmp_path / name).write_bytes(b"12")

    with pytest.raises(
        InvalidCorpus, match=r"without files named .*, but 2 \*\.parquet, 1 \*\.json; ingest"
    ):
        parse_data([str(tmp_path)])


def test_what_belongs_to_nothing_is_what_it_is(beside: Path) -> None:
    """Its format will report what is wrong."""
    assert names(parse_data([str(beside / "f.idx")]).paths) == ["f.idx"]
    assert names(parse_data([str(beside / "g.csv.gz")]).paths) == ["g.csv.gz"]


def test_a_tensor_is_named_behind_a_hash(beside: Path) -> None:
    """Unless that is the name of a file."""
    path = beside / "e.safetensors"
    source = parse_data([f"web={path}#ids/train"])
    assert (source.name, source.paths, source.tensor) == ("web", (str(path),), "ids/train")
    (beside / "x#y.bin").write_bytes(b"12")
    source = parse_data([str(beside / "x#y.bin")])
    assert (names(source.paths), source.tensor) == (["x#y.bin"], None)
    (beside / "run#3").mkdir()
    (beside / "run#3" / "x.bin").write_bytes(b"12")
    source = parse_data([str(beside / "run#3" / "*.bin")])
    assert (names(source.paths), source.tensor) == (["x.bin"], None)
    with pytest.raises(InvalidCorpus, match="another #TENSOR than other files"):
        parse_data([f"{path}#a", f"{path}#b"])


def test_an_option_of_one_dataset_overrides_one_of_all() -> None:
    words = ["uint16", "b=uint32", "uint8", "b=int32"]
    assert parse_per_dataset(DTYPE, words, ["a", "b"]) == {"a": "uint8", "b": "int32"}
    assert parse_per_dataset(DTYPE, [], ["a"]) == {"a": None}
    with pytest.raises(InvalidRequest, match="--dtype: no dataset is named 'c', only a, b"):
        parse_per_dataset(DTYPE, ["c=uint8"], ["a", "b"])


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["pages.parquet"], True),
        (["web=pages/*.jsonl.zst"], True),
        (["a.txt", "b.txt"], True),
        (["a.json.gz"], True),
        (["a.ndjson.xz", "b.jsonl"], True),
        (["train.bin"], False),
        (["web=shards/*.npy"], False),
    ],
)
def test_text_is_known_by_its_name(words: list[str], answer: bool) -> None:
    """Before anything is opened: a glob may stand for a thousand files."""
    assert is_text(words) is answer


def test_text_next_to_tokens_is_an_error() -> None:
    """Tokens that happen to be UTF-8 would be tokenized once more."""
    with pytest.raises(
        InvalidCorpus, match=r"^b.txt: is text, but other files of the dataset are not"
    ):
        is_text(["web=a.bin", "b.txt"])


def test_a_folder_of_text_is_text_unless_it_has_tokens(tmp_path: Path) -> None:
    """A README next to shards does not make them text."""
    assert not is_text([str(tmp_path)])
    for name, answer in (("b.jsonl", True), ("a.txt", True), ("a.bin", False)):
        (tmp_path / name).write_bytes(b"12")
        assert is_text([f"web={tmp_path}"]) is answer
    source = parse_text([f"web={tmp_path}"])
    assert (source.name, names(source.paths)) == ("web", ["a.txt", "b.jsonl"])
    assert parse_text([str(tmp_path / "*.jsonl")]).name == "b"


def test_what_two_ingests_made_is_one_dataset_only_where_it_fits_together(tmp_path: Path) -> None:
    """A run that trains on both splits has seen what it is validated on; an id of another tokenizer
    is another word.
    """
    for place, name in (
        ("corpus/train", "bytes"),
        ("corpus/val", "bytes"),
        ("other/train", "bytes"),
        ("third/train", "bpe.json"),
    ):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "0.ds").write_bytes(b"12")
        manifest = {"version": 1, "job": {}, "tokenizer": {"name": name, "sha256": name}}
        (tmp_path / place).with_name("manifest.json").write_text(json.dumps(manifest))
    train, val, other, third, whole = (
        str(tmp_path / place)
        for place in ("corpus/train", "corpus/val", "other/train", "third/train", "corpus")
    )

    for words, problem in (
        ((f"both={train}", val), "val: is another split than train of the same ingest"),
        ((train, other, third), "has tokens of two tokenizers .* by bytes, .* by bpe.json"),
        ((whole, other), "corpus: is a whole ingest, and other files are given too"),
        ((f"t={train}", f"v={val}"), "v=.*: begins another dataset"),
    ):
        with pytest.raises(
            InvalidCorpus, match=f"{problem}.*; pass one dataset alone; serve takes"
        ):
            parse_data(words)
    assert len(parse_data([train, other]).paths) == 2


def test_a_delimiter_without_a_name_is_general_where_there_are_several_datasets() -> None:
    """Datasets that know their documents then ignore it; a name, or a single dataset, is meant."""
    arguments = Namespace(document_end_token=["5", "a=7"], document_start_token=["6"])

    def delimiters(*names: str) -> list[Delimiters]:
        found = parse_all(arguments, [DatasetSource(name, ("x.bin",)) for name in names])
        return [found[name].planes.delimiters for name in names]

    assert delimiters("a", "b") == [Delimiters(7, 6), Delimiters(5, 6, are_general=True)]
    arguments.document_end_token = ["5"]
    assert delimiters("a") == [Delimiters(5, 6)]


def test_what_a_folder_of_shards_has_besides_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder of them, and those that are compressed; a script is nothing that was meant."""
    for name in ("a.bin", "b.bin.gz", "prepare.py", "en/c.bin", "notes/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(10))

    assert names(parse_data([str(tmp_path)]).paths) == ["a.bin"]

    assert "not served: 2 file(s) or folder(s): b.bin.gz (compressed; unpack it), en (a fo" in (
        caplog.text
    )
