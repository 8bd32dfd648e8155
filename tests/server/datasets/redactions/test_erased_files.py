"""Erased tokens are never data: not of a part of the dataset, a larger one, or one without its
list; and a copy that was erased less than the list says is what it is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from server.cli.redact import main
from server.datasets.dataset import Dataset
from server.datasets.opening import PlaneOptions, TokenChecks, open_dataset
from server.datasets.sources import DatasetSource
from server.inspect import main as inspect
from server.storage.formats import FormatOptions
from server.verify import main as verify
from tests.conftest import WriteTokens
from tokenfeed.errors import InvalidCorpus
from tokenfeed.stream import identity

ERASE = ("--erase", "--wait-seconds", "0", "--no-delimiter")
UNLISTED = "has erased tokens"


@contextmanager
def opened(*paths: Path, redactions: str | None = None) -> Iterator[Dataset]:
    source = DatasetSource("train", tuple(map(str, paths)))
    where = PlaneOptions(redactions=redactions)
    dataset = open_dataset(source, FormatOptions(), TokenChecks(), planes=where)
    with closing(dataset):
        yield dataset


def erased(*paths: Path) -> list[tuple[int, int, int]]:
    """Ranges whose rows are refused."""
    with opened(*paths) as dataset:
        assert dataset.redactions is not None
        found = dataset.redactions.erased
        return [] if found is None else found.ranges.triples()


def redact(*words: object) -> None:
    assert main([*map(str, words)]) == 0


def hidden(path: Path, kind: str) -> list[Path]:
    return sorted(path.parent.glob(f".*{kind}"))


LIST, MARKER = ".tokenfeed-redactions.jsonl", ".tokenfeed-erased.json"


@pytest.fixture
def files(write_tokens: WriteTokens) -> list[Path]:
    """Two files of which one is erased, and a third one."""
    paths = [write_tokens(np.arange(n, 3000), f"s/t{n}.bin") for n in (1, 2, 3)]
    redact(*paths[:2], "--range=t1.bin:1000:2001", *ERASE)
    return paths


@pytest.mark.parametrize("recorded_by", ["both", "list", "marker"])
@pytest.mark.parametrize("chosen", [[0, 1, 2], [0], [1, 0]])
def test_erased_tokens_of_other_datasets_are_refused(
    files: list[Path], chosen: list[int], recorded_by: str
) -> None:
    """A folder grows, or a part of it is opened: zeros would be targets."""
    for path in hidden(files[0], {"list": MARKER, "marker": LIST, "both": "none"}[recorded_by]):
        path.unlink()
    with pytest.raises(InvalidCorpus, match=UNLISTED) as raised:
        with opened(*(files[number] for number in chosen)):
            pass
    assert raised.value.subject == str(files[0])
    assert (f"{MARKER} says" in raised.value.problem) == (recorded_by == "marker")


@pytest.mark.parametrize(
    "damage", ["", "{}", "[1]", '{"tokenfeed_erased": 2, "fill": 0, "ranges": []}']
)
def test_a_damaged_record_is_refused(files: list[Path], damage: str) -> None:
    """What it said may be in no list."""
    (marker,) = hidden(files[0], MARKER)
    marker.write_text(damage)
    with pytest.raises(InvalidCorpus, match="remove it if the file was restored") as raised:
        with opened(*files[:2]):
            pass
    assert raised.value.subject == str(marker)


def test_files_without_erased_tokens_are_opened_alone(files: list[Path]) -> None:
    """Only what was erased is refused."""
    assert erased(files[1], files[2]) == []
    assert erased(*files[:2]) == [(0, 1000, 2001)]


def test_an_erasure_is_taken_over(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that has grown needs no range typed again, and the older dataset is still served."""
    redact(*files[:2], "--range=t2.bin:0:4", *ERASE)
    before = files[0].read_bytes()
    redact(*files, *ERASE)

    assert erased(*files) == [(0, 1000, 2001), (1, 0, 4)]
    assert erased(*files[:2]) == [(0, 1000, 2001), (1, 0, 4)]
    assert files[0].read_bytes() == before
    redact(*files, "--range=t3.bin:7:9", *ERASE)
    assert erased(*files) == [(0, 1000, 2001), (1, 0, 4), (2, 7, 9)]


