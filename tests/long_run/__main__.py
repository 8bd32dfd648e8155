"""A long run of everything at once, and at its end the comparison of every row that arrived.

Trainers as processes read a mixture from three servers, one of which reads an object store; other
ones read a mixture in blocks, whose context grows. They change the mixture or the context length,
redact, save, are killed, and go on in other numbers and with other batch sizes, while servers are
killed, stopped and restarted, also by the code of the last release, the store goes away, and the
disk fills that has their caches and the lists of redactions. A server and a client that nothing
happens to show whether memory, descriptors and threads stay what they are.

Run: python -m tests.long_run --out FOLDER [--hours 1.5] [--pace 0.2] [--seed N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.lab import ROOT, Replica
from tests.support import reference
from tests.support.forked import COLD
from tests.support.packed_corpora import write_corpus
from tests.support.releases import extract, last_release
from tests.support.seaweed import Seaweed, seaweed

from .ledger import (
    BLOCK,
    FILL,
    GROUP_BLOCKS,
    GROWN,
    ORDER_OF,
    SEED,
    Corpora,
    Grown,
    Mixed,
    Stream,
    Stretch,
    T,
)
from .memory import Usage

NAMES = list(ORDER_OF)
WEIGHTS = [5, 3, 1, 2]
GROWN_WEIGHTS = [3, 1]
CONTEXT_LENGTHS = (1024, 2048, 4096, 8192)
CHUNK_STEPS = 60
CHECK_STEPS = 25
_DISK_BYTES = 8 << 20
_MOUNTS = "TOKENFEED_TEST_MOUNTS"
"""Set in a process that mounts what nobody else sees."""
_ANSWER_SECONDS = 400.0
GROWTH_MAX = 4.0
"""MiB, descriptors or threads an hour."""


class Trainers(ExitStack):
    """The ranks of a job."""

    def __init__(self, folder: Path, world_size: int, settings: dict[str, Any]) -> None:
        """Start them.  settings: that all have."""
        super().__init__()
        folder.mkdir()
        self._log = self.enter_context((folder / "log").open("w"))
        self.processes = [
            self._start(settings | {"rank": rank, "ledger": str(folder / f"rank-{rank}")})
            for rank in range(world_size)
        ]

    def _start(self, settings: dict[str, Any]) -> subprocess.Popen[str]:
        targets = settings["targets"]
        first = settings["rank"] % len(targets)
        settings["targets"] = targets[first:] + targets[:first]
        command = [sys.executable, "-m", "tests.long_run.trainer", json.dumps(settings)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)  # type: ignore[call-overload]
        self.callback(_end, process)
        return process  # type: ignore[no-any-return]

    def tell(self, *command: object) -> None:
        """Send a command to all."""
        for process in self.processes:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()

    def ask(self, *command: object) -> Any:
        """Send a command to all, and return the answer that all of them give."""
        self.tell(*command)
        answers = [self._answer(process) for process in self.processes]
        assert all(answer == answers[0] for answer in answers), (command, answers)
        return answers[0]

    def _answer(self, process: subprocess.Popen[str]) -> Any:
        # A trainer that waits for its servers for ever ends by itself before that.
        late = threading.Timer(_ANSWER_SECONDS, process.kill)
        late.start()
        line = process.stdout.readline()
        late.cancel()
        assert line, f"a trainer has ended: {Path(self._log.name).read_text()[-3000:]}"
        return json.loads(line)

    def kill(self) -> None:
        """Kill all of them, whatever they do."""
        for process in self.processes:
            process.kill()
            process.wait()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        pipe.close()


@dataclass
class Run:
    """The run so far, of jobs one after another.

    stream: what was asked for; saved: by the last checkpoint, which is before `sample`.  pace: in
    seconds a step.  happened: how often what was done to it.  counts: of rows, as `compare` does.
    """

    folder: Path
    targets: list[str]
    corpora: Corpora
    chance: random.Random
    pace: float
    happened: Counter[str]
    stream: Stream
    saved: Stream
    name: str
    world_sizes: Sequence[int]
    batch_sizes: Sequence[int]
    stretches: list[Stretch] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    sample: int = 0
    steps: int = 0

    @property
    def state(self) -> Path:
        """The last checkpoint."""
        return self.folder / f"{self.name}.json"

    def samples_of(self, step: int) -> list[int]:
        """Return the samples of a step of the run, rank by rank."""
        for stretch in self.stretches:
            if step < stretch.steps:
                ranks = [stretch.batches(rank) for rank in range(stretch.world_size)]
                return [sample for rank in ranks for sample in next(islice(rank, step, None))]
            step -= stretch.steps
        raise ValueError("the run has fewer steps")

    def go_on(self, end: float, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Run one job after another until the time is over.

        end: of `time.monotonic`.  goes_on: whether what runs beside this has not failed.
        """
        while time.monotonic() < end and goes_on():
            self._job(end)

    def _job(self, end: float) -> None:
        """Run a job from the last checkpoint until it is killed, or the time is over."""
        world_size = self.chance.choice(self.world_sizes)
        batch_size = self.chance.choice(self.batch_sizes)
        folder = self.folder / f"{self.name}-{len(self.stretches)}"
        self.stream = self.saved.copy()
        settings = _settings(self.targets, batch_size, world_size, self.stream)
        settings["state"] = str(self.state) if self.state.exists() else None
        first_sample, saved_steps = self.sample, 0
        with Trainers(folder, world_size, settings) as trainers:
            for chunk in range(1, self.chance.randrange(4, 12)):
                if time.monotonic() > end and saved_steps:
                    break
                sample = trainers.ask("run", CHUNK_STEPS, self.pace)
                if self.chance.random() < 0.5:
                    self._change(trainers, sample)
                if self.chance.random() < 0.6:
                    self.state.write_text(json.dumps(trainers.ask("state")))
                    self.happened["checkpoints"] += 1
                    self.sample, self.saved = sample, self.stream.copy()
                    saved_steps = chunk * CHUNK_STEPS
            trainers.tell("run", CHUNK_STEPS, self.pace)
            time.sleep(self.chance.uniform(0.0, CHUNK_STEPS * self.pace))
            trainers.kill()
        self.happened["jobs killed"] += 1
        self.steps += saved_steps
        stretch = Stretch(
            *(folder, batch_size, world_size),
            *(first_sample, saved_steps, self.sample, self.stream),
        )
        self.stretches.append(stretch)
        found = stretch.compare(self.corpora)
        self.counts += found
        print(f"{time.strftime('%H:%M:%S')} {folder.name}: {dict(found)}", flush=True)

    def _change(self, trainers: Trainers, sample: int) -> None:
        """Change what follows, at this sample or behind it."""
        raise NotImplementedError


