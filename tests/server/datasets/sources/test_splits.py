"""Training and validation files in one folder are never one dataset without a word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.server.ingest.corpus import write_jsonl
from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.datasets.sources import parse_datasets
from tokenfeed.server.datasets.sources.splits import require_one_split
from tokenfeed.server.ingest.inputs.discovery import find_sources
from tokenfeed.server.storage.option_names import DATA

REFUSED = {
    "fineweb_train_000001.bin fineweb_train_000002.bin fineweb_val_000000.bin":
        ("fineweb_train_*.bin", "fineweb_val_000000.bin"),
    "train.bin val.bin": ("train.bin", "val.bin"),
    "a.bin b.bin test.bin": ("a.bin", "test.bin"),
    "train/0.bin train/1.bin validation/0.bin": ("train/*.bin", "validation/0.bin"),
    "x-dev-0.bin x-dev-1.bin x-eval-0.bin y.bin": ("x-*.bin", "y.bin"),
    "Valid.bin Train.bin": ("Valid.bin", "Train.bin"),
    "x_train_test_split_train.bin x_train_test_split_test.bin":
        ("x_train_test_split_train.bin", "x_train_test_split_test.bin"),
    "train/a/0.bin train/b/0.bin val/a/0.bin": ("train/**/*.bin", "val/a/0.bin"),
}  # fmt: skip
ONE_SPLIT = [
    "train-00000-of-00002.bin train-00001-of-00002.bin",
    "a.bin b.bin",
    "train_0.bin extra.bin",
    "val_0.bin valid_1.bin dev.bin",
    "eval_logs_0.bin eval_logs_1.bin",
    "testament.bin retrained.bin devices.bin",
]


def paths(folder: Path, names: str) -> list[str]:
    made = [folder / name for name in names.split()]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(200))
    return list(map(str, made))


@pytest.mark.parametrize("names", REFUSED)
def test_files_of_several_splits_are_refused_with_what_takes_one(
    tmp_path: Path, names: str
) -> None:
    """Each suggestion is taken, and has one split."""
    given = paths(tmp_path, names)

    with pytest.raises(InvalidCorpus) as caught:
        require_one_split([str(tmp_path)], given, DATA.to)

    taken = re.findall("--data '([^']+)'", caught.value.problem)
    assert tuple(path.removeprefix(f"{tmp_path}/") for path in taken) == REFUSED[names]
    for path in taken:
        parse_datasets([path])


@pytest.mark.parametrize("names", ONE_SPLIT)
def test_files_of_one_split_are_one_dataset(tmp_path: Path, names: str) -> None:
    """A word that all have says nothing, and a part of a word is none."""
    given = paths(tmp_path, names)

    require_one_split([str(tmp_path)], given, DATA.to)

    assert len(parse_datasets([str(tmp_path)])[0].paths) == len(given)


@pytest.mark.parametrize("word", ["{}", "{}/*.bin", "{}/**"])
def test_a_folder_of_both_is_refused_and_a_folder_named_so_is_not(
    tmp_path: Path, word: str
) -> None:
    """Only names below the given path count."""
    folder = tmp_path / "train-and-val"
    folder.mkdir()
    paths(folder, "fineweb_train_000001.bin fineweb_val_000000.bin")

    with pytest.raises(InvalidCorpus, match=r"train \(1 file\(s\), such as fineweb_train_000001"):
        parse_datasets([word.format(folder)])
    (folder / "fineweb_val_000000.bin").unlink()
    assert len(parse_datasets([word.format(folder)])) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["*/*.bin"],
        ["**/*.bin"],
        ["./*/*.bin"],
        ["train", "val"],
        ["train/0.bin", "val/0.bin"],
        ["./train/0.bin", "val/0.bin"],
    ],
)
def test_a_glob_of_any_form_is_refused_and_what_a_shell_makes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Folders say train and val, wherever the glob begins."""
    paths(tmp_path, "train/0.bin val/0.bin")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidCorpus, match="has files of several splits"):
        parse_datasets(words)


def test_folders_of_several_words_count_only_if_they_are_called_as_a_split(tmp_path: Path) -> None:
    """The words of two folders of anything else may say test by chance."""
    given = paths(tmp_path, "my-test-runs/0.bin pages/0.bin")

    assert len(parse_datasets(given)[0].paths) == 2


def test_what_takes_one_split_is_right_in_the_working_directory_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is left out of it would be lost."""
    names = "train-00000-of-00002.bin train-00001-of-00002.bin test-00000-of-00001.bin"
    paths(tmp_path, names)
    monkeypatch.chdir(tmp_path)

    for folder in (".", "./"):
        with pytest.raises(InvalidCorpus) as caught:
            parse_datasets([folder])
        test, train = re.findall("--data '([^']+)'", caught.value.problem)
        assert len(parse_datasets([test])[0].paths) == 1
        assert len(parse_datasets([train])[0].paths) == 2


@pytest.mark.parametrize("names", REFUSED)
def test_files_of_several_splits_are_one_dataset_if_the_user_says_so(
    tmp_path: Path, names: str
) -> None:
    """A name may say test and mean another thing."""
    given = paths(tmp_path, names)

    (source,) = parse_datasets(given, mixed_splits=True)

    assert sorted(source.paths) == sorted(given)
    write_jsonl(tmp_path / "train.jsonl", [{"text": "a"}])
    write_jsonl(tmp_path / "test.jsonl", [{"text": "a"}])
    assert len(find_sources([f"{tmp_path}/*.jsonl"], mixed_splits=True)[0]) == 2


def test_files_that_no_glob_has_alone_are_all_named(tmp_path: Path) -> None:
    given = paths(tmp_path, "code.bin web-0.bin web-1.bin test-0.bin")

    with pytest.raises(InvalidCorpus) as caught:
        require_one_split([str(tmp_path)], given, DATA.to)

    listed = " ".join(map(repr, given[:3]))
    assert f"take one: --data {listed} or --data " in caught.value.problem


def test_a_folder_of_the_hub_is_refused_by_ingest(tmp_path: Path) -> None:
    """load_dataset would make two splits of it."""
    for name in ("train-00000-of-00001.jsonl", "test-00000-of-00001.jsonl"):
        write_jsonl(tmp_path / name, [{"text": "a"}])

    with pytest.raises(InvalidCorpus) as caught:
        find_sources([str(tmp_path)])

    assert caught.value.problem.endswith(
        f"take one: tokenfeed ingest '{tmp_path}/test-00000-of-00001.jsonl' or "
        f"tokenfeed ingest '{tmp_path}/train-00000-of-00001.jsonl'; or all of them as one dataset: "
        "--mixed-splits"
    )
