"""An ingest that is stopped, disturbed or short of a resource: it resumes, or reports why."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.server.ingest.corpus import (
    documents,
    stored,
    tree,
    write_jsonl,
    write_parquet,
)
from tests.server.ingest.running import ingest, ingested, slow_ingest
from tokenfeed.errors import WriteFailed
from tokenfeed.server.ingest import run

pytestmark = pytest.mark.slow


@contextmanager
def at_work(path: Path, out: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """An ingest that has written something, and has more to do for a second or two."""
    command = slow_ingest(path, *more, "--out", out, "--tokenizer", "bytes", "--workers", "1")
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        try:
            deadline = time.monotonic() + 30
            while not (out / ".ingest" / "train" / "000000.ds").exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield running
        finally:
            running.kill()


def children_of(running: subprocess.Popen[str]) -> list[str]:
    found = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    assert found
    return found


def require_gone(pids: list[str]) -> None:
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Enough text for an ingest of a few seconds."""
    return write_jsonl(tmp_path / "x.jsonl", ({"text": "word " * 100_000} for _ in range(100)))


def test_the_second_ingest_into_a_folder_is_refused_or_waits(tmp_path: Path) -> None:
    """Two of them would write each other's shards."""
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "abc"}])
    words = (path, "--out", tmp_path / "out", "--tokenizer", "bytes")
    (tmp_path / "out" / ".ingest").mkdir(parents=True)
    with (tmp_path / "out" / ".ingest" / "lock").open("w") as lock, ThreadPoolExecutor() as threads:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = ingest(*words)
        waiting = threads.submit(ingest, *words, "--wait")
        time.sleep(1)
        assert not waiting.done()
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert waiting.result().returncode == 0

    assert refused.returncode == 1
    problem = "another ingest is writing to it; pass --wait"
    assert refused.stderr == f"error: {tmp_path / 'out'}: {problem}\n"
    assert stored(tmp_path / "out" / "train") == [97, 98, 99]


def test_a_disk_that_does_not_answer_ends_the_run_and_nothing_is_left_out(tmp_path: Path) -> None:
    """A source that is away for a minute, as on a network, is there the next time."""
    large = write_jsonl(tmp_path / "a.jsonl", ({"text": "word " * 100_000} for _ in range(60)))
    small = write_parquet(tmp_path / "b.parquet", {"text": ["abc"]})
    out = tmp_path / "out"
    words = [str(large), str(small), "--tokenizer", "bytes", "--out", str(out)]
    with at_work(large, out, str(small)) as running:
        small.rename(tmp_path / "away")
        _, said = running.communicate(timeout=60)
    assert running.returncode == 1
    assert f"error: {small}: cannot be read any more: No such file" in said
    (tmp_path / "away").rename(small)

    assert "not ingested" not in ingested(*words)
    assert json.loads((out / "manifest.json").read_text())["splits"]["train"]["documents"] == 61


def test_a_damaged_finished_folder_is_reported(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "abc"}, {"text": None}])
    words = (path, "--out", tmp_path / "out", "--tokenizer", "bytes")
    ingested(*words)
    assert f"error: {path}: null, byte 16" in ingest(*words, "--strict").stderr

    shard = tmp_path / "out" / "train" / "000000.ds"
    os.truncate(shard, 4)

    done = ingest(*words)
    assert done.returncode == 1
    cure = f"is damaged; remove {tmp_path / 'out'} and ingest again"
    assert f"error: {shard}: {cure}" in done.stderr
    with shard.open("ab") as file:
        file.truncate(6)
    index = shard.with_suffix(".ds.index")
    content = index.read_bytes()
    index.unlink()
    assert f"error: {index}: {cure}" in ingest(*words).stderr
    index.write_bytes(content)
    ingested(*words)
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"dtype"', '"type"'))
    assert f"error: {manifest}: {cure}" in ingest(*words).stderr


