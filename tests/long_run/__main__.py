"""A long run of everything at once, and at its end the comparison of every row that arrived.

Trainers as processes read a mixture from three servers, one of which reads an object store. They
change the mixture, redact, save, are killed, and go on in other numbers and with other batch sizes,
while servers are killed, stopped and restarted, and the store goes away. A server and a client that
nothing happens to show whether memory, descriptors and threads stay what they are.

Run: python -m tests.long_run [--hours 1.5] [--seed N] [--out FOLDER]
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.lab import ROOT, Replica
from tests.support import reference
from tests.support.forked import COLD
from tests.support.packed_corpora import write_corpus
from tests.support.seaweed import Seaweed, seaweed

from .ledger import FILL, ORDER_OF, SEED, Corpora, Rows, Stream, Stretch, T, compared
from .memory import Usage

NAMES = list(ORDER_OF)
WEIGHTS = [5, 3, 1, 2]
WORLD_SIZES = (8, 6, 4, 3)
BATCH_SIZES = (2, 3, 4)
PACE_SECONDS = 0.05
CHUNK_STEPS = 60
CHECK_STEPS = 25
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
    """The run so far.

    happened: how often what was done to it.  sample: of the last checkpoint, whose stream is
    `saved`; `stream` is what was asked for meanwhile.
    """

    folder: Path
    targets: list[str]
    corpora: Corpora
    chance: random.Random
    happened: Counter[str] = field(default_factory=Counter)
    stretches: list[Stretch] = field(default_factory=list)
    sample: int = 0
    steps: int = 0
    stream: Stream = field(default_factory=lambda: Stream([(0, WEIGHTS)]))
    saved: Stream = field(default_factory=lambda: Stream([(0, WEIGHTS)]))
    ranges: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        """The last checkpoint."""
        return self.folder / "state.json"

    def samples_of(self, step: int) -> list[int]:
        """Return the samples of a step of the run, rank by rank."""
        for stretch in self.stretches:
            if step < stretch.steps:
                count = stretch.batch_size * stretch.world_size
                first = stretch.first_sample + step * count
                return list(range(first, first + count))
            step -= stretch.steps
        raise ValueError("the run has fewer steps")

    def job(self, end: float) -> None:
        """Run a job from the last checkpoint until it is killed, or the time is over."""
        world_size, batch_size = self.chance.choice(WORLD_SIZES), self.chance.choice(BATCH_SIZES)
        folder = self.folder / f"job-{len(self.stretches)}"
        self.stream = self.saved.copy()
        settings = _settings(self.targets, batch_size, world_size)
        settings["state"] = str(self.state) if self.happened["checkpoints"] else None
        first_sample, saved_steps = self.sample, 0
        with Trainers(folder, world_size, settings) as trainers:
            for chunk in range(1, self.chance.randrange(4, 12)):
                if time.monotonic() > end and saved_steps:
                    break
                sample = trainers.ask("run", CHUNK_STEPS, PACE_SECONDS)
                assert sample == first_sample + chunk * CHUNK_STEPS * world_size * batch_size
                if self.chance.random() < 0.5:
                    last = self.stream.stages[-1].first_sample
                    self._change(trainers, max(sample, last) + self.chance.randrange(1, 2000))
                if self.chance.random() < 0.6:
                    self.state.write_text(json.dumps(trainers.ask("state")))
                    self.happened["checkpoints"] += 1
                    self.sample, self.saved = sample, self.stream.copy()
                    saved_steps = chunk * CHUNK_STEPS
            trainers.tell("run", CHUNK_STEPS, PACE_SECONDS)
            time.sleep(self.chance.uniform(0.0, CHUNK_STEPS * PACE_SECONDS))
            trainers.kill()
        self.happened["jobs killed"] += 1
        self.steps += saved_steps
        self.stretches.append(
            Stretch(folder, batch_size, world_size, first_sample, saved_steps, self.stream)
        )

    def _change(self, trainers: Trainers, at_sample: int) -> None:
        if self.chance.random() < 0.6:
            weights = [self.chance.randrange(0, 6) for _ in NAMES]
            weights[self.chance.randrange(4)] += 1
            began = trainers.ask(
                "change_mixture", dict(zip(NAMES, weights, strict=True)), at_sample
            )
            self.stream.asked.append((at_sample, weights))
            assert began == self.stream.stages[-1].first_sample
            self.happened["changes of the mixture"] += 1
        else:
            name = self.chance.choice(NAMES)
            hashed, one = self._list(name)
            began = trainers.ask("redact", hashed, at_sample, name)
            self.stream.lists.append((began, NAMES.index(name), one))
            self.happened["redactions"] += 1

    def _list(self, name: str) -> tuple[str, reference.RedactionList]:
        """Add a range to the list of a dataset.  Returns: the hash of the list, and the list."""
        ranges = self.ranges.setdefault(name, [])
        files = self.corpora.files[name]
        file = self.chance.randrange(len(files))
        first = self.chance.randrange(files[file].size - 400)
        added = (file, first, first + self.chance.randrange(1, 400))
        ranges.append(added)
        said = tokenfeed(
            *("redact", *sorted((self.folder / "corpora" / name).glob(PATTERN_OF[name]))),
            *("--list", self.folder / f"{name}.jsonl", "--fill", FILL, "--json"),
            *("--range", ":".join(map(str, added))),
        )
        return json.loads(said)["list"], reference.RedactionList(FILL, list(ranges))


PATTERN_OF = dict.fromkeys(NAMES, "*.bin") | {"books": "*.ds"}


def tokenfeed(*words: object) -> str:
    """Run a command, and return what it prints."""
    command = [sys.executable, "-m", "tokenfeed", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_corpora(folder: Path) -> Corpora:
    """Write random tokens, and documents, as BOOKS has them."""
    chance = np.random.default_rng(SEED)
    sizes = {"web": [300_000, 170_001, 90_010], "code": [200_000, 70_123], "math": [150_000]}
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
def servers(folder: Path, store: Seaweed) -> Iterator[list[Replica]]:
    """Yield three servers: the first reads the object store, nothing happens to the last one."""
    with ExitStack() as stack:
        found = []
        for number, place in enumerate(
            ("s3://bucket/", f"{folder}/corpora/", f"{folder}/corpora/")
        ):
            words: list[str | Path] = ["--cache-dir", folder / f"cache-{number}"]
            words += ["--object-cache", "none"]  # so that the store is asked all the time
            for name in NAMES:
                words += ["--data", f"{name}={place}{name}/{PATTERN_OF[name]}"]
                words += ["--redactions", f"{name}={folder}/{name}.jsonl"]
            replica = Replica(folder / f"server-{number}.log", *words)
            stack.callback(replica.close)
            found.append(replica)
        yield found


class Trouble:
    """What happens to servers and store meanwhile, in a thread of its own."""

    def __init__(self, run: Run, servers: Sequence[Replica], store: Seaweed, seed: int) -> None:
        """Begin.  servers: to which something may happen."""
        self._chance, self._happened = random.Random(seed), run.happened
        self._servers, self._store = servers, store
        self._over = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._go_on)
        self._thread.start()

    def end(self) -> None:
        """Wait until what is down is up again.  Raises: what could not be done."""
        self._over.set()
        self._thread.join()
        if self.error:
            raise self.error

    def _go_on(self) -> None:
        kinds = (self._kill, self._restart, self._stop, self._take_store_away)
        try:
            while not self._over.wait(self._chance.uniform(2.0, 15.0)):
                self._chance.choice(kinds)()
        except BaseException as error:  # noqa: BLE001 - raised by `end`
            self.error = error

    def _kill(self) -> None:
        server = self._chance.choice(self._servers)
        server.kill()
        self._over.wait(self._chance.uniform(0.0, 10.0))
        server.start()
        self._happened["servers killed"] += 1

    def _restart(self) -> None:
        for server in self._servers:
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            server.start()
        self._happened["rolling restarts"] += 1

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


def _settings(targets: Sequence[str], batch_size: int, world_size: int) -> dict[str, Any]:
    """Return the settings of a trainer, but for its rank, state and ledger."""
    orders = {name: {"order": order.split("-")[0]} for name, order in ORDER_OF.items()}
    weights = dict(zip(NAMES, WEIGHTS, strict=True))
    return {
        "targets": list(targets),
        "batch_size": batch_size,
        "context_length": T,
        "world_size": world_size,
        "state": None,
        "mixture": {"weights": weights, "order": "shuffled", "seed": SEED, "sources": orders},
    }


def check_answers(run: Run, address: str) -> int:
    """Compare manifest and explain with the second implementation.  Returns: how many differ."""
    wrong, rows = 0, Rows(run.corpora, run.saved)
    totals = Counter(NAMES[rows.source(sample)[0]] for sample in range(run.sample))
    lines = map(json.loads, tokenfeed("manifest", "--state", run.state, address).splitlines())
    said: Counter[str] = Counter()
    for line in lines:
        if line["kind"] == "source":
            said[line["dataset"]] += line["samples"]
    wrong += said != totals
    for step in sorted(run.chance.sample(range(run.steps), min(run.steps, CHECK_STEPS))):
        words = ("--state", run.state, "--step", step, "--json", address)
        explained = json.loads(tokenfeed("explain", *words))["rows"]
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
    parser.add_argument("--seed", type=int, default=1, help="of all that happens")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for all it writes")
    arguments = parser.parse_args()
    os.environ[COLD] = ""  # servers as users start them
    seconds, folder = 3600 * arguments.hours, arguments.out.absolute()
    folder.mkdir(parents=True)
    corpora = write_corpora(folder / "corpora")
    with seaweed(folder) as store, ExitStack() as stack:
        store.put_folder(folder / "corpora", "")
        found = stack.enter_context(servers(folder, store))
        targets = [server.address for server in found]
        run = Run(folder, targets, corpora, random.Random(arguments.seed))
        watched = Trainers(folder / "watched", 1, _settings(targets[2:], 4, 1))
        stack.enter_context(watched)
        pids = {"server": found[2].process.pid, "client": watched.processes[0].pid}
        usage = Usage(pids, every_seconds=min(5.0, seconds / 300))
        stack.callback(usage.end)
        watched.tell("run", 1 << 40, PACE_SECONDS)
        trouble = Trouble(run, found[:2], store, arguments.seed)
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                run.job(end)
        finally:
            trouble.end()
        usage.end()
        assert watched.processes[0].poll() is None, "the trainer left in peace has ended"
        watched.kill()
        differing = check_answers(run, targets[2])
    usage.plot(folder / "memory.svg")
    watched_stretch = Stretch(folder / "watched", 4, 1, 0, 0, Stream([(0, WEIGHTS)]))
    return report(run, watched_stretch, usage, differing, seconds)


def report(run: Run, watched: Stretch, usage: Usage, differing: int, seconds: float) -> int:
    """Print what was seen.  seconds: that it took.  Returns: 0 if all is as it has to be."""
    ends = [stretch.end_sample for stretch in run.stretches]
    begins = [stretch.first_sample for stretch in run.stretches]
    assert begins == [0, *ends[:-1]], "a job did not begin where the one before it was saved"
    counts, alone = compared(run.corpora, run.stretches), compared(run.corpora, [watched])
    for what, count in sorted(run.happened.items()):
        print(f"{count:>10,} {what}")
    print(f"{len(run.stretches):>10,} jobs, {run.steps:,} steps, {run.sample:,} samples")
    for name in ("right", "forgotten", "wrong", "lost"):
        print(f"{counts[name]:>10,} rows {name}")
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
    has_read = alone["forgotten"] >= 4 * seconds / PACE_SECONDS / 2
    bad = counts["wrong"] + counts["lost"] + alone["wrong"] + differing + len(grows)
    return int(bad > 0 or counts["right"] != run.sample or not has_read)


if __name__ == "__main__":
    sys.exit(main())
