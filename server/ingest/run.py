"""The run of an ingest: units -> encoded units -> shards, with checkpoints, and then the manifest.

All output is in a hidden folder of the target until it is complete; then it is renamed. A kill may
follow any step, and the next run repeats that step or resumes after it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any

from tokenfeed.errors import InvalidCorpus, InvalidRequest, InvalidSource, WriteFailed

from ..datasets.sources.manifest import NAME as MANIFEST
from ..datasets.sources.manifest import WORK_FOLDER, read_manifest
from ..runtime.small_files import has_name
from ..runtime.threads.executors import Executor
from .finished import manifest_of, problems_by_path, require_whole
from .inputs import READERS
from .inputs.discovery import require_same
from .inputs.hashes import Hashes
from .job import Checkpoint, Job, SplitProgress
from .output.shard_writer import SplitWriter, sync_folder, write_errors, write_whole
from .output.shuffle import DocumentBatch, selected, shuffled, skip_documents
from .progress import Progress
from .tokenize.encoding import EncodedUnit
from .tokenize.engine import keep_verdict
from .tokenize.recipe import Recipe
from .tokenize.tokenizer import FASTOKENS, TOKENIZERS
from .units import Problem, SourceOffset, Unit

SPLITS = ("train", "val")
_JOB, _CHECKPOINT, _LOCK = "job.json", "checkpoint.json", "lock"
_ENCODED_BY = "encoded_by"
_CHECKPOINT_SECONDS = 5.0

Encoder = Executor[Unit, Recipe, EncodedUnit]
"""Encodes units, here or in other processes."""
Pending = deque[tuple[SourceOffset, tuple[Problem, ...], int]]
"""What is to be counted of units that are not written yet: where each begins, its problems, and
how many of its tokens were compared."""


def ingest(
    job: Job, out: str, executor: Encoder, *, strict: bool, wait: bool, progress: Progress
) -> dict[str, Any]:
    """Make shards of text; resumes an interrupted run.

    out: folder, created if it is missing.  strict: the first problem is an error.  wait: wait while
    another ingest writes to the same folder.
    Returns: the manifest.  Raises: InvalidRequest, InvalidSource, InvalidCorpus, WriteFailed.
    """
    if os.path.lexists(out) and not os.path.isdir(out):
        raise InvalidRequest("--out", f"{out} is not a folder")
    work = os.path.join(out, WORK_FOLDER)
    _require_own(out, work)
    if read_manifest(out) is None or os.path.exists(work):
        with _locked(work, out, wait=wait):
            if read_manifest(out) is None:
                if not os.path.exists(os.path.join(work, MANIFEST)):
                    _begin(job, out, work)
                    try:
                        _encode_all(job, work, executor, strict=strict, progress=progress)
                    except WrongEngine as error:
                        # Whatever it has encoded is in doubt.
                        shutil.rmtree(work, ignore_errors=True)
                        problem = f"{error.problem}; all that was encoded is removed"
                        raise WrongEngine(error.subject, problem) from error
                _publish(out, work)
            shutil.rmtree(work, ignore_errors=True)
    made = read_manifest(out)
    if made is None:
        raise WriteFailed(out, "was removed during the ingest; run the same command again")
    require_made(out, made, job, strict=strict)
    return made


def require_made(out: str, made: dict[str, Any], job: Job, *, strict: bool) -> None:
    """Raise an error unless a finished ingest is of a job, and all of it is there.

    out: its folder.  made: its manifest.  strict: whether a problem of a source is an error.
    Raises: InvalidCorpus, InvalidSource.
    """
    _require_same_job(out, made.get("job"), job)
    require_whole(out, made)
    if strict:
        _require_no_problems({s["path"]: s["problems"] for s in made["sources"]})


class WrongEngine(InvalidSource):
    """The engine that encodes gives other tokens than tokenizers."""


@contextmanager
def _locked(work: str, out: str, *, wait: bool) -> Iterator[None]:
    """Keep other ingests out of a folder, at most until this process ends."""
    descriptor = None
    with write_errors(out):
        while descriptor is None:
            os.makedirs(work, exist_ok=True)
            sync_folder(os.path.dirname(os.path.abspath(out)))
            sync_folder(out)
            descriptor = _lock(os.path.join(work, _LOCK), out, wait=wait)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: str, out: str, *, wait: bool) -> int | None:
    """Return a descriptor that has the lock; None if another ingest finished meanwhile and removed
    the lock file with its folder.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        os.close(descriptor)
        raise WriteFailed(out, "another ingest is writing to it; pass --wait") from error
    if has_name(path, descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _require_own(out: str, work: str) -> None:
    """Raise InvalidCorpus if a folder contains output names that are not from an ingest."""
    for name in (*SPLITS, MANIFEST):
        # In this order: another ingest may be renaming its output at this moment.
        if (
            os.path.lexists(os.path.join(out, name))
            and not os.path.exists(os.path.join(work, _JOB))
            and read_manifest(out) is None
        ):
            raise InvalidCorpus(out, f"contains {name}, not made by ingest; pass another --out")


def _begin(job: Job, out: str, work: str) -> None:
    """Create the hidden folder, or check that it belongs to the same job."""
    path = os.path.join(work, _JOB)
    try:
        with open(path, encoding="utf-8") as file:
            begun = json.load(file)
        _require_same_job(out, begun, job)
        _require_same_versions(out, begun.get(_ENCODED_BY), job)
        return
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise InvalidCorpus(path, "is damaged; remove its folder and start again") from error
    write_whole(path, json.dumps({**job.facts(), _ENCODED_BY: job.encoded_by}, indent=1))


def _require_same_job(out: str, begun: Any, job: Job) -> None:
    """Raise InvalidCorpus unless an ingest is of the same job.  begun: the facts of its job."""
    facts = job.facts()
    if not isinstance(begun, dict):
        raise InvalidCorpus(out, "contains a damaged ingest; remove it and ingest again")
    different = [
        name if isinstance(value, list) else f"{name} ({begun.get(name)}, now {value})"
        for name, value in facts.items()
        if begun.get(name) != value
    ]
    if different:
        problem = f"contains an ingest with other {', '.join(different)}"
        raise InvalidCorpus(out, f"{problem}; pass another --out, or remove this folder")


def _require_same_versions(out: str, begun: Any, job: Job) -> None:
    """Raise InvalidCorpus if other versions of packages began the job: their tokens may differ."""
    for name, now in job.encoded_by.items():
        before = begun.get(name) if isinstance(begun, dict) else None
        if before != now:
            engine = str(before).partition(" ")[0]
            cure = f"pass --tokenizer-engine {engine}"
            if engine == FASTOKENS:
                cure += " where the extra fast-ingest is installed"
            if name == TOKENIZERS:
                cure = f"install tokenizers {before}"
            problem = f"contains an ingest that {name} {before} began, now it is {now}: the tokens "
            problem += f"may differ; {cure}, or remove {os.path.join(out, WORK_FOLDER)}"
            raise InvalidCorpus(out, problem)


def _encode_all(
    job: Job, work: str, executor: Encoder, *, strict: bool, progress: Progress
) -> None:
    """Write all shards and the manifest into the hidden folder."""
    path = os.path.join(work, _CHECKPOINT)
    try:
        checkpoint = Checkpoint.read(path) if os.path.exists(path) else Checkpoint()
    except (
        OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError,
    ) as error:  # fmt: skip
        raise InvalidCorpus(path, "is damaged; remove its folder and start again") from error
    if strict:
        _require_no_problems(problems_by_path(job, checkpoint))

    def keep() -> None:
        write_whole(path, checkpoint.json())

    pending: Pending = deque()
    with ExitStack() as stack:
        hashes = stack.enter_context(closing(Hashes(job.sources, checkpoint.hashes)))
        splits: dict[str, SplitWriter] = {}
        for name in SPLITS if job.recipe.val_fraction else SPLITS[:1]:
            counts = checkpoint.splits.setdefault(name, SplitProgress())
            # While the lock is held: closing a file writes what waits in memory.
            split = stack.enter_context(closing(SplitWriter(os.path.join(work, name), job, counts)))
            splits[name] = split
        for number in range(checkpoint.place.source):
            hashes.begin(number)
        parts = _parts(job, executor, hashes, checkpoint, pending, strict, progress)
        kept = time.monotonic()
        try:
            for batch in _in_order_of_writing(job, parts, checkpoint):
                for name, split in splits.items():
                    split.add(selected(batch.part, batch.part.is_val == (name == "val")))
                _advance(checkpoint, batch.then, pending)
                if time.monotonic() - kept >= _CHECKPOINT_SECONDS:
                    for split in splits.values():
                        split.sync()
                    hashes.collect()
                    keep()
                    kept = time.monotonic()
            progress.show(progress.total_bytes, checkpoint.tokens)
        finally:
            progress.end()
        for split in splits.values():
            split.finish()
        _advance(checkpoint, SourceOffset(len(job.sources), 0), pending)
        keep()
        if not any(counts.shards for counts in checkpoint.splits.values()):
            # Corrected options may use the same folder. In this order: a checkpoint without its job
            # would be taken for that of another one.
            for name in (_CHECKPOINT, _JOB):
                os.unlink(os.path.join(work, name))
            _require_no_problems(problems_by_path(job, checkpoint))
            raise InvalidSource(job.sources[0].path, "has no documents, like all other sources")
        hashes.finish(keep)
    keep()
    manifest = manifest_of(job, checkpoint, work)
    write_whole(os.path.join(work, MANIFEST), json.dumps(manifest, indent=1) + "\n")


def first_tokens(
    job: Job, executor: Encoder, *, strict: bool, seconds: float, progress: Progress
) -> tuple[int, int, float]:
    """Encode for a few seconds, and write nothing.

    seconds: at most, where there is so much.
    Returns: bytes of the sources, their tokens, and the seconds that it took.
    Raises: InvalidSource.
    """
    checkpoint, done_bytes, tokens = Checkpoint(), 0, 0
    begun = time.monotonic()
    with closing(Hashes(job.sources, {})) as hashes:
        sizes = [0, *accumulate(source.size_bytes for source in job.sources)]
        parts = _parts(job, executor, hashes, checkpoint, deque(), strict, progress)
        for unit, part in parts:
            done_bytes = sizes[unit.place.source] + unit.done_bytes
            tokens += part.tokens.size
            if time.monotonic() - begun >= seconds:
                break
    return done_bytes, tokens, time.monotonic() - begun


def _units(job: Job, place: SourceOffset, hashes: Hashes) -> Iterator[Unit]:
    """Yield the units of all sources from an offset on."""
    for index in range(place.source, len(job.sources)):
        source = job.sources[index]
        offset = place.offset if index == place.source else 0
        require_same(source)
        units = READERS[source.kind]
        yield from units(source, index, offset, job.recipe, hashes.known.__setitem__)
        require_same(source)
        hashes.begin(index)


def _left(job: Job, place: SourceOffset, end: SourceOffset) -> Iterator[Unit]:
    """Yield the units from a place to an end in the same source, which a worker has left: so much
    text that all workers encode it.
    """
    source = replace(job.sources[place.source], is_shared=False)
    units = READERS[source.kind]
    for unit in units(source, place.source, place.offset, job.recipe, lambda *_: None):
        require_same(source)
        if unit.place >= end:
            return
        yield unit


def _parts(
    job: Job,
    executor: Encoder,
    hashes: Hashes,
    checkpoint: Checkpoint,
    pending: Pending,
    strict: bool,
    progress: Progress,
) -> Iterator[tuple[Unit, EncodedUnit]]:
    """Yield each unit, without its content, and its tokens, in order; shows progress.

    pending: gets the problems.  Raises: InvalidSource if strict, or if a problem is fatal.
    """
    sizes = [0, *accumulate(source.size_bytes for source in job.sources)]
    begun: list[deque[Unit]] = []
    end = checkpoint.place

    def sent(units: Iterator[Unit]) -> Iterator[Unit]:
        here: deque[Unit] = deque()
        # Those that a result leaves come before all that was sent until then.
        begun.append(here)
        for unit in units:
            # The other process has the text; it is not needed here any more.
            here.append(replace(unit, content=None))
            yield unit

    def left(part: EncodedUnit) -> Iterator[Unit]:
        return sent(_left(job, part.read.end, end)) if part.read is not None else iter(())

    progress.show(sizes[checkpoint.place.source], checkpoint.tokens)
    for part in executor(sent(_units(job, checkpoint.place, hashes)), job.recipe, left):
        while not begun[-1]:
            begun.pop()
        unit = begun[-1].popleft()
        end, unit = unit.end, part.read or unit
        for problem in part.problems:
            if problem.is_of_engine:
                raise _wrong_engine(job, unit, problem)
            if strict or problem.is_fatal:
                path = job.sources[unit.place.source].path
                raise InvalidSource(path, f"{problem.what}, {problem.where}")
        if part.problems or part.compared_tokens:
            pending.append((unit.place, part.problems, part.compared_tokens))
        yield unit, part
        progress.show(sizes[unit.place.source] + unit.done_bytes, checkpoint.tokens)


def _wrong_engine(job: Job, unit: Unit, problem: Problem) -> WrongEngine:
    """Return the error; from now on the engine is not chosen for this tokenizer."""
    path = job.sources[unit.place.source].path
    place = f"{path}, {problem.where}"
    keep_verdict(job.recipe.tokenizer_file, f"it gave other tokens for {place}")
    cure = "run the same command with --tokenizer-engine tokenizers"
    return WrongEngine(path, f"{problem.what}, {problem.where}; {cure}")


def _in_order_of_writing(
    job: Job, parts: Iterator[tuple[Unit, EncodedUnit]], checkpoint: Checkpoint
) -> Iterator[DocumentBatch]:
    if job.shuffle_buffer == 1:
        return (DocumentBatch(part, unit.end) for unit, part in parts)
    left = skip_documents(parts, checkpoint.place.documents)
    return shuffled(left, job.shuffle_buffer, job.seed, checkpoint.documents)


def _advance(checkpoint: Checkpoint, place: SourceOffset, pending: Pending) -> None:
    """Move a checkpoint to a place, and count the problems of the units before it."""
    checkpoint.place = place
    while pending and pending[0][0][:2] < place[:2]:
        unit_place, problems, compared_tokens = pending.popleft()
        checkpoint.count(unit_place.source, problems)
        checkpoint.compared_tokens += compared_tokens


def _require_no_problems(problems: dict[str, Any]) -> None:
    """Raise InvalidSource for the first problem, if there is one."""
    for path, kinds in problems.items():
        for what, found in kinds.items():
            raise InvalidSource(path, f"{what}, {found['first']}")


def _publish(out: str, work: str) -> None:
    """Rename complete output to its final names, the manifest last."""
    for name in (*SPLITS, MANIFEST):
        made = os.path.join(work, name)
        if not os.path.exists(made) or (os.path.isdir(made) and not os.listdir(made)):
            continue
        final = os.path.join(out, name)
        if os.path.lexists(final):
            raise WriteFailed(final, "is not from this ingest; move it away and start again")
        with write_errors(final):
            os.rename(made, final)
        sync_folder(out)
        sync_folder(work)