def test_workers_leave_ctrl_c_and_sigterm_to_their_parent(large: Path, tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal, and systemd's SIGTERM all of a service: their
    tracebacks, or an error about a dead worker, would hide the message.
    """
    with at_work(large, tmp_path / "out") as running:
        blocked = [
            int(line.split()[1], 16)
            for pid in children_of(running)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("SigBlk:")
        ]

    assert blocked
    both = 1 << signal.SIGINT - 1 | 1 << signal.SIGTERM - 1
    assert all(mask & both == both for mask in blocked)


def test_stdout_that_cannot_be_written_gives_no_traceback(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "abc"}])
    words = [str(path), "--out", str(tmp_path / "out"), "--tokenizer", "bytes"]

    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tokenfeed.server.ingest", *words],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr == "error: stdout: cannot be written: No space left on device\n"
    assert stored(tmp_path / "out" / "train") == list(b"abc")


def test_one_that_ends_before_another_has_the_lock_does_not_fail_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes the folder in which the other one has just begun to make the lock."""
    work = tmp_path / "out" / ".ingest"
    finished = [work]
    monkeypatch.setattr(run, "sync_folder", lambda _: finished and shutil.rmtree(finished.pop()))

    with run._locked(str(work), str(tmp_path / "out"), wait=True):
        assert finished == []
        assert os.listdir(work) == ["lock"]


def test_an_ingest_that_has_waited_holds_the_lock_too(tmp_path: Path) -> None:
    """It locks the file that exists, not one that was removed meanwhile."""
    out = tmp_path / "out"
    work = out / ".ingest"
    with ThreadPoolExecutor(1) as thread:
        with run._locked(str(work), str(out), wait=False):
            waiting = run._locked(str(work), str(out), wait=True)
            entered = thread.submit(waiting.__enter__)
            time.sleep(0.2)
            assert not entered.done()
            shutil.rmtree(work)
        entered.result(timeout=10)

    with pytest.raises(WriteFailed, match="another ingest is writing"):
        with run._locked(str(work), str(out), wait=False):
            pass
    waiting.__exit__(None, None, None)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_interrupted_it_says_how_to_resume_and_its_workers_end(
    large: Path, tmp_path: Path, name: str
) -> None:
    with at_work(large, tmp_path / "out") as running:
        children = children_of(running)
        running.send_signal(signal.Signals[name])
        _, said = running.communicate(timeout=20)

    assert running.returncode == 130
    assert said.splitlines()[-1] == "interrupted: run the same command again to resume"
    require_gone(children)


def test_killed_it_leaves_no_process(large: Path, tmp_path: Path) -> None:
    """Otherwise the next one would compete with orphans."""
    with at_work(large, tmp_path / "out") as running:
        children = children_of(running)
        running.kill()
        running.wait()

    require_gone(children)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_source_that_changes_meanwhile_is_named(large: Path, tmp_path: Path, kind: str) -> None:
    """Its first half would be of one file, its second of another. Parquet is read by workers."""
    out = tmp_path / "out"
    if kind == "parquet":
        columns = {"text": ["word " * 100_000 for _ in range(100)]}
        large = write_parquet(tmp_path / "x.parquet", columns, row_group_size=1)
    with at_work(large, out) as running:
        os.utime(large)
        _, said = running.communicate(timeout=60)

    assert running.returncode == 1
    assert f"error: {large}: changed while it was ingested; ingest it again" in said
    assert not (out / "train").exists()


def test_memory_does_not_grow_with_the_text_in_a_row_group(tmp_path: Path) -> None:
    """A dictionary makes 400 MB of text of a file of one; a whole row group of it is too much."""
    values = [f"{number} " * 40_000 for number in range(1000, 1004)]
    rows = 2000
    path = write_parquet(
        tmp_path / "x.parquet", {"text": values * (rows // 4)}, row_group_size=rows
    )
    assert path.stat().st_size < 2 << 20
    words = [str(path), "--out", str(tmp_path / "out"), "--tokenizer", "bytes", "--workers", "2"]

    # A process begins with the peak of its parent, and that of a shell is small.
    done = subprocess.run(
        ["sh", "-c", 'python=$1; shift; "$python" -m tokenfeed.server.ingest "$@"; exit $?', "sh",
         sys.executable, *words],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "400,000,000 tokens, 2,000 documents" in done.stdout
    found = re.search(r"memory at most ([\d,]+) MiB and ([\d,]+) MiB a worker", done.stdout)
    assert found is not None
    own, worker = (int(figure.replace(",", "")) for figure in found.groups())
    print(f"\n{own} MiB, and {worker} MiB a worker")
    assert own + 2 * worker < 600


FULL_THEN_ROOM = """
mount -t tmpfs -o size=600k none "$SMALL"
"$@" 2> "$LOG"
echo $? >> "$LOG"
find "$SMALL" -name '*.ds.metadata' >> "$LOG"
set -e
mount -o remount,size=50m "$SMALL"
"$@"
cp -r "$SMALL/out" "$KEPT"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
def test_a_full_disk_is_reported_and_with_space_it_resumes(tokenizer: Path, tmp_path: Path) -> None:
    """Nothing that is finished is lost, and the result is the same."""
    path = write_jsonl(tmp_path / "x.jsonl", ({"text": text} for text in documents(9000)))
    words = [str(path), "--tokenizer", str(tokenizer), "--shard-tokens", "30000", "--workers", "1"]
    ingested(*words, "--out", tmp_path / "calm")
    small, log, kept = (tmp_path / name for name in ("small", "log", "kept"))
    small.mkdir()

    command = [sys.executable, "-m", "tokenfeed.server.ingest", *words, "--out", str(small / "out")]
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", FULL_THEN_ROOM, "bash", *command],
        cwd=ROOT,
        env=os.environ | {"SMALL": str(small), "LOG": str(log), "KEPT": str(kept)},
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 0, done.stderr
    said, code, *finished = log.read_text().splitlines()
    assert (
        "No space left on device; finished work is kept; free some space and run the same" in said
    )
    assert code == "1"
    assert len(finished) > 2
    assert tree(kept) == tree(tmp_path / "calm")