@dataclass
class Growth(Run):
    """A run over a mixture whose context length and weights change again and again."""

    stream: Grown

    def _change(self, trainers: Trainers, sample: int) -> None:
        length, last, _ = self.stream.stages[-1]
        at_sample = max(sample, last.first_sample) + self.chance.randrange(1, 500)
        change: int | list[int]
        if self.chance.random() < 0.3:
            change = [self.chance.randrange(0, 4), self.chance.randrange(0, 3)]
            change[self.chance.randrange(2)] += 1
            weights = dict(zip(self.stream.names, change, strict=True))
            began, what = trainers.ask("change_mixture", weights, at_sample), "the mixture"
        else:
            longer = [each for each in CONTEXT_LENGTHS if each > length]
            change = self.chance.choice(longer or CONTEXT_LENGTHS[:-1])
            began = trainers.ask("change_context_length", change, at_sample)
            what = "the context length"
        if change == last.weights:
            assert began == last.first_sample
            self.happened["changes that changed nothing"] += 1
            return
        after = Grown([*self.stream.asked, (at_sample, change)], self.stream.token_counts)
        if isinstance(began, str):
            assert max(after.stages[-1].left_out) * length > GROUP_BLOCKS * BLOCK, began
            self.happened[f"changes of {what} that were refused"] += 1
            return
        self.stream = after
        assert began == after.stages[-1].stage.first_sample
        self.happened[f"changes of {what}"] += 1


