"""Ids of documents: kept beside the shards, in the order of the documents."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server.ingest.chats import CHATML
from tests.server.ingest.corpus import END, write_jsonl, write_parquet
from tests.server.ingest.running import ingest, ingested
from tests.support.commands import run
from tokenfeed.server.storage.formats.document_ids import DocumentIds

pytestmark = pytest.mark.slow


def documents_by_id(folder: Path) -> list[tuple[str, bytes]]:
    """Id and text of each document of a split that was ingested as bytes, in order."""
    found = []
    for shard in sorted(folder.glob("*.ds")):
        ids = DocumentIds(f"{shard}.ids")
        ends = np.fromfile(f"{shard}.index", "<u8").astype(int).tolist()
        assert len(ids) == len(ends)
        texts = np.split(np.fromfile(shard, "<u2").astype("u1"), ends[:-1])
        found += [(ids.id_of(number), text.tobytes()) for number, text in enumerate(texts)]
    return found


@pytest.mark.parametrize("shuffle", ["1", "70"])
@pytest.mark.parametrize("kind", ["parquet", "jsonl.zst"])
def test_each_document_has_its_own_id(kind: str, shuffle: str, tmp_path: Path) -> None:
    """In both splits, in several shards, in any order, and without those that were left out."""
    texts = {f"page-{n}": f"{n} " + "x" * (n % 50) for n in range(500)}
    rows = [{"id": name, "text": text} for name, text in texts.items()]
    rows[100]["text"] = rows[499]["text"] = ""
    rows[200]["text"] = None  # type: ignore[assignment]
    path = tmp_path / f"x.{kind}"
    if kind == "parquet":
        write_parquet(path, {key: [row[key] for row in rows] for key in ("text", "id")})
    else:
        write_jsonl(path, rows)

    ingested(
        path, "--out", tmp_path / "out", "--tokenizer", "bytes", "--id-column", "id",
        "--val-fraction", "0.2", "--shard-tokens", "2000", "--shuffle-buffer", shuffle,
    )  # fmt: skip

    found = {name: documents_by_id(tmp_path / "out" / name) for name in ("train", "val")}
    expected = {row["id"]: row["text"].encode() for row in rows if row["text"]}
    everything = [*found["train"], *found["val"]]
    assert len(everything) == 497
    assert dict(everything) == expected
    for documents in found.values():
        assert len(documents) > 50
        numbers = [int(name[5:]) for name, _ in documents]
        assert (numbers == sorted(numbers)) == (shuffle == "1")


def test_ids_may_be_integers_and_repeat(tmp_path: Path) -> None:
    """As decimal digits."""
    numbers = [3, -12, 3, 1 << 62]
    rows = [{"key": n, "text": f"t{place}"} for place, n in enumerate(numbers)]
    words = ("--tokenizer", "bytes", "--id-column", "key")
    columns: dict[str, Any] = {"key": numbers, "text": [row["text"] for row in rows]}
    ingested(write_jsonl(tmp_path / "a.jsonl", rows), "--out", tmp_path / "a", *words)
    ingested(write_parquet(tmp_path / "b.parquet", columns), "--out", tmp_path / "b", *words)

    for out in ("a", "b"):
        path = tmp_path / out / "train" / "000000.ds.ids"
        assert path.read_text() == "3\n-12\n3\n4611686018427387904\n"
        assert DocumentIds(str(path)).numbers_of("3").tolist() == [0, 2]


def test_the_text_may_be_its_own_id(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", {"text": ["a", "bc"]})

    ingested(path, "--out", tmp_path / "out", "--tokenizer", "bytes", "--id-column", "text")

    assert documents_by_id(tmp_path / "out" / "train") == [("a", b"a"), ("bc", b"bc")]


def test_each_piece_of_a_document_longer_than_a_shard_has_its_id(tmp_path: Path) -> None:
    """The index has an entry for each piece, too."""
    rows = [{"id": name, "text": name * count} for name, count in (("a", 5), ("b", 25), ("c", 5))]
    path = write_jsonl(tmp_path / "x.jsonl", rows)

    ingested(
        path, "--out", tmp_path / "out", "--tokenizer", "bytes", "--id-column", "id",
        "--shard-tokens", "10",
    )  # fmt: skip

    assert documents_by_id(tmp_path / "out" / "train") == [
        ("a", b"a" * 5), ("b", b"b" * 5), ("b", b"b" * 10), ("b", b"b" * 10), ("c", b"c" * 5),
    ]  # fmt: skip


def test_pairs_and_chats_have_ids_too(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(CHATML)
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    rows = [{"q": "why", "a": "so", "chat": messages, "id": f"№ {n}"} for n in range(9)]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    words = (path, "--tokenizer", "bytes", "--id-column", "id")
    pairs = ("--prompt-column", "q", "--response-column", "a", "--append-token", END)
    chats = ("--messages-column", "chat", "--chat-template", tmp_path / "t.jinja")

    for name, more in (("pairs", pairs), ("chats", chats)):
        ingested(*words, *more, "--out", tmp_path / name)
        found = documents_by_id(tmp_path / name / "train")
        assert [own for own, _ in found] == [f"№ {n}" for n in range(9)]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "null in column 'id'"),
        (1.5, "column 'id' is not text or an integer"),
        (True, "column 'id' is not text or an integer"),
        (["a"], "column 'id' is not text or an integer"),
        ("a\nb", "line break in column 'id'"),
        ("a\r", "line break in column 'id'"),
        ("\ud800", "half of a surrogate pair"),
    ],
)
def test_a_document_without_a_valid_id_is_left_out_and_counted(
    value: Any, problem: str, tmp_path: Path
) -> None:
    rows = [{"id": "a", "text": "x"}, {"id": value, "text": "y"}, {"text": "z"}]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    words = (path, "--tokenizer", "bytes", "--id-column", "id")

    said = ingested(*words, "--out", tmp_path / "out")

    first = len(json.dumps(rows[0])) + 1
    assert f"not ingested: {path}: {problem}, 1 time(s), first: byte {first}\n" in said
    assert f"not ingested: {path}: no column 'id', 1 time(s), first: byte " in said
    assert documents_by_id(tmp_path / "out" / "train") == [("a", b"x")]
    strict = ingest(*words, "--out", tmp_path / "strict", "--strict")
    assert strict.stderr == f"error: {path}: {problem}, byte {first}\n"


def test_a_row_without_an_id_is_left_out_and_another_type_leaves_out_the_file(
    tmp_path: Path,
) -> None:
    good = write_parquet(tmp_path / "a.parquet", {"id": ["a", None], "text": ["x", "y"]})
    bad = write_parquet(tmp_path / "b.parquet", {"id": [0.5], "text": ["z"]})

    said = ingested(
        good, bad, "--out", tmp_path / "out", "--tokenizer", "bytes", "--id-column", "id"
    )

    assert f"{good}: null in column 'id', 1 time(s), first: row 1\n" in said
    assert f"{bad}: column 'id' is not text or an integer, 1 time(s), first: but double\n" in said


def test_plain_text_has_no_ids(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("a book")

    done = ingest(
        tmp_path / "book.txt", "--out", tmp_path / "out", "--tokenizer", "bytes",
        "--id-column", "id",
    )  # fmt: skip

    problem = "cannot be used with plain text, which has no columns"
    assert done.stderr == f"error: --id-column: {problem}\n"
    assert done.returncode == 1


@pytest.fixture
def words(tmp_path: Path) -> tuple[str | Path, ...]:
    """The command that makes a folder of two shards with ids."""
    rows = [{"id": n, "text": "x" * 10} for n in range(150)]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    given = (path, "--out", tmp_path / "out", "--tokenizer", "bytes", "--shard-tokens", "1000")
    return (*given, "--id-column", "id")


def test_the_manifest_lists_the_ids_of_each_shard(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    ingested(*words)

    made = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert made["job"]["id_column"] == "id"
    files = sorted((tmp_path / "out" / "train").glob("*.ds.ids"))
    assert len(files) == 2
    for shard, file in zip(made["splits"]["train"]["shards"], files, strict=True):
        assert shard["document_ids"] == file.name
        assert shard["document_ids_bytes"] == file.stat().st_size
        assert shard["document_ids_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    without = ingest(*words[:-2])
    assert "contains an ingest with other id_column (id, now None)" in without.stderr


@pytest.mark.parametrize("damage", [os.unlink, lambda path: os.truncate(path, 10)])
def test_a_folder_without_its_listed_ids_is_damaged(
    words: tuple[str | Path, ...], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """For ingest, for a server, and for verify."""
    ingested(*words)
    path = tmp_path / "out" / "train" / "000001.ds.ids"
    damage(path)

    again = ingest(*words)
    verified = ingest(tmp_path / "out", module="tokenfeed.tools.verify")

    assert again.stderr.startswith(f"error: {path}: is damaged; remove ")
    assert f"error: {path}: is listed in its manifest, but " in verified.stderr
    assert "; restore this file of ids, or remove the folder and ingest again" in verified.stderr


def test_ids_are_inspected_and_verified(words: tuple[str | Path, ...], tmp_path: Path) -> None:
    """Changed ones of the same length are found by their hash."""
    ingested(*words)
    train = tmp_path / "out" / "train"
    path = train / "000001.ds.ids"

    said = run("-m", "tokenfeed.tools.inspect", str(train))

    first = train / "000000.ds.ids"
    assert f"  document ids: of 2 file(s), the first is {first}\n" in said
    assert "digest:" in run("-m", "tokenfeed.tools.verify", str(train))
    path.write_bytes(path.read_bytes().replace(b"101\n", b"010\n"))
    done = ingest(train, module="tokenfeed.tools.verify")
    assert f"error: {path}: is not the file of ids that its manifest lists" in done.stderr
    assert done.returncode == 1
