"""The hashes of sources, taken while the run goes on."""

from __future__ import annotations

import hashlib
import os
from contextlib import closing
from pathlib import Path

import pytest

from server.ingest.hashes import Hashes
from server.ingest.sources import find_sources
from tokenfeed.errors import BadSource


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Three files of text."""
    made = [tmp_path / f"{number}.txt" for number in range(3)]
    for path in made:
        path.write_text(path.name * 1000)
    return made


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_source_is_hashed_whether_or_not_it_was_begun(paths: list[Path]) -> None:
    with closing(Hashes(find_sources(list(map(str, paths))), {})) as hashes:
        hashes.begin(1)
        hashes.begin(1)
        hashes.finish()

    assert hashes.known == {number: sha256(path) for number, path in enumerate(paths)}


def test_what_a_run_before_has_taken_is_not_read_again(paths: list[Path]) -> None:
    sources = find_sources(list(map(str, paths)))
    os.unlink(paths[0])

    with closing(Hashes(sources, {0: "of then"})) as hashes:
        hashes.begin(0)
        hashes.finish()

    assert hashes.known == {0: "of then", 1: sha256(paths[1]), 2: sha256(paths[2])}


def test_a_source_that_changes_before_it_is_hashed_is_an_error(paths: list[Path]) -> None:
    """Its tokens are of what it was."""
    sources = find_sources(list(map(str, paths)))
    paths[2].write_text("something else")

    with closing(Hashes(sources, {})) as hashes, pytest.raises(BadSource) as caught:
        hashes.finish()

    assert caught.value.subject == str(paths[2])
    assert "written to while it was ingested" in caught.value.problem


def test_closing_leaves_a_long_source_where_it_is(tmp_path: Path) -> None:
    """After Ctrl-C nobody waits for a hash of a terabyte."""
    path = tmp_path / "long.txt"
    path.touch()
    os.truncate(path, 10**12)

    with closing(Hashes(find_sources([str(path)]), {})) as hashes:
        hashes.begin(0)
        hashes.collect()

    assert hashes.known == {}
