"""One scan for all processes of a machine: made once, and used only for the same files."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT, WriteTokens
from tests.support.opened_files import described
from tests.support.waiting import let_time_pass
from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.datasets import opening, shared_scan
from tokenfeed.server.datasets.content import Scan
from tokenfeed.server.datasets.opening import TokenChecks
from tokenfeed.server.datasets.redactions.overlay import Read
from tokenfeed.server.open_local import open_local
from tokenfeed.server.runtime import once_a_machine
from tokenfeed.server.runtime.small_files import sealed
from tokenfeed.server.storage.store import TokenStore

Scans = Callable[..., int]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the scans; files of any size and age are shared."""
    monkeypatch.setattr(shared_scan, "_BYTES_MIN", 0)
    monkeypatch.setattr(shared_scan, "SETTLED_SECONDS", 0.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    return tmp_path / "cache" / "tokenfeed"


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    written = write_tokens(np.arange(1, 50_001))
    let_time_pass(written)
    return written


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Scans:
    """Open a file, and return how many scans of its content that took."""
    count = 0
    scan_content = opening.scan_content

    def counted(*arguments: object) -> object:
        nonlocal count
        count += 1
        return scan_content(*arguments)

    monkeypatch.setattr(opening, "scan_content", counted)
    fingerprints: dict[bytes, bytes] = {}

    def scans_of(path: Path, **options: str) -> int:
        before = count
        dataset = open_local([[str(path)]], [""], options)
        (found,) = described(dataset, 8)
        dataset.close()
        # What is shared has to be what is there.
        key = path.read_bytes() + found.dtype.encode()
        assert fingerprints.setdefault(key, found.fingerprint) == found.fingerprint
        return count - before

    return scans_of


def the_scan(cache: Path) -> Path:
    (found,) = cache.glob("*.scan.json")
    return found


def test_a_second_process_uses_the_scan_of_the_first(
    cache: Path, path: Path, scans: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever path it names the file."""
    assert scans(path) == 1
    assert scans(path) == 0
    monkeypatch.chdir(path.parent)
    assert scans(Path("train.bin")) == 0
    assert the_scan(cache).stat().st_mode & 0o777 == 0o600


def test_a_small_corpus_is_not_shared(
    cache: Path, path: Path, scans: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read sooner than its scan would be found, and leaves no file."""
    monkeypatch.setattr(shared_scan, "_BYTES_MIN", path.stat().st_size + 1)

    assert [scans(path), scans(path)] == [1, 1]
    assert not cache.exists()


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"zz")


def rewrite_with_the_same_time(path: Path) -> None:
    status = path.stat()
    rewrite(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(bytes(reversed(path.read_bytes())))
    os.replace(other, path)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize(
    "change", [rewrite, rewrite_with_the_same_time, replace, append, Path.touch]
)
@pytest.mark.usefixtures("cache")
def test_a_scan_is_not_used_once_a_file_has_changed(
    path: Path, scans: Scans, change: Callable[[Path], None]
) -> None:
    """It would be the fingerprint of another corpus."""
    assert scans(path) == 1
    change(path)
    let_time_pass(path)

    assert scans(path) == 1
    assert scans(path) == 0


@pytest.mark.usefixtures("cache")
def test_a_scan_of_another_type_or_other_files_is_another_scan(
    path: Path, scans: Scans, write_tokens: WriteTokens
) -> None:
    other = write_tokens(np.arange(1, 50_001), "other.bin")
    let_time_pass(other)

    assert scans(path) == 1
    assert scans(path, dtype="uint32") == 1
    assert scans(other) == 1
    assert [scans(path), scans(path, dtype="uint32"), scans(other)] == [0, 0, 0]


@pytest.mark.usefixtures("cache")
def test_a_type_that_one_process_was_told_is_not_assumed_by_the_next(
    scans: Scans, write_tokens: WriteTokens
) -> None:
    """Who says that halves of uint32 are uint16 may have them; who says nothing is warned."""
    wide = write_tokens(np.arange(70, 50_000), dtype="<u4")
    let_time_pass(wide)
    assert scans(wide, dtype="uint16") == 1

    with pytest.raises(InvalidCorpus, match="dtype=uint32"):
        scans(wide)


def test_a_file_that_was_just_written_is_not_shared(
    cache: Path, path: Path, scans: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be written to again at what its file system takes for the same moment."""
    monkeypatch.setattr(shared_scan, "SETTLED_SECONDS", 60.0)

    assert [scans(path), scans(path)] == [1, 1]
    assert the_scan(cache).read_bytes() == b""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.data())
def test_a_damaged_scan_is_made_again(
    cache: Path, path: Path, scans: Scans, data: st.DataObject
) -> None:
    """A full disk, a crash or a bit that flipped: never another fingerprint, and no traceback."""
    scans(path)
    kept = the_scan(cache)
    intact = kept.read_bytes()
    place = data.draw(st.integers(0, len(intact) - 1))
    damaged = data.draw(
        st.sampled_from(
            (
                b"",
                intact[:place],
                intact[:place] + bytes([intact[place] ^ 1 << place % 8]) + intact[place + 1 :],
                b"[" * 4096,
                b'{"files": 1e999}',
                b"\xff" * 100,
            )
        )
    )
    kept.write_bytes(damaged)

    assert scans(path) == 1
    assert kept.read_bytes() == intact
    assert scans(path) == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"5",
        b"\xff",
        b"[" * 3000,
        b'{"fingerprint": "00"}',
        b'{"fingerprint": 5, "digest": "", "token_max": 1}',
        b'{"fingerprint": "no", "digest": "", "token_max": 1}',
        b'{"fingerprint": "00", "digest": "", "token_max": null}',
        b'{"files": "FILES", "fingerprint": "00", "digest": "", "token_max": 1}',
        b'{"files": "FILES", "fingerprint": "FINGERPRINT", "digest": "00", "token_max": 1}',
    ],
)
def test_a_scan_with_another_content_is_made_again(
    cache: Path, path: Path, scans: Scans, body: bytes
) -> None:
    """Another version wrote it, with its hash."""
    assert scans(path) == 1
    intact = the_scan(cache).read_bytes()
    kept = json.loads(intact.partition(b"\n")[2])
    for name in "files", "fingerprint":
        body = body.replace(name.upper().encode(), kept[name].encode())
    the_scan(cache).write_bytes(sealed(body))

    assert scans(path) == 1
    assert the_scan(cache).read_bytes() == intact


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_to_is_not_trusted(
    cache: Path, path: Path, scans: Scans, mode: int
) -> None:
    """Another user could say which corpus this is."""
    assert scans(path) == 1
    cache.chmod(mode)

    assert scans(path) == 1
    # Now in the folder for temporary files.
    assert scans(path) == 0
    assert the_scan(Path(tempfile.gettempdir()) / f"tokenfeed-{os.getuid()}")


def test_a_folder_or_a_scan_that_is_a_link_is_not_followed(
    cache: Path, path: Path, scans: Scans, tmp_path: Path
) -> None:
    """In a folder for temporary files, anyone can put a link."""
    aim = tmp_path / "aim"
    aim.mkdir(mode=0o700)
    cache.parent.mkdir()
    cache.symlink_to(aim)
    assert scans(path) == 1
    assert list(aim.iterdir()) == []

    (own,) = Path(tempfile.gettempdir()).glob("tokenfeed-*/*.json")
    own.unlink()
    own.symlink_to(aim / "written")
    assert scans(path) == 1
    assert list(aim.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_not_trusted(cache: Path, path: Path, scans: Scans) -> None:
    assert scans(path) == 1
    os.chown(cache, 1234, 1234)
    kept = the_scan(cache).read_bytes()

    assert scans(path) == 1
    assert the_scan(cache).read_bytes() == kept


def unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")


def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)


@pytest.mark.parametrize("without", [unusable, homeless])
@pytest.mark.usefixtures("cache")
def test_without_a_cache_folder_the_scan_is_in_the_folder_for_temporary_files(
    path: Path,
    scans: Scans,
    without: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A container has a read-only root, and perhaps a user without a home."""
    monkeypatch.chdir(tmp_path)
    without(monkeypatch)

    assert [scans(path), scans(path)] == [1, 0]
    assert the_scan(Path(tempfile.gettempdir()) / f"tokenfeed-{os.getuid()}")
    assert not Path("~").exists()


def no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", fail)


def unusable_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")


@pytest.mark.parametrize("without", [no_temporary_folder, unusable_temporary_folder])
@pytest.mark.usefixtures("cache")
def test_without_any_folder_nothing_is_shared(
    path: Path,
    scans: Scans,
    without: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The feed only starts later."""
    unusable(monkeypatch)
    without(monkeypatch)

    with caplog.at_level("INFO", "tokenfeed.server"):
        assert [scans(path), scans(path)] == [1, 1]

    assert "scan not shared: no folder for it can be written" in caplog.text


def test_a_file_system_without_locks_is_not_waited_for(
    cache: Path, path: Path, scans: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre has none unless it is mounted with them, and homes lie there."""
    flock = fcntl.flock

    def flock_here(descriptor: int, operation: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(cache)):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_here)
    began = time.monotonic()

    assert [scans(path), scans(path)] == [1, 0]
    assert time.monotonic() - began < 5.0


def test_another_machine_with_the_same_home_makes_its_own_scan(
    path: Path, scans: Scans, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred nodes would wait for each other, and number their devices differently."""
    assert scans(path) == 1
    here = os.uname()
    named = os.uname_result((here.sysname, "node-7", here.release, here.version, here.machine))
    monkeypatch.setattr(os, "uname", lambda: named)

    assert [scans(path), scans(path)] == [1, 0]
    assert len(list(cache.iterdir())) == 2


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "r+b")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_a_process_that_stops_with_the_lock_holds_up_others_for_a_while_only(
    cache: Path,
    path: Path,
    scans: Scans,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A rank in the debugger must not stop all others for ever."""
    monkeypatch.setattr(once_a_machine, "_WAIT_SECONDS", 0.3)
    assert scans(path) == 1
    command = [sys.executable, "-c", HOLD, str(the_scan(cache))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert scans(path) == 1
        holder.kill()

    assert "and has not got on for" in caplog.text
    assert scans(path) == 0


def test_a_scan_that_gets_on_is_waited_for_however_long_it_takes(
    path: Path, cache: Path, scans: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terabytes that all have to be checked: eight processes would each read them."""
    monkeypatch.setattr(once_a_machine, "_WAIT_SECONDS", 2.0)
    monkeypatch.setattr(once_a_machine, "_TOUCH_SECONDS", 0.1)
    scan_content = opening.scan_content
    began = threading.Event()
    made = []

    def slow(
        store: TokenStore, checks: TokenChecks, read: Read, stopped: Callable[[], bool]
    ) -> Scan:
        made.append(store)
        began.set()
        for _ in range(80):
            assert not stopped()
            time.sleep(0.05)
        return scan_content(store, checks, read, stopped)

    monkeypatch.setattr(opening, "scan_content", slow)
    first = threading.Thread(target=scans, args=(path,))
    first.start()
    assert began.wait(10)
    scans(path)
    first.join()

    assert len(made) == 1


@pytest.mark.parametrize("is_used", [True, False])
def test_a_scan_that_nobody_has_used_for_a_month_is_removed(
    cache: Path, path: Path, write_tokens: WriteTokens, scans: Scans, is_used: bool
) -> None:
    """And nothing else of the folder."""
    assert scans(path) == 1
    old, other = the_scan(cache), cache / "tokenizer.json"
    other.touch()
    last_month = time.time() - 31 * 86_400
    os.utime(old, (last_month, last_month))
    os.utime(other, (last_month, last_month))
    if is_used:
        assert scans(path) == 0
    newer = write_tokens(np.arange(2, 50_001), "newer.bin")
    let_time_pass(newer)
    assert scans(newer) == 1

    assert old.exists() == is_used
    assert other.exists()


@pytest.mark.usefixtures("cache")
def test_the_others_wait_for_the_first_and_use_its_scan(
    path: Path, scans: Scans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node has many ranks and one disk."""
    scan_content = opening.scan_content
    made = []
    began = threading.Event()
    may_end = threading.Event()

    def slow(*arguments: object) -> object:
        made.append(arguments)
        began.set()
        assert may_end.wait(10)
        return scan_content(*arguments)

    monkeypatch.setattr(opening, "scan_content", slow)
    threads = [threading.Thread(target=scans, args=(path,)) for _ in range(4)]
    threads[0].start()
    assert began.wait(10)
    for thread in threads[1:]:
        thread.start()
    may_end.set()
    for thread in threads:
        thread.join()

    assert len(made) == 1


def test_who_is_not_needed_any_more_does_not_wait_for_another_process(
    cache: Path, path: Path, scans: Scans, caplog: pytest.LogCaptureFixture
) -> None:
    """A feed was closed, or its process ends."""
    assert scans(path) == 1
    with the_scan(cache).open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        began = time.monotonic()
        with pytest.raises(InvalidCorpus, match="was closed"):
            open_local([[str(path)]], [""], {}, lambda: True)
    assert time.monotonic() - began < 5.0
    assert "scan not shared" not in caplog.text


# Eight ranks of a node, forks from one process that has imported what they need, start together.
# Each prints its fingerprint, and a line for each scan that it makes.
RANKS = """
import os, sys
from tokenfeed.server import open_local
from tests.support.opened_files import described
from tokenfeed.server.datasets import opening
scan_content = opening.scan_content
def counted(*arguments):
    os.write(1, b"scanned\\n")
    return scan_content(*arguments)
opening.scan_content = counted
come, go = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        os.close(go)
        os.read(come, 1)
        (found,) = described(open_local.open_local([[sys.argv[1]]], [""], {}), 8)
        os.write(1, found.fingerprint.hex().encode() + b"\\n")
        os._exit(0)
os.close(go)
assert not any([os.wait()[1] for _ in range(8)])
"""


def test_eight_ranks_of_a_node_hash_a_corpus_of_2_gib_once(tmp_path: Path) -> None:
    """Eight times, the first batch would come eight times as late."""
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate((2 << 30) - 8)
        file.seek(0, os.SEEK_END)
        file.write(b"the end.")
    an_hour_ago = time.time() - 3600
    os.utime(path, (an_hour_ago, an_hour_ago))
    # Its time of change is now, and cannot be set: it has to settle.
    time.sleep(shared_scan.SETTLED_SECONDS + 0.1)

    done = subprocess.run(
        [sys.executable, "-c", RANKS, str(path)],
        cwd=ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    # Of zeros, which the log says.
    assert all(line.startswith("one value ") for line in done.stderr.splitlines()), done.stderr
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines.count("scanned") == 1
    assert len(set(lines) - {"scanned"}) == 1
    assert len(lines) == 9
