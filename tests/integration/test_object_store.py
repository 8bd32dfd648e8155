"""The stack with an object store: its servers give the rows of the file that was put there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Note
from tests.integration.engine import docker, wait_until
from tests.integration.stack import Offline, Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]


def test_the_stack_puts_a_corpus_into_an_object_store_and_serves_its_rows_by_a_cache(
    images: None, folder: Path, note: Note
) -> None:
    """By one command, as docs/object-stores.md has it; and a server that restarts has its cache."""
    made = Stack("store", "docker-compose.yml", "docker-compose.object-store.yml", data=folder)
    try:
        made.up("server-a")
        assert "put train.bin" in made.container("upload").log()
        reading = made.reading("--numpy")
        try:
            reading.wait_for(20)
            note(f"rows of an object store came {made.up_seconds():.1f} s after up")
            reading.require_exact(Offline(folder / "train.bin"))
        finally:
            reading.close()

        server = made.container("server-a")
        wait_until(lambda: "object cache filled blocks=1 of=1" in server.log(), "a filled cache")
        docker("restart", server.name)
        wait_until(lambda: "cached=1 of=1: all of it fits" in server.log(), "the cache of before")
    finally:
        made.down()