@dataclass
class Mixing(Run):
    """A run over a mixture that changes.  disk: has the lists.  ranges: of those."""

    stream: Mixed
    disk: Path = Path()
    ranges: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)

    def _change(self, trainers: Trainers, sample: int) -> None:
        last = self.stream.stages[-1]
        at_sample = max(sample, last.first_sample) + self.chance.randrange(1, 2000)
        if self.chance.random() < 0.6:
            weights = [self.chance.randrange(0, 6) for _ in NAMES]
            weights[self.chance.randrange(4)] += 1
            began = trainers.ask(
                "change_mixture", dict(zip(NAMES, weights, strict=True)), at_sample
            )
            if weights == last.weights:
                assert began == last.first_sample
                self.happened["changes that changed nothing"] += 1
                return
            self.stream.asked.append((at_sample, weights))
            assert began == self.stream.stages[-1].first_sample
            self.happened["changes of the mixture"] += 1
        else:
            name = self.chance.choice(NAMES)
            if (found := self._list(name)) is None:
                self.happened["redactions that had no room"] += 1
                return
            hashed, one = found
            began = trainers.ask("redact", hashed, at_sample, name)
            self.stream.lists.append((began, NAMES.index(name), one))
            self.happened["redactions"] += 1

    def _list(self, name: str) -> tuple[str, reference.RedactionList] | None:
        """Add a range to the list of a dataset.

        Returns: the hash of the list, and the list; None if the disk is full.
        """
        ranges = self.ranges.setdefault(name, [])
        files = self.corpora.files[name]
        file = self.chance.randrange(len(files))
        first = self.chance.randrange(files[file].size - 400)
        added = (file, first, first + self.chance.randrange(1, 400))
        done = tokenfeed(
            *("redact", *sorted((self.folder / "corpora" / name).glob(PATTERN_OF[name]))),
            *("--list", self.disk / f"{name}.jsonl", "--fill", FILL, "--json"),
            *("--range", ":".join(map(str, added))),
        )
        if "No space left on device" in done.stderr:
            return None
        ranges.append(added)
        return json.loads(finished(done))["list"], reference.RedactionList(FILL, list(ranges))


PATTERN_OF = dict.fromkeys([*NAMES, GROWN], "*.bin") | {"books": "*.ds"}


