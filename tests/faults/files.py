"""Faults of token files: truncated while they are served, and different on one replica."""

from __future__ import annotations

import io
import logging.handlers
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import numpy as np

from tokenfeed.errors import CorpusError
from tokenfeed.server.cli.dataset_options import refused
from tokenfeed.server.datasets.options import parse_options
from tokenfeed.server.datasets.sources import parse_data
from tokenfeed.server.storage.option_names import DTYPE
from tokenfeed.tools.verify import verify

from .lab import Batch, Replica, Report, Sentinel, replicas
from .proxy import DESCRIPTION_BYTES, FaultProxy

_LOG = logging.getLogger("tokenfeed.client")

_AS_ANOTHER_USER = (
    "setpriv", "--reuid=65534", "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
)  # fmt: skip
"""A user that can read all files and owns none."""
_STEPS = 600
_LARGE_BYTES = (1 << 30) + (4 << 20)


def truncated(folder: Path, times: int, seed: int) -> Report:
    """Files truncated to 0 or to half while they are served at full speed, by a server that runs as
    their owner, and by one that does not.
    """
    report = Report("file truncated to 0 or to half while served, as owner and as another user")
    chance = random.Random(seed)
    owner = times if os.geteuid() else times // 2
    for count, wrapper in ((owner, ()), (times - owner, _AS_ANOTHER_USER)):
        if count:
            _truncate_some(folder, count, wrapper, chance, report)
    report.require_exact()
    return report


def _truncate_some(
    folder: Path, count: int, wrapper: Sequence[str], chance: random.Random, report: Report
) -> None:
    sentinels = [Sentinel(folder, _STEPS, name=f"cut-{index}") for index in range(count)]
    other = Sentinel(folder, _STEPS, name="other")
    data = [word for one in (*sentinels, other) for word in ("--data", f"{one.name}={one.corpus}")]
    with replicas(folder, 1, *data, wrapper=wrapper) as (server,):
        with _reading(other, server, report):
            before = server.usage.memory_bytes()
            for sentinel in sentinels:
                report.injected += 1
                report.hits += _truncate_one(sentinel, server, chance, report)
            report.memory_bytes = max(
                report.memory_bytes or 0, server.usage.memory_bytes() - before
            )
        report.require(server.process.poll() is None, "the process still runs")


def _truncate_one(
    sentinel: Sentinel, server: Replica, chance: random.Random, report: Report
) -> bool:
    """Truncate a file while it is read; return whether that ended the stream in the middle.

    The reader waits in the middle of the stream until the file was truncated.
    """
    size = chance.choice((0, sentinel.corpus.stat().st_size // 2))
    cut_after = chance.randrange(2, _STEPS // 3)
    done = threading.Event()
    with sentinel.feed(server.address) as feed:

        def cut() -> None:
            end = time.monotonic() + 30
            while feed.stats().batches < cut_after and time.monotonic() < end:
                time.sleep(0.0001)
            os.truncate(sentinel.corpus, size)
            done.set()

        def batches() -> Iterator[Batch]:
            for number, batch in enumerate(feed):
                if number == _STEPS // 2:
                    done.wait(30)
                yield batch

        thread = threading.Thread(target=cut, daemon=True)
        thread.start()
        try:
            sentinel.watch(batches(), report)
        except CorpusError as error:
            report.require(error.status == "DATA_LOSS", f"DATA_LOSS instead of {error.status}")
            report.require(str(sentinel.corpus.parent) not in str(error), "no path in an error")
            return feed.stats().batches >= cut_after
        finally:
            thread.join()
    return False


@contextmanager
def _reading(sentinel: Sentinel, server: Replica, report: Report) -> Iterator[None]:
    """Read another dataset of the same server repeatedly in a thread, to its end each time."""
    done = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                with sentinel.feed(server.address) as feed:
                    sentinel.watch(feed, report, pace_seconds=0.002)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    for failure in failures:
        raise failure


def one_token(folder: Path, times: int, seed: int) -> Report:
    """One token differs on the second replica. Above 1 GiB only `tokenfeed verify` finds this."""
    report = Report("one token different on one replica, the last time above 1 GiB", times)
    chance = random.Random(seed)
    sentinel = Sentinel(folder, 400)
    other = folder / "other" / "corpus.bin"
    other.parent.mkdir()
    with replicas(folder, 1, "--data", sentinel.corpus) as (right,):
        for _ in range(times - 1):
            shutil.copyfile(sentinel.corpus, other)
            _damage(other, chance.randrange(other.stat().st_size // 2))
            with _refused(folder, other, report) as wrong:
                with sentinel.feed([right.address, wrong]) as feed:
                    sentinel.watch(feed, report)
    large = [folder / name / "corpus.bin" for name in ("one", "two")]
    for path in large:
        path.parent.mkdir()
        with path.open("wb") as file:
            file.truncate(_LARGE_BYTES)
            file.seek(_LARGE_BYTES - 2)
            file.write(b"\1\1")
    _damage(large[1], chance.randrange(_LARGE_BYTES // 2))
    with redirect_stdout(io.StringIO()):
        for path in large:
            verify(parse_data([str(path)]), parse_options({DTYPE: "uint16"}, refused))
    with replicas(folder, 1, "--data", large[0]) as (right,):
        with _refused(folder, large[1], report) as wrong:
            with sentinel.feed([right.address, wrong]) as feed:
                next(feed)
    report.require_exact()
    return report


def _damage(path: Path, index: int) -> None:
    tokens = np.memmap(path, dtype="<u2", mode="r+")
    tokens[index] ^= 1
    tokens.flush()


@contextmanager
def _refused(folder: Path, path: Path, report: Report) -> Iterator[str]:
    """Yield the address of a replica that serves path, and record whether the client refused it by
    name and received nothing but its description.
    """
    messages = logging.handlers.BufferingHandler(100)
    with replicas(folder, 1, "--data", path) as (server,), FaultProxy(server.address) as proxy:
        _LOG.addHandler(messages)
        try:
            yield proxy.address
        finally:
            _LOG.removeHandler(messages)
        named = any(
            f"server rejected address={proxy.address} " in record.getMessage()
            for record in messages.buffer
        )
        report.hits += named and 0 < proxy.down_bytes < DESCRIPTION_BYTES
