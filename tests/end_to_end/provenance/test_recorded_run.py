"""What explain, find and manifest say of a run, against every row that its ranks received."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import serving
from tests.support import recorded_run
from tests.support.recorded_run import RecordedRun, Row, Source, T
from tokenfeed.tools.__main__ import main

pytestmark = pytest.mark.slow

Range = tuple[int, int, int]
"""File, first token, end token."""
Place = tuple[int, int, int]
"""Step, rank, row."""


@dataclass(frozen=True)
class Scene:
    """A run that is over, and its server."""

    address: str
    folder: Path
    sources: dict[str, Source]
    run: RecordedRun

    @cached_property
    def ranges(self) -> dict[str, list[Range]]:
        """The documents of each source, by their number."""
        found = {}
        for name, source in self.sources.items():
            documents = []
            for file, lengths in enumerate(source.corpus.lengths):
                ends = np.cumsum(lengths).tolist()
                documents += [
                    (file, end - length, end) for end, length in zip(ends, lengths, strict=True)
                ]
            found[name] = documents
        return found

    def held(self, row: Row) -> list[Range]:
        """The ranges of tokens of a row, one for each run of consecutive tokens."""
        corpus = self.sources[row.source].corpus
        tokens = row.tokens[: row.count].astype(int)
        if recorded_run.ORDER_OF[row.source] in ("shuffled", "random"):
            # A token that ends a document is 0: its number follows from another one.
            at = int(np.flatnonzero(tokens)[0])
            tokens = tokens[at] - at + np.arange(tokens.size)
        bases = corpus.first + np.cumsum([0, *map(sum, corpus.lengths)])
        pieces = np.split(tokens, np.flatnonzero(np.diff(tokens) != 1) + 1)
        found = []
        for piece in pieces:
            file = int(np.searchsorted(bases, piece[0], "right")) - 1
            first = int(piece[0] - bases[file])
            found.append((file, first, first + piece.size))
        return found

    @cached_property
    def held_by_rows(self) -> list[tuple[Row, list[Range]]]:
        """Each row, and its ranges of tokens."""
        return [(row, self.held(row)) for row in self.run.rows]

    def rows_with(self, name: str, wanted: Range, steps: range) -> set[Place]:
        """The rows of some steps that hold a token of a range, by a search through all of them."""
        file, first, end = wanted
        return {
            (row.step, row.rank, row.row)
            for row, held in self.held_by_rows
            if row.source == name
            and row.step in steps
            and any(f == file and a < end and b > first for f, a, b in held)
        }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("run")
    sources = recorded_run.write_sources(folder)
    words = [word for source in sources.values() for word in source.words]
    with serving(folder) as serve:
        address = serve(*words).address
        yield Scene(address, folder, sources, recorded_run.record(address))


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command of the client, and return the JSON that it prints."""

    def tell(*words: object) -> Any:
        assert main([*map(str, words)]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return tell


def checkpoint(scene: Scene, step: int) -> Path:
    """A checkpoint as a trainer saves it."""
    path = scene.folder / f"step-{step}.pt"
    torch.save({"model": torch.zeros(3), "feeds": {"train": scene.run.states[step]}}, path)
    return path


def merged(ranges: Sequence[Range]) -> list[Range]:
    """Ranges whose ends touch as one."""
    found: list[Range] = []
    for file, first, end in ranges:
        if found and found[-1][0] == file and found[-1][2] == first:
            first = found.pop()[1]
        found.append((file, first, end))
    return found


def test_explain_tells_file_document_range_and_text_of_every_row(scene: Scene, told: Any) -> None:
    """After a skip, a larger batch, a change of the mixture and a resume at another world size."""
    path = checkpoint(scene, scene.run.steps)
    rows = defaultdict(list)
    for row in scene.run.rows:
        rows[row.step].append(row)
    checked = 0
    for step, received in rows.items():
        said = told(
            "explain", "--state", path, "--step", step, "--rows-max", 1000, "--json",
            "--tokenizer", scene.folder / "words.json", scene.address,
        )  # fmt: skip
        assert not said["is_assumed"]
        assert not said["rows_left_out"]
        assert len(said["rows"]) == len(received)
        for row, found in zip(received, said["rows"], strict=True):
            require_explained(scene, row, found)
            checked += 1
    assert checked == len(scene.run.rows) > 500


def require_explained(scene: Scene, row: Row, found: dict[str, Any]) -> None:
    """Compare what explain says of a row with what was received."""
    source = scene.sources[row.source]
    assert (found["rank"], found["row"], found["sample"]) == (row.rank, row.row, row.sample)
    assert found["dataset"] == row.source
    assert found["padding_tokens"] == T + 1 - row.count
    ranges = [(each["file"], *each["tokens"]) for each in found["ranges"]]
    pieces = scene.held(row)
    assert merged(ranges) == merged(pieces)
    text = " ".join(each["text"] for each in found["ranges"])
    assert text == " ".join(f"w{token}" for token in row.tokens[: row.count].tolist())
    for each, (file, first, end) in zip(found["ranges"], ranges, strict=True):
        assert each["file_name"] == source.corpus.paths[file].name
        if not source.knows_documents:
            assert each["document"] is None
            continue
        number = each["document"]["number"]
        of, begin, behind = scene.ranges[row.source][number]
        assert (of, [begin, behind]) == (file, each["document"]["tokens"])
        assert begin <= first < end <= behind
        assert each["document"]["id"] == (source.ids[number] if source.ids else None)


@pytest.mark.parametrize("documents", [25, pytest.param(75, marks=pytest.mark.proof)])
def test_find_names_every_row_that_holds_a_document_and_no_other(
    scene: Scene, told: Any, documents: int
) -> None:
    """So many documents of each of four formats, seen, skipped and still to come."""
    steps, at = scene.run.steps, 30
    assert at in scene.run.states
    path = checkpoint(scene, at)
    random = np.random.default_rng(5)
    seen = 0
    for name in ("web", "code", "math", "news"):
        for number in random.permutation(len(scene.ranges[name]))[:documents].tolist():
            wanted = scene.ranges[name][number]
            what = ["--document", number]
            if name == "web" and number % 2:
                what = ["--id", scene.sources[name].ids[number]]
            said = told(
                "find", "--dataset", name, *what, "--state", path, "--batch-size", 8,
                "--world-size", 3, "--end-sample", scene.run.state["sample"], "--json",
                "--rows-max", 100_000, scene.address,
            )  # fmt: skip
            assert [(each["file"], *each["tokens"]) for each in said["looked_for"]] == [wanted]
            found = {"seen": set(), "to come": set(), "skipped": set()}
            for row in said["rows"]:
                found[row["when"]] |= {tuple(place.values()) for place in row["places"]}
                assert (row["sample"] in scene.run.skipped) == (row["when"] == "skipped")
            assert found["seen"] == scene.rows_with(name, wanted, range(at))
            assert found["to come"] == scene.rows_with(name, wanted, range(at, steps))
            seen += len(found["seen"])
    assert 3 * seen > 4 * documents


def test_find_scans_an_order_without_epochs(scene: Scene, told: Any) -> None:
    """Tokens of a file, where documents are unknown."""
    path = checkpoint(scene, scene.run.steps)
    corpus = scene.sources["chat"].corpus
    hits = 0
    for first in range(0, 1000, 100):
        said = told(
            "find", "--dataset", "chat", "--file", corpus.paths[1].name, "--token", first,
            "--tokens", 20, "--state", path, "--end-sample", scene.run.state["sample"], "--json",
            "--rows-max", 100_000, scene.address,
        )  # fmt: skip
        found = {
            tuple(place.values())
            for row in said["rows"]
            for place in row["places"]
            if row["when"] == "seen"
        }
        assert found == scene.rows_with("chat", (1, first, first + 20), range(scene.run.steps))
        hits += len(found)
    assert hits


def test_a_manifest_is_all_that_was_read_and_nothing_else(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """Per source and epoch, token by token; the totals are those of the feed."""
    path = checkpoint(scene, scene.run.steps)

    assert main(["manifest", "--state", str(path), "--expand", scene.address]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    (whole,) = (line for line in lines if line["kind"] == "run")
    assert (whole["steps"], whole["samples"]) == (scene.run.steps, len(scene.run.rows))
    assert not any(line["kind"] == "samples" for line in lines)
    for name, source in scene.sources.items():
        rows = [row for row in scene.run.rows if row.source == name]
        (total,) = (line for line in lines if line["kind"] == "source" and line["dataset"] == name)
        assert (total["samples"], total["tokens"]) == (len(rows), len(rows) * T)
        ranges = [line for line in lines if line["kind"] == "range" and line["dataset"] == name]
        read = Counter(token for row in rows for token in tokens_held(scene, row))
        listed: Counter[tuple[int, int]] = Counter()
        for line in ranges:
            first_epoch, end_epoch = line["epochs"] or (0, 1)
            assert line["file_name"] == source.corpus.paths[line["file"]].name
            first, end = line["tokens"]
            for token in range(first, end):
                listed[line["file"], token] += line["times"] * (end_epoch - first_epoch)
            if source.knows_documents:
                assert line["documents"] == documents_with(scene, name, line["file"], first, end)
        # Rows that follow one another share a token, which their range has once.
        assert listed.keys() == read.keys()
        shared = read - listed
        assert not listed - read
        assert all(is_shared(scene, name, *token) for token in shared), name


def tokens_held(scene: Scene, row: Row) -> Iterator[tuple[int, int]]:
    """File and place of each token of a row."""
    for file, first, end in scene.held(row):
        yield from ((file, token) for token in range(first, end))


def is_shared(scene: Scene, name: str, file: int, token: int) -> bool:
    """Whether one row may end with a token and the next one begin with it."""
    if recorded_run.ORDER_OF[name] == "shuffled":
        return token % T == 0
    (number,) = range(*documents_with(scene, name, file, token, token + 1))
    begin = scene.ranges[name][number][1]
    return recorded_run.ORDER_OF[name] != "random" and token > begin and (token - begin) % T == 0


def documents_with(scene: Scene, name: str, file: int, first: int, end: int) -> list[int]:
    """The first and the end of the documents that have some of these tokens."""
    found = [
        number
        for number, (of, begin, behind) in enumerate(scene.ranges[name])
        if of == file and begin < end and behind > first
    ]
    return [found[0], found[-1] + 1]