def tokenfeed(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "tokenfeed", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def finished(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a command printed."""
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_corpora(folder: Path) -> Corpora:
    """Write random tokens, and documents, as BOOKS has them."""
    chance = np.random.default_rng(SEED)
    sizes = {"web": [300_000, 170_001, 90_010], "code": [200_000, 70_123], "math": [150_000]}
    sizes[GROWN] = [15 * BLOCK + 1, BLOCK // 3, 9 * BLOCK + 70_000]
    files = {}
    for name, counts in sizes.items():
        (folder / name).mkdir(parents=True)
        files[name] = [chance.integers(1, 1 << 16, count, "<u2") for count in counts]
        for number, tokens in enumerate(files[name]):
            tokens.tofile(folder / name / f"{number}.bin")
    lengths = [chance.integers(1, 900, 60).tolist() for _ in range(2)]
    books = write_corpus(folder / "books", lengths, "books")
    files["books"] = [np.fromfile(path, "<u2") for path in books.paths]
    return Corpora(files, lengths)


@contextmanager
def servers(folder: Path, disk: Path) -> Iterator[list[Replica]]:
    """Yield three servers: the first reads the object store, nothing happens to the last one.

    disk: has the lists, and the caches of the others.
    """
    with ExitStack() as stack:
        found = []
        for number, place in enumerate(
            ("s3://bucket/", f"{folder}/corpora/", f"{folder}/corpora/")
        ):
            cache = (disk if number < 2 else folder) / f"cache-{number}"
            words: list[str | Path] = ["--cache-dir", cache]
            if number == 0:
                words += ["--object-cache", "none"]  # so that the store is asked all the time
            for name in NAMES:
                words += ["--data", f"{name}={place}{name}/{PATTERN_OF[name]}"]
                words += ["--redactions", f"{name}={disk}/{name}.jsonl"]
            if number != 1:  # which runs the last release too
                words += ["--data", f"{GROWN}={place}{GROWN}/{PATTERN_OF[GROWN]}"]
            replica = Replica(folder / f"server-{number}.log", *words)
            stack.callback(replica.close)
            found.append(replica)
        yield found


class Beside(threading.Thread):
    """A thread that does something beside the run, and may fail."""

    def __init__(self, work: Callable[[], None]) -> None:
        """Begin."""
        super().__init__()
        self._work = work
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Do it."""
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised by `end`
            self._error = error

    def end(self) -> None:
        """Wait until it is done.  Raises: what could not be done."""
        self.join()
        if self._error:
            raise self._error


class Trouble:
    """What happens to servers, store and disk meanwhile, in a thread of its own.

    servers: to which something may happen.  disk: which fills.  release: the code of the last one.
    """

    def __init__(
        self,
        happened: Counter[str],
        servers: Sequence[Replica],
        store: Seaweed,
        disk: Path,
        release: Path,
        seed: int,
    ) -> None:
        """Begin."""
        self._chance, self._happened = random.Random(seed), happened
        self._servers, self._store = servers, store
        self._disk, self._release = disk, release
        self._over = threading.Event()
        self._beside = Beside(self._go_on)

    def end(self) -> None:
        """Wait until what is down is up again.  Raises: what could not be done."""
        self._over.set()
        self._beside.end()

    def _go_on(self) -> None:
        kinds = (
            *(self._kill, self._restart, self._stop, self._take_store_away),
            *(self._fill_disk, self._upgrade),
        )
        while True:
            for kind in self._chance.sample(kinds, len(kinds)):
                if self._over.wait(self._chance.uniform(2.0, 15.0)):
                    return
                kind()

    def _kill(self) -> None:
        server = self._chance.choice(self._servers)
        server.kill()
        self._over.wait(self._chance.uniform(0.0, 10.0))
        server.start()
        self._happened["servers killed"] += 1

    def _restart(self) -> None:
        for server in self._servers:
            _restart(server)
        self._happened["rolling restarts"] += 1

    def _upgrade(self) -> None:
        """From the last release to this code, or back."""
        server = self._servers[1]
        server.wrapper = () if server.wrapper else ("env", "-C", str(self._release))
        _restart(server)
        self._happened["servers restarted with the other version"] += 1

    def _fill_disk(self) -> None:
        """A server that starts then has to do without what it would keep."""
        filler = self._disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))
        server = self._chance.choice(self._servers)
        for path in (self._disk / f"cache-{self._servers.index(server)}").glob("*"):
            path.unlink()
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))
        _restart(server)
        self._over.wait(self._chance.uniform(5.0, 30.0))
        filler.unlink()
        self._happened["times the disk was full"] += 1

    def _stop(self) -> None:
        server = self._chance.choice(self._servers)
        server.signal(signal.SIGSTOP)
        self._over.wait(self._chance.uniform(1.0, 10.0))
        server.signal(signal.SIGCONT)
        self._happened["servers stopped for seconds"] += 1

    def _take_store_away(self) -> None:
        self._store.process.send_signal(signal.SIGSTOP)
        self._over.wait(self._chance.uniform(5.0, 30.0))
        self._store.process.send_signal(signal.SIGCONT)
        self._happened["times without the store"] += 1


