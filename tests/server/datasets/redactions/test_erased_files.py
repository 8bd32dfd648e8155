"""Erased tokens are never data: not of a part of the dataset, a larger one, or one without its
list; and a copy that was erased less than the list says is what it is.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import WriteTokens
from tests.support.redacted_corpora import ERASE, has_attributes, redact
from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.options import PlaneOptions
from tokenfeed.server.datasets.redactions import erased_files
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.stream import identity
from tokenfeed.tools.inspect import main as inspect
from tokenfeed.tools.redact import erasing
from tokenfeed.tools.redact.__main__ import main
from tokenfeed.tools.verify import main as verify

UNLISTED = "has erased tokens"


needs_attributes = pytest.mark.skipif(
    not has_attributes(Path(tempfile.gettempdir())),
    reason="the file system of temporary files has no attributes",
)


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


def hidden(path: Path, kind: str) -> list[Path]:
    return sorted(path.parent.glob(f".*{kind}"))


LIST, RECORD = ".tokenfeed-redactions.jsonl", ".tokenfeed-erased.jsonl"


@pytest.fixture
def files(write_tokens: WriteTokens) -> list[Path]:
    """Two files of which one is erased, and a third one."""
    paths = [write_tokens(np.arange(n, 3000), f"s/t{n}.bin") for n in (1, 2, 3)]
    redact(*paths[:2], "--range=t1.bin:1000:2001", *ERASE)
    return paths


@pytest.mark.parametrize("chosen", [[0, 1, 2], [0], [2, 0]])
def test_erased_tokens_of_other_datasets_are_refused(files: list[Path], chosen: list[int]) -> None:
    """A folder grows, or a part of it is opened: zeros would be targets."""
    with pytest.raises(InvalidCorpus, match=UNLISTED) as raised:
        with opened(*(files[number] for number in chosen)):
            pass
    assert raised.value.subject == str(files[0])


def test_a_file_that_was_restored_is_opened(files: list[Path]) -> None:
    """A list is copied to replicas before their files are replaced."""
    np.arange(1, 3000).astype("<u2").tofile(files[0])

    assert erased(*files) == []
    assert erased(*files[:2]) == [(0, 1000, 2001)]


def test_many_files_are_looked_at_at_once(
    write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network file system each is a round trip, and 60,000 in a row take a minute."""
    paths = [write_tokens(np.arange(n, 300), f"s/t{n}.bin") for n in range(1, 5)]
    redact(*paths, "--range=t4.bin:100:201", *ERASE)
    monkeypatch.setattr(erased_files, "_LOOKED_AT_ONCE", 2)
    meet, look = threading.Barrier(2), erased_files._look

    def both(part: Sequence[str]) -> list[tuple[bool, bytes]]:
        meet.wait(20)
        return look(part)

    monkeypatch.setattr(erased_files, "_look", both)
    assert erased(*paths) == [(3, 100, 201)]


@pytest.mark.parametrize("damage", ["{}", "[1]", '{"name": "t1.bin", "fill": 0, "ranges": []}'])
def test_a_damaged_record_is_refused(files: list[Path], damage: str) -> None:
    """What it said may be in no list."""
    place = files[0].parent / RECORD
    place.write_text(damage)
    with pytest.raises(InvalidCorpus, match="restore it, or remove it if all files") as raised:
        with opened(*files[:2]):
            pass
    assert raised.value.subject == str(place)


@pytest.mark.parametrize("fill", [70_000, 9])
def test_a_record_of_another_file_of_this_name_is_ignored(
    write_tokens: WriteTokens, fill: int
) -> None:
    """Files are named alike in many folders, and may be moved."""
    path = write_tokens(np.arange(1, 300))
    record = {"name": path.name, "fill": fill, "ranges": [[5, 9]]}
    (path.parent / RECORD).write_text(f"{json.dumps(record)}\n")

    assert erased(path) == []


def test_each_folder_of_a_dataset_says_what_was_erased_in_it(write_tokens: WriteTokens) -> None:
    """The list lies in the folder of the first file."""
    paths = [write_tokens(np.arange(n, 3000), f"{n}/t.bin") for n in (1, 2)]
    redact(*paths, "--range=1:5:9", *ERASE)

    assert erased(paths[0]) == []
    for chosen in ([paths[1]], [paths[1], paths[0]]):
        with pytest.raises(InvalidCorpus, match=UNLISTED), opened(*chosen):
            pass


