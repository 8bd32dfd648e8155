"""The hashes of sources, computed during the run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import closing
from pathlib import Path

import pytest

from tests.server.ingest import corpus
from tokenfeed.errors import InvalidSource
from tokenfeed.server.ingest import run
from tokenfeed.server.ingest.inputs import hashes as hashes_module
from tokenfeed.server.ingest.inputs import jsonl
from tokenfeed.server.ingest.inputs.discovery import find_sources
from tokenfeed.server.ingest.inputs.hashes import Hashes
from tokenfeed.server.ingest.job import Job
from tokenfeed.server.ingest.progress import Progress
from tokenfeed.server.ingest.tokenize.encoding import EncodedUnit, Recipe, encode_unit
from tokenfeed.server.ingest.tokenize.tokenizer import TokenizerFile
from tokenfeed.server.ingest.units import Unit


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Three files of text."""
    made = [tmp_path / f"{number}.txt" for number in range(3)]
    for path in made:
        path.write_text(path.name * 1000)
    return made


def no_keep() -> None:
    pass


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_source_is_hashed_whether_or_not_it_was_begun(paths: list[Path]) -> None:
    with closing(Hashes(find_sources(list(map(str, paths)))[0], {})) as hashes:
        hashes.begin(1)
        hashes.begin(1)
        hashes.finish(no_keep)

    assert hashes.known == {number: sha256(path) for number, path in enumerate(paths)}


def test_a_source_that_an_earlier_run_has_hashed_is_not_read_again(paths: list[Path]) -> None:
    sources = find_sources(list(map(str, paths)))[0]
    os.unlink(paths[0])

    with closing(Hashes(sources, {0: "of then"})) as hashes:
        hashes.begin(0)
        hashes.finish(no_keep)

    assert hashes.known == {0: "of then", 1: sha256(paths[1]), 2: sha256(paths[2])}


def test_a_source_that_changes_before_it_is_hashed_is_an_error(paths: list[Path]) -> None:
    """Its tokens are of what it was."""
    sources = find_sources(list(map(str, paths)))[0]
    paths[2].write_text("something else")

    with closing(Hashes(sources, {})) as hashes, pytest.raises(InvalidSource) as caught:
        hashes.finish(no_keep)

    assert caught.value.subject == str(paths[2])
    assert "changed while it was ingested" in caught.value.problem


def test_many_short_sources_are_saved_and_logged_on_the_way(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them takes less time than there is between two lines of the log."""
    monkeypatch.setattr(hashes_module, "_PROGRESS_SECONDS", 0.0)
    caplog.set_level("INFO", "tokenfeed.server")
    kept: list[int] = []

    with closing(Hashes(find_sources(list(map(str, paths)))[0], {})) as hashes:
        hashes.finish(lambda: kept.append(len(hashes.known)))

    assert kept[-1] == len(paths)
    assert caplog.messages[-1] == "hashing sources done=100.0%"


def test_closing_leaves_a_long_source_where_it_is(tmp_path: Path) -> None:
    """Ctrl-C must not wait for the hash of a terabyte."""
    path = tmp_path / "long.jsonl"
    path.touch()
    os.truncate(path, 10**12)

    with closing(Hashes(find_sources([str(path)])[0], {})) as hashes:
        hashes.begin(0)

    # Not even later, as if the part that was read were the whole file.
    with pytest.raises(CancelledError):
        hashes.collect()


def test_a_run_that_is_stopped_keeps_the_hashes_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are taken while the next source is encoded."""
    monkeypatch.setattr(run, "_CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(jsonl, "_UNIT_BYTES", 1)
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 20)
    rows = [{"text": "word"}] * 1000
    paths = [
        corpus.write_jsonl(tmp_path / "short.jsonl", rows[:20]),
        corpus.write_jsonl(tmp_path / "x-long.jsonl", rows),
    ]
    checkpoint = tmp_path / "out" / ".ingest" / "checkpoint.json"

    def until_one_is_known(
        units: Iterable[Unit], recipe: Recipe, left: object
    ) -> Iterator[EncodedUnit]:
        for unit in units:
            if checkpoint.exists() and json.loads(checkpoint.read_text())["hashes"]:
                raise KeyboardInterrupt
            yield encode_unit(unit, recipe)

    sources = tuple(find_sources(list(map(str, paths)))[0])
    recipe = Recipe(TokenizerFile.read("bytes", parses_special=False), ("text",), None, None, 0.0)
    with pytest.raises(KeyboardInterrupt):
        run.ingest(
            Job(sources, recipe),
            str(tmp_path / "out"),
            until_one_is_known,
            strict=False,
            wait=False,
            progress=Progress(0, "bytes"),
        )

    kept = json.loads(checkpoint.read_text())
    assert kept["hashes"] == {"0": sha256(paths[0])}
    assert kept["place"][0] == 1