def _restart(server: Replica) -> None:
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    server.start()


def _settings(
    targets: Sequence[str], batch_size: int, world_size: int, stream: Stream
) -> dict[str, Any]:
    """Return the settings of a trainer, but for its rank, state and ledger."""
    orders = {name: {"order": order.split("-")[0]} for name, order in ORDER_OF.items()}
    weights = dict(zip(NAMES, WEIGHTS, strict=True))
    mixture = {"weights": weights, "order": "shuffled", "seed": SEED, "sources": orders}
    own = {"code": {"order": "random"}}
    growing = {"weights": dict(zip(Grown.names, GROWN_WEIGHTS, strict=True)), "sources": own}
    growing |= {"order": "blocks", "seed": SEED}
    is_mixed = isinstance(stream, Mixed)
    return {
        "targets": list(targets),
        "batch_size": batch_size,
        "context_length": T if is_mixed else CONTEXT_LENGTHS[0],
        "world_size": world_size,
        "state": None,
        "options": {"mixture": mixture}
        if is_mixed
        else {"mixture": growing, "group_tokens": GROUP_BLOCKS * BLOCK},
    }


def check_answers(run: Run, address: str) -> int:
    """Compare manifest and explain with the second implementation.  Returns: how many differ."""
    wrong, rows = 0, run.saved.rows(run.corpora)
    totals = Counter(run.saved.names[rows.source(sample)[0]] for sample in range(run.sample))
    manifest = finished(tokenfeed("manifest", "--state", run.state, address))
    lines = map(json.loads, manifest.splitlines())
    said: Counter[str] = Counter()
    for line in lines:
        if line["kind"] == "source":
            said[line["dataset"]] += line["samples"]
    wrong += said != totals
    for step in sorted(run.chance.sample(range(run.steps), min(run.steps, CHECK_STEPS))):
        words = ("--state", run.state, "--step", step, "--json", address)
        # Behind the last row of a length, a step has padding.
        explained = json.loads(finished(tokenfeed("explain", *words)))["rows"]
        explained = [row for row in explained if not row.get("is_padding")]
        wrong += [row["sample"] for row in explained] != run.samples_of(step)
        for row in explained:
            pieces = [[each["file"], *each["tokens"]] for each in row["ranges"]]
            due = [[file, first, first + n] for file, first, n in rows.pieces(row["sample"])]
            wrong += _joined(pieces) != _joined(due)
    return wrong


def _joined(ranges: list[list[int]]) -> list[list[int]]:
    """Return ranges whose ends touch as one: explain names each document of a window."""
    found: list[list[int]] = []
    for file, first, end in ranges:
        if found and found[-1][0] == file and found[-1][2] == first:
            found[-1][2] = end
        else:
            found.append([file, first, end])
    return found