def test_what_an_earlier_erasure_has_left_is_refused_too(
    files: list[Path], write_tokens: WriteTokens
) -> None:
    """The next one may be interrupted, or not have come to this file yet."""
    first = files[0].read_bytes()
    redact(*files[:2], "--range=t1.bin:5:9", *ERASE)
    files[0].write_bytes(first)

    with pytest.raises(InvalidCorpus, match=UNLISTED), opened(files[0]):
        pass


def test_another_link_to_an_erased_file_is_refused(write_tokens: WriteTokens) -> None:
    """Two snapshots of a model hub's cache have links to one file."""
    blob = write_tokens(np.arange(1, 300), "blobs/4fa1")
    links = [blob.parent.parent / name / "t.bin" for name in ("one", "two")]
    for link in links:
        link.parent.mkdir()
        link.symlink_to(blob)
    redact(links[0], "--range=0:5:9", *ERASE)

    assert erased(links[0]) == [(0, 5, 9)]
    with pytest.raises(InvalidCorpus, match=UNLISTED), opened(links[1]):
        pass


def test_a_list_elsewhere_hides_nothing(write_tokens: WriteTokens, tmp_path: Path) -> None:
    """A part of the dataset has no list at all then."""
    paths = [write_tokens(np.arange(n, 3000), f"s/t{n}.bin") for n in (1, 2)]
    redact(*paths, "--range=t2.bin:5:9", "--list", tmp_path / "list", *ERASE)

    with pytest.raises(InvalidCorpus, match=UNLISTED), opened(paths[1]):
        pass


def test_what_is_recorded_grows_with_what_is_erased(write_tokens: WriteTokens) -> None:
    """A record that repeated all earlier ranges would soon be more than can be read again."""
    path = write_tokens(np.arange(1, 3000))
    for first in range(0, 12, 2):
        redact(path, f"--range=0:{first}:{first + 1}", *ERASE)
    lines = [json.loads(line) for line in (path.parent / RECORD).read_text().splitlines()]

    assert [line["ranges"] for line in lines] == [[[n, n + 1]] for n in range(0, 12, 2)]


