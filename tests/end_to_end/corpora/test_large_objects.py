"""An object of 100 GB behind a server that starts: how soon the first batch is here, and that no
byte comes before it that no row needs.

The store repeats 2 MB, so that a test needs no disk.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import NumpyBatches
from tests.conftest import NOTE, Serve, serving
from tests.support import reference
from tests.support.object_server import ObjectServer, RepeatedContent, object_server
from tests.support.waiting import least_seconds
from tokenfeed.server.storage.objects.object_bytes import MERGED_GAP_BYTES
from tokenfeed.server.storage.objects.slab import size_of

SIZE_BYTES = 100 * 10**9
TOKEN_COUNT = SIZE_BYTES // 2
TOKENS = np.random.default_rng(1).integers(0, 50_000, 1_000_003).astype("<u2")
"""Of a prime number, so that windows at different places differ."""
B, T, SEED = 32, 2048, 1
GROUP_BLOCKS = 512
WINDOWS = (TOKEN_COUNT - 1) // T
SAMPLES = {"first": 0, "middle": WINDOWS // 2, "last": WINDOWS - B}
AHEAD = 2048
"""Rows from the first one on that may have been asked for when a batch is here."""
OPENING_GETS_MAX = 8
WORDS = ("--data", "train=s3://bucket/a.bin", "--format", "raw", "--dtype", "uint16")
UNCACHED = ("--object-cache", "none")
CACHED = ("--object-cache-bytes", str(size_of(1024)))
_FIRST_ROWS_SECONDS = "tokenfeed.server.storage.objects.object_cache._FIRST_ROWS_SECONDS"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """A store with the object, whose fingerprint is known since a first start of a server."""
    folder = tmp_path_factory.mktemp("first")
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        object_server() as found,
        serving(folder) as serve,
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        found.put("bucket/a.bin", RepeatedContent(TOKENS.tobytes(), SIZE_BYTES))
        serve(*WORDS, *UNCACHED).stop()
        yield found


def first_token(order: str, sample: int) -> int:
    if order == "blocks":
        return reference.blocks_window(SEED, [TOKEN_COUNT], T, GROUP_BLOCKS, sample)[1]
    return reference.window("shuffled-1", SEED, [TOKEN_COUNT], T, sample)[1]


@contextmanager
def first_batch(address: str, order: str, sample: int) -> Iterator[np.ndarray]:
    """Lend x of the batch at a sample; then the stream ends."""
    options: dict[str, Any] = {"order": order, "start_sample": sample}
    options |= {"group_tokens": GROUP_BLOCKS << 19} if order == "blocks" else {}
    with NumpyBatches(address, B, T, seed=SEED, rank=0, world_size=1, **options) as feed:
        yield next(feed)[0]


@pytest.mark.parametrize(
    ("order", "cache", "samples"),
    [
        ("blocks", CACHED, ("middle",)),
        *(
            pytest.param(order, cache, tuple(SAMPLES), marks=pytest.mark.proof)
            for order, cache in product(("shuffled", "blocks"), (CACHED, UNCACHED))
        ),
    ],
)
def test_no_byte_of_an_object_comes_before_the_first_batch_that_no_row_needs(
    store: ObjectServer,
    serve: Serve,
    tmp_path: Path,
    order: str,
    cache: tuple[str, ...],
    samples: tuple[str, ...],
) -> None:
    """Nothing is downloaded to begin or to resume, also where whole blocks will be cached. Without
    a cache, one GET may have two rows and the 64 KiB between them.
    """
    words = [*WORDS, *cache, *(("--object-cache", tmp_path) if cache == CACHED else ())]
    gap_windows = MERGED_GAP_BYTES // (2 * T) if order == "shuffled" or cache == UNCACHED else 0
    for sample in (SAMPLES[name] for name in samples):
        before = len(store.requests)
        # A busy machine may need longer for a batch than the second in which only rows come.
        server = serve(*words, timers={_FIRST_ROWS_SECONDS: 100.0})
        opened = len(store.requests)
        assert opened - before <= OPENING_GETS_MAX
        with first_batch(server.address, order, sample) as x:
            gets = store.requests[opened:]
            for row, tokens in enumerate(x):
                first = first_token(order, sample + row)
                assert np.array_equal(tokens, TOKENS[np.arange(first, first + T) % TOKENS.size])
        server.stop()
        needed = {first_token(order, sample + row) // T for row in range(AHEAD)}
        assert gets
        for each in gets:
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", each.headers["range"])
            assert asked
            (first, rest), (end, more) = (divmod(int(part), 2 * T) for part in asked.groups())
            assert (rest, more) == (0, 1)  # to the last target
            windows = sorted(needed & {*range(first, end)})
            assert windows[0] == first
            assert windows[-1] == end - 1
            assert max(np.diff(windows), default=1) <= 1 + gap_windows


@pytest.mark.alone
@pytest.mark.proof
@pytest.mark.parametrize("delay_seconds", [0.0, 0.02])
def test_the_first_batch_of_an_object_comes_within_a_second_and_two_round_trips(
    store: ObjectServer,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    tmp_path: Path,
    delay_seconds: float,
) -> None:
    """After "listening", at any sample: a job that was preempted goes on without a wait. The first
    start ever reads 4,096 blocks of 4 KiB before, for the fingerprint.
    """
    monkeypatch.setattr(store, "delay_seconds", delay_seconds)
    before, began = len(store.gets), time.monotonic()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    serve(*WORDS, *UNCACHED).stop()
    gets, start_seconds = len(store.gets) - before, time.monotonic() - began
    assert 4096 <= gets <= 4096 + OPENING_GETS_MAX

    def measure(order: str, sample: int) -> float:
        server = serve(*WORDS, *CACHED, "--object-cache", tmp_path)
        began = time.monotonic()
        with first_batch(server.address, order, sample):
            seconds = time.monotonic() - began
        server.stop()
        return seconds

    enough, notes = 1 + 2 * delay_seconds, []
    for order, (place, sample) in product(("shuffled", "blocks"), SAMPLES.items()):
        seconds = least_seconds(partial(measure, order, sample), enough)
        notes.append(f"{order} {place} {seconds:.2f} s")
        assert seconds < enough
    record_property(
        NOTE,
        f"100 GB in a store, {1000 * delay_seconds:.0f} ms away: first start {gets} GETs, "
        f"{start_seconds:.1f} s; first batch after the next ones: {', '.join(notes)}",
    )