def main() -> int:
    """Run, compare, and print what was seen.  Returns: 0 if no row was lost, repeated or wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.5, help="(default: %(default)s)")
    parser.add_argument("--pace", type=float, default=0.05, help="seconds a step (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all that happens")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for all it writes")
    arguments = parser.parse_args()
    os.environ[COLD] = ""  # servers as users start them
    seconds, folder, pace = 3600 * arguments.hours, arguments.out.absolute(), arguments.pace
    disk = folder / "disk"
    disk.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "none", str(disk)]
    subprocess.run(mount, check=True)
    release = extract(last_release(), folder / "release")
    corpora, happened = write_corpora(folder / "corpora"), Counter[str]()
    with seaweed(folder) as store, ExitStack() as stack:
        store.put_folder(folder / "corpora", "")
        found = stack.enter_context(servers(folder, disk))
        targets = [server.address for server in found]

        def begin(kind: type[Run], targets: list[str], stream: Stream, *words: Any) -> Any:
            chance = random.Random(arguments.seed)
            streams = (stream, stream.copy())
            return kind(folder, targets, corpora, chance, pace, happened, *streams, *words)

        mixed = Mixed([(0, WEIGHTS)])
        counts = [[tokens.size for tokens in corpora.files[name]] for name in Grown.names]
        mixing = begin(Mixing, targets, mixed, "mixed", (8, 6, 4, 3), (2, 3, 4))
        mixing.disk = disk
        grown = Grown([(0, CONTEXT_LENGTHS[0]), (0, GROWN_WEIGHTS)], counts)
        growth = begin(Growth, [targets[0], targets[2]], grown, "grown", (2, 3), (8, 16))
        watched = Trainers(folder / "watched", 1, _settings(targets[2:], 4, 1, mixed))
        stack.enter_context(watched)
        pids = {"server": found[2].process.pid, "client": watched.processes[0].pid}
        usage = Usage(pids, every_seconds=min(5.0, seconds / 300))
        stack.callback(usage.end)
        watched.tell("run", 1 << 40, pace)
        trouble = Trouble(happened, found[:2], store, disk, release, arguments.seed)
        end = time.monotonic() + seconds
        beside = Beside(lambda: growth.go_on(end))
        try:
            mixing.go_on(end, beside.is_alive)
        finally:
            beside.join()
            trouble.end()
        beside.end()
        usage.end()
        assert watched.processes[0].poll() is None, "the trainer left in peace has ended"
        watched.kill()
        differing = sum(check_answers(run, targets[2]) for run in (mixing, growth))
    usage.plot(folder / "memory.svg")
    watched_stretch = Stretch(folder / "watched", 4, 1, 0, 0, 0, mixed)
    return report([mixing, growth], watched_stretch, usage, differing, seconds, pace)


def report(
    runs: Sequence[Run], watched: Stretch, usage: Usage, differing: int, seconds: float, pace: float
) -> int:
    """Print what was seen.

    seconds: that it took.  pace: seconds a step.  Returns: 0 if all is as it has to be.
    """
    for what, times in sorted(runs[0].happened.items()):
        print(f"{times:>10,} {what}")
    bad, alone = differing, watched.compare(runs[0].corpora)
    for run in runs:
        ends = [stretch.end_sample for stretch in run.stretches]
        begins = [stretch.first_sample for stretch in run.stretches]
        assert begins == [0, *ends[:-1]], "a job did not begin where the one before it was saved"
        print(f"{run.name}: {len(ends):,} jobs, {run.steps:,} steps, {run.sample:,} samples")
        for name in ("right", "forgotten", "wrong", "lost"):
            print(f"{run.counts[name]:>10,} rows {name}")
        bad += run.counts["wrong"] + run.counts["lost"] + (run.counts["right"] != run.sample)
    print(f"{alone['forgotten']:>10,} rows of a trainer left in peace")
    print(f"{alone['wrong']:>10,} rows of it wrong")
    print(f"{differing:>10,} answers of manifest and explain that differ")
    grows = []
    for what, slope in usage.slopes().items():
        print(f"{what}: {slope.per_hour:+.3f} an hour, standard error {slope.error:.3f}")
        # Less than an hour is warm-up: heaps grow while everything happens for the first time.
        if seconds >= 3600 and slope.per_hour - 3 * slope.error > GROWTH_MAX:
            grows.append(what)
    print(f"grows: {', '.join(grows) or 'nothing'}")
    # At least half of what its pace allows.
    has_read = alone["forgotten"] >= watched.batch_size * seconds / pace / 2
    return int(bad + alone["wrong"] + len(grows) > 0 or not has_read)


if __name__ == "__main__":
    # The disk that fills is a mount of this process, and ends with it, however it ends.
    if _MOUNTS not in os.environ:
        who = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        words = [*who, sys.executable, "-m", "tests.long_run", *sys.argv[1:]]
        os.execvpe(words[0], words, os.environ | {_MOUNTS: ""})
    sys.exit(main())
