"""A start of a server or of a feed whose corpus was opened on this machine before asks its store
for names alone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from client import NumpyBatches
from tests.conftest import NOTE, Serve
from tests.support.object_server import ObjectServer, RepeatedContent

pytestmark = pytest.mark.usefixtures("own_cache")
OBJECTS, TOKENS = 50, 600
B, T = 5, 256
BATCHES = 20
"""An epoch."""
OPTIONS = {"seed": 1, "order": "shuffled", "rank": 0, "world_size": 1, "num_batches": BATCHES}
UNCACHED = ("--object-cache", "none")
MANIFEST = "bucket/c/manifest.json"
"""Looked for in each folder, at each start."""


def put(store: ObjectServer, folder: Path, number: int, seed: int) -> None:
    """Store a shard of datatrove and what is beside it, and write the same to a folder."""
    random = np.random.default_rng(seed)
    files = {
        ".ds": random.integers(0, 50_000, TOKENS).astype("<u2").tobytes(),
        ".ds.index": np.array([TOKENS // 3, TOKENS], "<u8").tobytes(),
        ".ds.metadata": f"gpt2|2\n{TOKENS}\n4 KT".encode(),
        ".ds.loss": random.integers(0, 2, TOKENS).astype("u1").tobytes(),
    }
    for suffix, content in files.items():
        (folder / f"{number:03}{suffix}").write_bytes(content)
        store.put(f"bucket/c/{number:03}{suffix}", content)


def require_rows(target: str, folder: Path) -> None:
    """All rows of an epoch, with masks, are those of the folder."""
    with (
        NumpyBatches(target, B, T, **OPTIONS) as feed,
        NumpyBatches(f"file:{folder}", B, T, **OPTIONS) as right,
    ):
        assert feed.batches_per_epoch == BATCHES
        for found, expected in zip(feed, right, strict=True):
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


def test_a_second_start_makes_no_get_of_an_object(
    store: ObjectServer, serve: Serve, tmp_path: Path
) -> None:
    """Neither of a beginning, nor of an index, a mask or tokens: a restart of a server with 10,000
    objects is to take a list of names. Of what was replaced, that alone is opened again.
    """
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(OBJECTS):
        put(store, folder, number, seed=number)

    def started() -> set[str]:
        before = len(store.gets)
        server = serve("--data", "train=s3://bucket/c", *UNCACHED)
        gets = {each.key for each in store.gets[before:]}
        require_rows(server.address, folder)
        server.stop()
        return gets - {MANIFEST}

    assert started() == set(store.objects)
    assert started() == set()

    before = len(store.gets)
    with NumpyBatches("s3://bucket/c", B, T, **OPTIONS) as feed:
        assert feed.batches_per_epoch == BATCHES
        assert {each.key for each in store.gets[before:]} <= {MANIFEST}
    require_rows("s3://bucket/c", folder)

    put(store, folder, 7, seed=1000)
    before = len(store.gets)
    started()
    replaced = {"bucket/c/007.ds", "bucket/c/007.ds.loss"}
    heads = [each.key for each in store.gets[before:] if each.headers["range"] == "bytes=0-1023"]
    assert set(heads) - {MANIFEST} == replaced
    assert started() == set()


@pytest.mark.proof
def test_a_second_start_on_ten_thousand_objects_asks_for_names(
    store: ObjectServer, serve: Serve, record_property: Callable[[str, object], None]
) -> None:
    """The figures of docs/object-stores.md."""
    shard = RepeatedContent(np.random.default_rng(1).bytes(1_000_002), 2 << 20)
    for number in range(10_000):
        store.put(f"bucket/c/{number:05}.bin", shard)
    notes = []
    for _ in range(3):
        before, gets_before = len(store.requests), len(store.gets)
        began = time.monotonic()
        server = serve("--data", "train=s3://bucket/c", *UNCACHED)
        seconds = time.monotonic() - began
        requests = len(store.requests) - before
        gets = [each.key for each in store.gets[gets_before:]]
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        memory = re.search(r"VmHWM:\s+(\d+)", status)
        assert memory
        times = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
        worked = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
        notes.append(
            f"{requests} requests, {len(gets)} of them GETs of objects, {seconds:.1f} s, "
            f"{worked:.1f} of a core, {int(memory[1]) >> 10} MiB"
        )
        server.stop()
    assert gets == [MANIFEST]
    assert requests < 10
    record_property(NOTE, f"10,000 objects, three starts: {'; '.join(notes)}")