def test_a_range_that_was_not_erased_is_not_taken_over(
    files: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Tokens that were restored would be lost."""
    np.arange(1, 3000).astype("<u2").tofile(files[0])

    assert main([*map(str, files), *ERASE]) == 1
    error = capsys.readouterr().err
    assert "were erased, but they are there; remove it if the file was restored" in error
    for path in hidden(files[0], MARKER):
        path.unlink()
    assert erased(*files) == []


def test_the_fill_token_is_taken_over(write_tokens: WriteTokens) -> None:
    """With another one the older dataset would be another one."""
    path, other = write_tokens(range(1, 90), "a.bin"), write_tokens(range(1, 90), "b.bin")
    redact(path, "--range=0:5:9", "--fill=77", *ERASE)
    redact(path, other, *ERASE)

    assert erased(path) == erased(path, other) == [(0, 5, 9)]


@pytest.mark.parametrize("size", ["small", "sampled"])
@pytest.mark.parametrize("what", ["lost", "replaced"])
def test_a_lost_list_is_noticed(
    write_tokens: WriteTokens,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    size: str,
    what: str,
) -> None:
    """The fingerprint of a large dataset is that of a sample, which may be the same."""
    if size == "sampled":
        monkeypatch.setattr(identity, "COMPLETE_BYTES_MAX", 1 << 12)
        monkeypatch.setattr(identity, "SPREAD_BLOCKS", 2)
    path = write_tokens(np.random.default_rng(5).integers(1, 1 << 16, 100_000))
    assert verify([str(path)]) == 0
    redact(path, "--range=0:50000:50100")
    (of_list,) = hidden(path, LIST)
    older = of_list.read_bytes()
    redact(path, *ERASE)
    capsys.readouterr()
    assert inspect([str(path)]) == 0
    with_list = capsys.readouterr().out
    of_list.unlink() if what == "lost" else of_list.write_bytes(older)

    assert inspect([str(path)]) == 1
    if (size, what) == ("small", "replaced"):
        assert "is of another dataset" in capsys.readouterr().err
    else:
        assert UNLISTED in capsys.readouterr().err
    for marker in hidden(path, MARKER):
        marker.unlink()
    of_list.unlink(missing_ok=True)
    assert inspect([str(path)]) == 0
    # The digest beside the files is that of what they hold now.
    digest = next(line for line in with_list.splitlines() if "digest: " in line)
    assert digest not in capsys.readouterr().out


def test_a_folder_that_takes_no_file_is_named(
    write_tokens: WriteTokens, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the list says it then."""
    path = write_tokens(range(1, 90), f"{'x' * 245}.bin")
    redact(path, "--range=0:5:9", "--list", path.parent / "list", *ERASE)

    assert "erasure not recorded file=.xxx" in caplog.text


@pytest.mark.parametrize("size", ["small", "sampled"])
def test_a_copy_catches_up_with_a_later_erasure(
    write_tokens: WriteTokens,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    size: str,
) -> None:
    """The list is copied to all replicas; each of them may have been erased up to another one."""
    if size == "sampled":
        monkeypatch.setattr(identity, "COMPLETE_BYTES_MAX", 1 << 12)
    one = write_tokens(np.arange(1, 9000), "one/train.bin")
    assert verify([str(one)]) == 0
    original = one.read_bytes()
    capsys.readouterr()
    redact(one, "--range=0:5:11", *ERASE)
    replica = shutil.copytree(one.parent, tmp_path / "two") / one.name
    untouched = shutil.copytree(one.parent, tmp_path / "three") / one.name
    for marker in hidden(untouched, MARKER):
        marker.unlink()
    untouched.write_bytes(original)
    redact(replica, *ERASE)
    redact(one, "--range=0:8:20", *ERASE)
    redact(one, "--range=0:30:31", *ERASE)
    (of_list,) = hidden(one, LIST)
    for other in (replica, untouched):
        shutil.copy(of_list, other.parent)

    with opened(one) as first, opened(replica) as second, opened(untouched) as third:
        assert first.fingerprint == second.fingerprint == third.fingerprint
        assert first.digest
        assert {each.digest for each in (second, third)} <= {first.digest, b""}
    assert erased(one) == [(0, 5, 20), (0, 30, 31)]
    assert erased(replica) == [(0, 5, 11)]
    assert erased(untouched) == []
    for path, said in (
        (replica, "erased in these files: only list "),
        (untouched, "not erased in"),
    ):
        capsys.readouterr()
        assert verify([str(path)]) == 0
        assert said in capsys.readouterr().out
        redact(path, *ERASE)
        assert path.read_bytes() == one.read_bytes()
        assert verify([str(path)]) == 0
        assert said not in capsys.readouterr().out
        assert erased(path) == erased(one)
        with opened(path) as found, opened(one) as first:
            assert (found.fingerprint, found.digest) == (first.fingerprint, first.digest)


def test_states_that_a_sample_does_not_tell_apart_refuse_all_that_was_erased(
    write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too much is refused rather than too little."""
    monkeypatch.setattr(identity, "COMPLETE_BYTES_MAX", 1 << 12)
    monkeypatch.setattr(identity, "SPREAD_BLOCKS", 2)
    path = write_tokens(np.arange(100_000) % 50_000 + 1)
    redact(path, "--range=0:50000:50100", *ERASE)
    first = path.read_bytes()
    redact(path, "--range=0:60000:60100", *ERASE)
    path.write_bytes(first)

    assert erased(path) == [(0, 50_000, 50_100), (0, 60_000, 60_100)]


def test_a_running_server_refuses_all_once_the_list_has_another_erasure(
    write_tokens: WriteTokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that it opened are erased while it runs."""
    from server.datasets.redactions import list_file

    monkeypatch.setattr(list_file, "_LOOK_SECONDS", 0.0)
    path = write_tokens(np.arange(1, 900), "one/train.bin")
    original = path.read_bytes()
    redact(path, "--range=0:5:11", *ERASE)
    (of_list,) = hidden(path, LIST)
    os.unlink(hidden(path, MARKER)[0])
    path.write_bytes(original)
    with opened(path) as dataset:
        lists = dataset.redactions
        assert lists is not None
        assert lists.erased is None
        copied = of_list.read_bytes()
        redact(path, *ERASE)
        assert lists.erased is not None
        of_list.write_bytes(copied)
        assert lists.erased is not None
