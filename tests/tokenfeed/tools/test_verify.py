"""tokenfeed verify: every byte is read, and the digest is stored next to the files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.client.conftest import wanted
from tests.conftest import ROOT, Serve, WriteTokens
from tests.support import reference
from tokenfeed.client.source.servers import Servers
from tokenfeed.client.transport.channel import describe
from tokenfeed.client.transport.timeouts import Timeouts
from tokenfeed.tools.verify import main

LARGE_BYTES = (1 << 30) + (4 << 20)


@pytest.fixture
def corpus(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(1, 3000))


@pytest.fixture
def large(tmp_path: Path) -> list[Path]:
    """Two copies of a corpus above 1 GiB, nearly all of it holes, in which one token differs that
    no block of the fingerprint holds.
    """
    paths = [tmp_path / name / "train.bin" for name in ("one", "other")]
    for index, path in enumerate(paths):
        path.parent.mkdir()
        with path.open("wb") as file:
            file.truncate(LARGE_BYTES)
            file.seek((600 << 20) + 100_000)
            file.write(bytes([1, index]))
            file.seek(LARGE_BYTES - 2)
            file.write(b"\1\1")
    return paths


def sidecar(path: Path) -> Path:
    own = hashlib.sha256(f"uint16/{path.name} 0".encode()).hexdigest()[:8]
    return path.with_name(f".{path.name}.{own}.tokenfeed-digest.json")


def expected_digest(path: Path) -> bytes:
    return reference.digest("uint16", [path.read_bytes()], 2)


def digest_of(serve: Serve, path: Path) -> bytes:
    return describe(serve("--data", path).address).datasets[0].digest


def test_it_keeps_the_digest_of_the_protocol(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = expected_digest(corpus).hex()

    assert main([str(corpus)]) == 0

    assert f"digest:      {expected}" in capsys.readouterr().out
    assert json.loads(sidecar(corpus).read_text())["digest"] == expected


def test_a_small_corpus_has_its_digest_without_being_verified(serve: Serve, corpus: Path) -> None:
    """All of it is read at every start anyway."""
    assert digest_of(serve, corpus) == expected_digest(corpus)


def test_each_tensor_of_a_file_has_a_digest_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the same file, time, size and type."""
    pytest.importorskip("safetensors")
    from safetensors.numpy import save_file

    path = tmp_path / "both.safetensors"
    save_file({name: np.arange(n, n + 9, dtype="<u2") for n, name in enumerate("ab")}, path)

    assert [main([f"{path}#{name}"]) for name in ("a", "b", "a", "b")] == [0] * 4

    assert len({line for line in capsys.readouterr().out.splitlines() if "digest:" in line}) == 2


@pytest.mark.slow
def test_tokens_that_only_a_server_of_them_would_narrow_are_hashed_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above 1 GiB a sample does not show the greatest one."""
    path = tmp_path / "sparse.npy"
    path.touch()
    os.truncate(path, LARGE_BYTES)
    with path.open("r+b") as file:
        file.seek(4 * 123_456_789)
        file.write(np.array([70_000], "<i4").tobytes())

    assert main([str(path), "--dtype", "int32"]) == 0
    assert "digest:" in capsys.readouterr().out


@pytest.mark.slow
def test_large_corpora_that_differ_in_one_token_have_other_digests_once_verified(
    serve: Serve, large: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Their fingerprints, over a sample of the content, are the same."""
    servers = [serve("--data", path, "--warm-up-bytes", "0") for path in large]
    plain = [describe(server.address).datasets[0] for server in servers]
    assert plain[0].fingerprint == plain[1].fingerprint
    assert [dataset.digest for dataset in plain] == [b"", b""]

    assert [main([str(path)]) for path in large] == [0, 0]

    servers = [serve("--data", path, "--warm-up-bytes", "0") for path in large]
    digests = [describe(server.address).datasets[0].digest for server in servers]
    assert digests[0] != digests[1]
    both = [server.address for server in servers]
    remote = Servers(both, wanted(64, 1), timeouts=Timeouts(reconnect_seconds=10.0))
    assert remote.await_described()[0].digest == digests[0]
    assert f"server rejected address={both[1]} reason=has another corpus: digest" in caplog.text
    remote.close()


def test_a_sidecar_of_other_files_is_ignored(
    serve: Serve, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file was rewritten since."""
    assert main([str(corpus)]) == 0
    np.arange(2, 3001).astype("<u2").tofile(corpus)
    os.utime(corpus, (1, 1))

    assert digest_of(serve, corpus) == expected_digest(corpus)
    assert main([str(corpus)]) == 0


def test_rot_is_found(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other content, with the times of last write that it had."""
    assert main([str(corpus)]) == 0
    status = corpus.stat()
    with corpus.open("r+b") as file:
        file.seek(1000)
        file.write(b"\7")
    os.utime(corpus, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert main([str(corpus)]) == 1

    assert "has changed since it was verified" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        "", "{}", "[]", '{"digest": 5}', '{"digest": "zz"}', '{"digest": "00"}', "\0\1",
        "[" * 60_000, " " * 100_000,
    ],
)  # fmt: skip
def test_a_sidecar_that_is_none_is_ignored(corpus: Path, content: str) -> None:
    sidecar(corpus).write_text(content)

    assert main([str(corpus)]) == 0


@pytest.mark.parametrize("target", [None, "/dev/zero"])
def test_a_sidecar_that_is_not_a_file_is_neither_waited_for_nor_followed(
    corpus: Path, target: str | None
) -> None:
    """Another user may write to the folder."""
    if target is None:
        os.mkfifo(sidecar(corpus))
    else:
        sidecar(corpus).symlink_to(target)

    assert main([str(corpus)]) == 0

    assert json.loads(sidecar(corpus).read_text())["digest"] == expected_digest(corpus).hex()
    assert not sidecar(corpus).is_symlink()


def test_datasets_with_the_same_first_file_keep_their_own(
    corpus: Path, write_tokens: WriteTokens
) -> None:
    other = write_tokens(np.arange(1, 99), "other.bin")

    for data in ([str(corpus), str(other)], [str(corpus)]):
        assert main(data) == 0

    assert len(list(corpus.parent.glob(".*.tokenfeed-digest.json"))) == 2


def test_on_a_read_only_folder_the_digest_is_printed(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A read-only volume."""

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tokenfeed.server.runtime.small_files.os.replace", read_only)

    assert main([str(corpus)]) == 0

    assert "not stored" in capsys.readouterr().out
    assert list(corpus.parent.iterdir()) == [corpus]


def test_files_that_are_not_a_dataset_are_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "missing.bin")]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_output_that_cannot_be_written_is_an_error_in_one_line(corpus: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "tokenfeed.tools.verify", str(corpus)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1] == "error: stdout: cannot be written: No space left on device"
    )


def test_it_ends_with_one_line_when_it_is_interrupted(tmp_path: Path) -> None:
    """It takes minutes, and a user may press Ctrl-C."""
    path = tmp_path / "train.bin"
    with path.open("wb") as file:
        file.truncate(1 << 37)  # a hole: it takes no room on the disk, but a minute to read
    # A shell that starts the tests in the background has Ctrl-C ignored in all that they start.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from tokenfeed.tools.verify import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, str(path)]
    # Or importing numpy starts a thread for each core.
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 10
        while len(os.listdir(f"/proc/{process.pid}/task")) < 8:
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)

    assert process.returncode == 130
    assert re.fullmatch(r"(one value .*\n)?interrupted: no digest was stored\n", errors), errors