def test_what_cannot_be_recorded_is_not_erased(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of it would be erased for good, and the dataset be refused."""
    place = files[0].parent / RECORD
    before = {each: each.read_bytes() for each in (*files, place)}
    monkeypatch.setattr(erased_files, "BYTES_MAX", place.stat().st_size + 30)
    words = [*map(str, files[:2]), "--range=t2.bin:5:9", *ERASE]
    assert main(words) == 1
    assert f"{place}: would have " in capsys.readouterr().err

    assert {each: each.read_bytes() for each in before} == before
    assert erased(*files[:2]) == [(0, 1000, 2001)]
    monkeypatch.undo()
    assert main(words) == 0
    assert erased(*files[:2]) == [(0, 1000, 2001), (1, 5, 9)]


@pytest.mark.parametrize("token", [0, 9])
def test_what_is_recorded_stops_nothing_before_it_is_listed(
    write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch, token: int
) -> None:
    """The command may be killed in between. Its tokens may all be the fill already."""
    path = write_tokens(np.full(3000, token))
    monkeypatch.setattr(erasing, "write_list", lambda *_: sys.exit(9))
    with pytest.raises(SystemExit):
        main([str(path), "--range=0:5:9", *ERASE])
    monkeypatch.undo()

    assert erased(path) == []
    redact(path, "--range=0:5:9", *ERASE)
    assert erased(path) == [(0, 5, 9)]


WAYS = {
    "renamed": "mv t.bin new.bin",
    "moved": "mkdir other && mv t.bin other/new.bin && ln -s other/new.bin",
    "linked": "mkdir other && ln t.bin other/new.bin && ln -s other/new.bin",
    "linked by symbol": "mv t.bin blob && ln -s blob new.bin",
    "copied with attributes": "mkdir other && cp -a t.bin other/new.bin && ln -s other/new.bin",
}


@needs_attributes
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, 100])
def test_an_erased_file_is_known_by_another_name(
    write_tokens: WriteTokens, way: str, count: int
) -> None:
    """A record has names; an attribute of the file goes where it goes."""
    path = write_tokens(np.arange(1, 3000), "s/t.bin")
    redact(path, *(f"--range=0:{first}:{first + 1}" for first in range(5, 205, 2)[:count]), *ERASE)
    (latest,) = hidden(path, LIST)
    older = shutil.copy(latest, path.parent / "older")
    redact(path, "--range=0:900:901", *ERASE)
    subprocess.run(["sh", "-ec", WAYS[way]], cwd=path.parent, check=True)
    new = path.parent / "new.bin"

    # The older list has all ranges that fit into the attribute, but not all that were erased.
    for place in (None, str(older)):
        with pytest.raises(InvalidCorpus, match=UNLISTED) as raised, opened(new, redactions=place):
            pass
        assert raised.value.subject == str(new)
        assert "user.tokenfeed.erased" in raised.value.problem
    with opened(new, redactions=str(latest)) as dataset:
        assert dataset.redactions is not None
        assert dataset.redactions.erased is not None
        assert dataset.redactions.erased.ranges.token_count == count + 1


def test_a_file_that_was_restored_in_place_is_opened(write_tokens: WriteTokens) -> None:
    """cp and rsync --inplace write to the file that is there, which keeps its attribute."""
    path = write_tokens(np.arange(1, 3000), "s/t.bin")
    original = path.read_bytes()
    redact(path, "--range=0:5:9", *ERASE)
    new = path.rename(path.parent / "other.bin")
    new.write_bytes(original)

    assert erased(new) == []
    redact(new, "--range=0:50:90", *ERASE)
    assert erased(new) == [(0, 50, 90)]


@needs_attributes
def test_a_damaged_attribute_is_refused(write_tokens: WriteTokens) -> None:
    """What it said may be in no list."""
    path = write_tokens(np.arange(1, 3000))
    os.setxattr(path, "user.tokenfeed.erased", b"{")
    with (
        pytest.raises(InvalidCorpus, match=r"a damaged attribute user\.tokenfeed\.erased"),
        opened(path),
    ):
        pass


def test_a_file_system_without_attributes_has_records_alone(
    write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS before 4.2; and FAT has no owners either."""

    def unsupported(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    for name in ("getxattr", "setxattr", "listxattr", "fchown"):
        monkeypatch.setattr(os, name, unsupported)
    path = write_tokens(np.arange(1, 3000), "s/t.bin")
    redact(path, "--range=0:5:9", *ERASE)

    assert erased(path) == [(0, 5, 9)]
    (of_list,) = hidden(path, LIST)
    of_list.unlink()
    with pytest.raises(InvalidCorpus, match=RECORD), opened(path):
        pass


def test_a_record_is_read_by_who_reads_any_of_its_files(write_tokens: WriteTokens) -> None:
    """Of another file of the folder only its owner may know more."""
    paths = [write_tokens(np.arange(n, 3000), f"s/t{n}.bin") for n in (1, 2)]
    for path, mode in zip(paths, (0o644, 0o600), strict=True):
        path.chmod(mode)
        redact(path, "--range=0:5:9", *ERASE)

    assert (paths[0].parent / RECORD).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(("folder", "lock"), [(0o2775, 0o660), (0o755, 0o600), (0o1777, 0o666)])
def test_who_may_write_to_a_folder_may_erase_in_it(
    write_tokens: WriteTokens, folder: int, lock: int
) -> None:
    """Also after root, often with a narrow umask."""
    path = write_tokens(np.arange(1, 3000), "s/t.bin")
    path.parent.chmod(folder)
    before = os.umask(0o077)
    try:
        redact(path, "--range=0:5:9", *ERASE)
    finally:
        os.umask(before)

    found = [each.stat().st_mode & 0o777 for each in hidden(path, ".lock")]
    assert found == [lock, lock]


def test_a_file_with_a_name_as_long_as_can_be_is_opened(write_tokens: WriteTokens) -> None:
    """There can be no list beside it, whose name would be longer."""
    path = write_tokens(np.arange(1, 300), f"{'n' * 250}.bin")

    assert erased(path) == []
    assert main([str(path), "--range=0:5:9"]) == 1
    redact(path, "--range=0:5:9", "--list", path.parent / "list", *ERASE)


def test_files_without_erased_tokens_are_opened_alone(files: list[Path]) -> None:
    """Only what was erased is refused."""
    assert erased(files[1], files[2]) == []
    assert erased(*files[:2]) == [(0, 1000, 2001)]


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
    assert UNLISTED in capsys.readouterr().err
    (path.parent / RECORD).unlink()
    of_list.unlink(missing_ok=True)
    with suppress(OSError):
        os.removexattr(path, "user.tokenfeed.erased")
    assert inspect([str(path)]) == 0
    # The digest beside the files is that of what they hold now.
    digest = next(line for line in with_list.splitlines() if "digest: " in line)
    assert digest not in capsys.readouterr().out


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
    assert erased(one) == erased(replica) == erased(untouched) == [(0, 5, 20), (0, 30, 31)]
    for path in (replica, untouched):
        said = "not erased in these files: train.bin"
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
