"""The result of an ingest: the same bytes for any number of workers and interruptions."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from tests.server.ingest.corpus import (
    END,
    documents,
    naive,
    stored,
    tree,
    write_jsonl,
    write_parquet,
)
from tests.server.ingest.running import ingest, ingested

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return documents(3000)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    """A folder of all kinds: parquet, jsonl in three ways, and two files of plain text."""
    folder = tmp_path_factory.mktemp("pages")
    write_parquet(folder / "a.parquet", {"text": texts[:1000]})
    write_jsonl(folder / "b.jsonl", ({"text": text} for text in texts[1000:1500]))
    write_jsonl(folder / "c.jsonl.gz", ({"text": text} for text in texts[1500:2000]))
    write_jsonl(folder / "d.jsonl.zst", ({"text": text} for text in texts[2000:2998]))
    (folder / "e.txt").write_text(texts[2998])
    (folder / "f.txt").write_text(texts[2999])
    return folder


def test_every_kind_of_file_becomes_the_tokens_of_its_documents(
    pages: Path, tokenizer: Path, texts: list[str], tmp_path: Path
) -> None:
    """In the order of the files, each document with its end, and datatrove's index beside it."""
    out = tmp_path / "out"

    said = ingested(pages, "--out", out, "--tokenizer", tokenizer, "--append-token", END)

    expected = naive(tokenizer, texts, end=END)
    assert stored(out / "train") == expected
    ends = np.cumsum([len(naive(tokenizer, [text])) + 1 for text in texts])
    assert stored(out / "train", ".ds.index", "<u8") == ends.tolist()
    assert f"{len(expected):,} tokens, 3,000 documents, 1 shard(s) of uint16" in said
    assert re.search(r"\n[\d,]+ tokens/s in [\d.]+ s, memory at most [\d,]+ MiB and ", said)
    assert "not ingested" not in said
    assert sorted(os.listdir(out)) == ["manifest.json", "train"]


def test_the_bytes_depend_neither_on_workers_nor_on_how_files_are_packed(
    pages: Path, tokenizer: Path, texts: list[str], tmp_path: Path
) -> None:
    """So that two machines make the same corpus, and a killed run can resume."""
    options = ("--tokenizer", tokenizer, "--append-token", END, "--val-fraction", "0.1")
    options += ("--shuffle-buffer", "500", "--seed", "3", "--shard-tokens", "20000")
    one = write_parquet(tmp_path / "one.parquet", {"text": texts}, row_group_size=77)
    said = ingested(pages, "--out", tmp_path / "1", *options, "--workers", "1")
    ingested(pages, "--out", tmp_path / "3", *options, "--workers", "3")
    ingested(one, "--out", tmp_path / "one", *options)

    made = tree(tmp_path / "1")
    assert len(made) > 8
    assert "no val split" not in said
    assert tree(tmp_path / "3") == made
    manifests = [
        json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("1", "one")
    ]
    assert manifests[0]["splits"] == manifests[1]["splits"]


def test_row_groups_of_any_kind_make_the_same_bytes_with_any_number_of_workers(
    tmp_path: Path,
) -> None:
    """Workers read small ones; a large one, and one that becomes large, the main process reads."""
    kinds = [documents(500), [], [None, b"\xff", ""], ["word " * 40_000] * 60]
    large = ["".join(documents(40, seed=seed)) for seed in range(2200)]
    path, kind = tmp_path / "x.parquet", pyarrow.binary()
    with pyarrow.parquet.ParquetWriter(path, pyarrow.schema([("text", kind)])) as writer:
        for texts in (*kinds, large, documents(500, seed=1)):
            writer.write_table(pyarrow.table({"text": pyarrow.array(texts, kind)}), len(large))
    options = ("--tokenizer", "bytes", "--append-token", END, "--val-fraction", "0.1")
    for workers in ("1", "2", "5"):
        ingested(path, "--out", tmp_path / workers, *options, "--workers", workers)

    made = tree(tmp_path / "1")
    assert tree(tmp_path / "2") == tree(tmp_path / "5") == made
    manifest = json.loads(made["manifest.json"])
    documents_each = [split["documents"] for split in manifest["splits"].values()]
    assert sum(documents_each) == 500 + 60 + 2200 + 500
    assert manifest["sources"][0]["problems"] == {
        "null": {"count": 1, "first": "row 500"},
        "invalid UTF-8": {"count": 1, "first": "row 501"},
        "empty document": {"count": 1, "first": "row 502"},
    }
    facts = pyarrow.parquet.read_metadata(path)
    assert facts.row_group(4).total_byte_size > 8 << 20 > facts.row_group(3).total_byte_size


def test_shuffled_documents_are_whole_and_all_there(
    pages: Path, tokenizer: Path, texts: list[str], tmp_path: Path
) -> None:
    options = ("--tokenizer", tokenizer, "--append-token", END, "--shuffle-buffer", "5000")
    said = ingested(pages, "--out", tmp_path, *options, "--seed", "3")

    tokens = np.array(stored(tmp_path / "train"))
    found = np.split(tokens, stored(tmp_path / "train", ".ds.index", "<u8")[:-1])
    expected = [naive(tokenizer, [text], end=END) for text in texts]
    assert [one.tolist() for one in found] != expected
    assert sorted(one.tolist() for one in found) == sorted(expected)
    assert re.search(r"\n[\d,]+ tokens/s", said)


def test_a_document_moves_to_the_next_shard_whole_unless_it_is_longer_than_one(
    tokenizer: Path, tmp_path: Path
) -> None:
    """So that few windows are lost."""
    sizes = [400, 400, 300, 2500, 10]
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "x" * size} for size in sizes])

    ingested(path, "--out", tmp_path / "out", "--tokenizer", "bytes", "--shard-tokens", "1000")

    made = json.loads((tmp_path / "out" / "manifest.json").read_text())["splits"]["train"]
    assert [shard["tokens"] for shard in made["shards"]] == [800, 1000, 1000, 810]
    assert made["documents"] == 5
    train = tmp_path / "out" / "train"
    assert np.fromfile(train / "000000.ds.index", "<u8").tolist() == [400, 800]
    assert np.fromfile(train / "000001.ds.index", "<u8").tolist() == [300, 1000]
    assert np.fromfile(train / "000003.ds.index", "<u8").tolist() == [800, 810]


def test_adding_files_moves_no_document_to_the_other_split(
    pages: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Otherwise training documents would be used for evaluation."""
    options = ("--tokenizer", tokenizer, "--append-token", END, "--val-fraction", "0.2")
    more = write_jsonl(tmp_path / "0.jsonl", [{"text": text} for text in documents(300, seed=7)])
    ingested(pages, "--out", tmp_path / "before", *options)
    ingested(more, pages, "--out", tmp_path / "after", *options)

    def split(folder: Path) -> set[bytes]:
        ends = stored(folder, ".ds.index", "<u8")
        return {part.tobytes() for part in np.split(np.array(stored(folder)), ends[:-1])}

    for name in ("train", "val"):
        assert split(tmp_path / "before" / name) < split(tmp_path / "after" / name)
    assert not split(tmp_path / "after" / "train") & split(tmp_path / "after" / "val")


@pytest.mark.parametrize(
    ("fraction", "missing", "other"), [("0.01", "val", "larger"), ("0.99", "train", "smaller")]
)
def test_a_split_without_a_document_is_reported(
    tmp_path: Path, fraction: str, missing: str, other: str
) -> None:
    """Otherwise the missing split would be found only when the trainer requests it."""
    path = tmp_path / "book.txt"
    path.write_text("One text is one document, which is in one split.")
    words = (path, "--tokenizer", "bytes", "--val-fraction", fraction)

    said = ingested(*words, "--out", tmp_path / "out")

    lines = [line for line in said.splitlines() if line.startswith("no ")]
    assert lines == [
        f"no {missing} split: none of 1 document(s) fell into it at --val-fraction {fraction}, "
        "since documents are assigned by their hash; ingest more documents, or pass a "
        f"{other} fraction and another --out"
    ]
    assert not (tmp_path / "out" / missing).exists()


def test_pairs_have_a_mask_beside_their_tokens(tokenizer: Path, tmp_path: Path) -> None:
    """Responses and their end are training targets, prompts are not."""
    pairs = [(f"question {n}? ", f"answer {n} {'x' * (n % 9)}") for n in range(500)]
    path = write_parquet(
        tmp_path / "x.parquet", {"q": [q for q, _ in pairs], "a": [a for _, a in pairs]}
    )

    ingested(
        path, "--out", tmp_path / "out", "--tokenizer", tokenizer, "--append-token", END,
        "--prompt-column", "q", "--response-column", "a", "--shard-tokens", "1000",
    )  # fmt: skip

    train = tmp_path / "out" / "train"
    tokens, mask = stored(train), stored(train, ".ds.loss", "|u1")
    assert len(tokens) == len(mask)
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(tokenizer))
    end = made.token_to_id(END)
    learned = [token for token, is_learned in zip(tokens, mask, strict=True) if is_learned]
    read = [token for token, is_learned in zip(tokens, mask, strict=True) if not is_learned]
    assert made.decode(read) == "".join(q for q, _ in pairs)
    assert end not in read
    assert learned.count(end) == 500
    assert made.decode(learned) == "".join(a for _, a in pairs)
    assert made.decode(learned, skip_special_tokens=False) == "".join(a + END for _, a in pairs)


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[str | Path, ...]:
    """The arguments that make a folder "out" of pairs, in two shards."""
    path = write_jsonl(tmp_path / "x.jsonl", [{"q": "why? ", "a": f"since {n}"} for n in range(99)])
    words = (path, "--out", tmp_path / "out", "--tokenizer", "bytes", "--append-token", END)
    return (*words, "--prompt-column", "q", "--response-column", "a", "--shard-tokens", "1000")


def test_the_manifest_names_the_mask_of_each_shard_and_its_hash(
    pairs: tuple[str | Path, ...], tmp_path: Path
) -> None:
    """Otherwise a mask that is lost or changed on its way to a server would go unnoticed."""
    said = ingested(*pairs)

    assert f"serve it: tokenfeed serve --data {tmp_path / 'out'}\n" in said
    train = tmp_path / "out" / "train"
    made = json.loads((tmp_path / "out" / "manifest.json").read_text())["splits"]["train"]
    assert [(shard["loss_mask"], shard["loss_mask_sha256"]) for shard in made["shards"]] == [
        (mask.name, hashlib.sha256(mask.read_bytes()).hexdigest())
        for mask in sorted(train.glob("*.ds.loss"))
    ]
    assert len(made["shards"]) == 2


@pytest.mark.parametrize("damage", [os.unlink, lambda mask: os.truncate(mask, 10)])
def test_a_finished_folder_with_a_damaged_mask_is_not_accepted(
    pairs: tuple[str | Path, ...], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Running the command again is a way to check the folder."""
    ingested(*pairs)
    mask = tmp_path / "out" / "train" / "000001.ds.loss"
    damage(mask)

    done = ingest(*pairs)

    assert done.returncode == 1
    cure = f"is damaged; remove {tmp_path / 'out'} and ingest again"
    assert done.stderr == f"error: {mask}: {cure}\n"


def test_what_a_folder_has_besides_is_named_at_the_start_and_in_the_report(tmp_path: Path) -> None:
    """And ends the ingest if it is more, but for the option that the error names."""
    folder = tmp_path / "c4"
    folder.mkdir()
    write_jsonl(folder / "c4-train.json", [{"text": f"page {n}"} for n in range(50)])
    (folder / "load.py").write_text("import this")
    words = (folder, "--tokenizer", "bytes", "--out")

    done = ingest(*words, tmp_path / "out")
    (folder / "load.py").write_text("import this\n" * 1000)
    refused = ingest(*words, tmp_path / "more")

    assert "not taken: 1 file(s) or folder(s): load.py (another kind of file)" in done.stderr
    assert "not taken: 1 file(s) or folder(s): load.py (another kind of file)" in done.stdout
    assert refused.returncode == 1
    assert "has 12,000 bytes that would not be ingested: 1 file(s)" in refused.stderr
    assert "50 documents" in ingested(*words, tmp_path / "more", "--ignore-others")


def test_input_that_cannot_be_ingested_is_counted_by_file_and_fatal_with_strict(
    tmp_path: Path,
) -> None:
    """A silent gap in a corpus would never be found."""
    good = [{"text": f"page {n}"} for n in range(50)]
    one = write_jsonl(
        tmp_path / "one.jsonl", [*good, {"text": None}, {"body": "x"}, {"text": None}]
    )
    with one.open("ab") as file:
        file.write(b'{"text": "torn')
    two = write_parquet(tmp_path / "two.parquet", {"body": ["x"]})
    three = tmp_path / "three.txt"
    three.touch()
    words = (one, two, three, "--tokenizer", "bytes")

    said = ingested(*words, "--out", tmp_path / "out")

    lines = [line for line in said.splitlines() if line.startswith("not ingested")]
    first = 50 * len('{"text": "page 10"}\n') - 10
    assert lines == [
        f"not ingested: {one}: null, 2 time(s), first: byte {first:,}",
        f"not ingested: {one}: no column 'text', 1 time(s), first: byte {first + 15:,}, "
        "it has body",
        f"not ingested: {one}: truncated line or invalid JSON, 1 time(s), first: byte "
        f"{first + 44:,}",
        f"not ingested: {two}: no column 'text', 1 time(s), first: it has body",
        f"not ingested: {three}: empty file, 1 time(s), first: 0 bytes",
    ]
    strict = ingest(*words, "--out", tmp_path / "strict", "--strict")
    assert strict.returncode == 1
    assert strict.stderr == f"error: {one}: null, byte {first:,}\n"
    assert not (tmp_path / "strict" / "train").exists()


def test_a_damaged_second_stream_of_xz_is_reported_and_fatal_with_strict(tmp_path: Path) -> None:
    """Its documents would be missing otherwise."""
    stream = lzma.compress(b'{"text": "a"}\n')
    path = tmp_path / "x.jsonl.xz"
    path.write_bytes(stream + b"\xff" + stream[1:])
    words = (path, "--tokenizer", "bytes", "--out")

    assert f"not ingested: {path}: unreadable: " in ingested(*words, tmp_path / "out")
    strict = ingest(*words, tmp_path / "strict", "--strict")
    assert strict.returncode == 1
    assert strict.stderr.startswith(f"error: {path}: unreadable: ")


def test_nothing_to_ingest_is_an_error(tmp_path: Path) -> None:
    two = write_parquet(tmp_path / "two.parquet", {"body": ["x"]})

    done = ingest(two, "--out", tmp_path / "out", "--tokenizer", "bytes")

    assert done.returncode == 1
    assert f"error: {two}: no column 'text', it has body" in done.stderr
    assert ingested(two, "--out", tmp_path / "out", "--tokenizer", "bytes", "--text-column", "body")


def test_a_file_is_no_folder_for_tokens(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "abc"}])

    done = ingest(path, "--out", path, "--tokenizer", "bytes")

    assert done.stderr == f"error: --out: {path} is not a folder\n"


def test_a_finished_folder_is_left_as_it_is_and_another_job_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "abc"}])
    words = (path, "--out", tmp_path / "out", "--tokenizer", "bytes")
    ingested(*words)
    made = tree(tmp_path / "out")

    ingested(*words)
    other = ingest(*words, "--append-token", END, "--seed", "4")
    path.write_text(path.read_text() * 2)
    changed = ingest(*words)

    assert tree(tmp_path / "out") == made
    differing = f"append_token (None, now {END}), seed (0, now 4)"
    assert f"contains an ingest with other {differing}; pass another --out" in other.stderr
    assert "contains an ingest with other sources; pass another --out" in changed.stderr
    assert (other.returncode, changed.returncode) == (1, 1)


def test_a_folder_with_other_data_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "abc"}])
    for name in ("train", "manifest.json"):
        out = tmp_path / f"with-{name}"
        out.mkdir()
        (out / name).write_text("{}")

        done = ingest(path, "--out", out, "--tokenizer", "bytes")

        assert f"contains {name}, not made by ingest" in done.stderr
        assert os.listdir(out) == [name]


def test_a_file_that_appears_under_a_final_name_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "abc"}])
    out = tmp_path / "out"
    ingested(path, "--out", out, "--tokenizer", "bytes")
    work = out / ".ingest"
    work.mkdir()
    for name in ("train", "manifest.json"):
        (out / name).rename(work / name)
    (work / "job.json").touch()
    (out / "train").mkdir()

    done = ingest(path, "--out", out, "--tokenizer", "bytes")

    assert f"error: {out / 'train'}: is not from this ingest; move it away" in done.stderr
    (out / "train").rmdir()
    ingested(path, "--out", out, "--tokenizer", "bytes")
    assert stored(out / "train") == list(b"abc")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--val-fraction", "1"), "--val-fraction: 1.0 is not in"),
        (("--shuffle-buffer", "0"), "--shuffle-buffer: "),
        (("--shard-tokens", "0"), "--shard-tokens: "),
        (("--workers", "0"), "--workers: "),
        (("--out", "https://h/x"), "--out: is 'https://h/x', but is written on this machine"),
        (("--seed", "-1"), "--seed: "),
        (("--append-token", "<|nope|>"), "--append-token: '<|nope|>' is not a token of bytes"),
        (("--prompt-column", "q"), "--response-column: is missing"),
        (
            ("--prompt-column", "q", "--response-column", "q"),
            "--response-column: 'q' is also --prompt-column; pass two columns",
        ),
        (("--prompt-column", "q", "--response-column", "a"), "--append-token: is missing"),
        (
            ("--prompt-column", "q", "--response-column", "a", "--text-column", "t"),
            "--text-column: cannot be combined",
        ),
    ],
)
def test_an_invalid_option_is_named(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    """Before hours of work: an --out in a store was a folder "s3:" of the current one."""
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "abc"}])

    done = ingest(path, "--out", tmp_path / "out", "--tokenizer", "bytes", *options)

    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {problem}"), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_text_is_in_one_split_with_and_without_a_byte_order_mark(tmp_path: Path) -> None:
    """Else what is trained on would be validated on."""
    for number in range(6):
        text = f"text {number}\n".encode()
        (tmp_path / f"{number}.txt").write_bytes(text)
        (tmp_path / f"{number}-mark.txt").write_bytes(b"\xef\xbb\xbf" + text)
    words = (*sorted(tmp_path.glob("*.txt")), "--tokenizer", "bytes", "--val-fraction", "0.5")
    ingested(*words, "--out", out := tmp_path / "out")
    found = [bytes(stored(out / split)).decode().splitlines() for split in ("train", "val")]

    assert sorted(found[0] + found[1]) == sorted(2 * [f"text {number}" for number in range(6)])
    assert not set(found[0]) & set(found[1])


def test_a_text_file_without_a_token_is_left_out(tokenizer: Path, tmp_path: Path) -> None:
    """As a line of jsonl is: it would be an end token alone."""
    for name, text in (("a", "one"), ("b", " \n"), ("c", "two")):
        (tmp_path / f"{name}.txt").write_text(text)
    words = (*sorted(tmp_path.glob("*.txt")), "--tokenizer", blind(tokenizer, tmp_path))
    said = ingested(*words, "--out", tmp_path / "out", "--append-token", END)

    assert "no tokens, 1 time(s), first: byte 0" in said
    assert len(stored(tmp_path / "out" / "train", ".ds.index", "<u8")) == 2


def blind(tokenizer: Path, folder: Path) -> Path:
    """A tokenizer that does not see such a line."""
    found = json.loads(tokenizer.read_text())
    found["normalizer"] = {"type": "Replace", "pattern": {"String": " \n"}, "content": ""}
    path = folder / "blind.json"
    path.write_text(json.dumps(found))
    return path


def test_a_folder_may_hold_its_texts_and_what_is_made_of_them(tmp_path: Path) -> None:
    """The same command then finds its own work, and is no other one."""
    (tmp_path / "a.txt").write_text("ab " * 1000)
    words = (tmp_path, "--out", tmp_path, "--tokenizer", "bytes")
    ingested(*words)
    before = tree(tmp_path)
    ingested(*words)

    assert tree(tmp_path) == before


@pytest.mark.parametrize("option", ["--out", "--work-dir", "--text-column"])
def test_an_empty_option_is_refused(tmp_path: Path, option: str) -> None:
    """A variable that is not set would write into the current folder."""
    (tmp_path / "a.txt").write_text("ab")
    words = [tmp_path / "a.txt", "--tokenizer", "bytes"]
    words += [] if option == "--out" else ["--out", tmp_path / "out"]
    done = ingest(*words, option, "")

    assert (done.returncode, done.stderr) == (
        1,
        f"error: {option}: is empty; was a variable unset?\n",
    )
    empty = ingest("", "--out", tmp_path / "out", "--tokenizer", "bytes")
    assert "has an empty path; was a variable unset?" in empty.stderr


def test_the_largest_shuffle_buffer_is_taken(tmp_path: Path) -> None:
    """That of the docs, 2^20."""
    (tmp_path / "a.txt").write_text("ab")
    words = (tmp_path / "a.txt", "--tokenizer", "bytes", "--out", tmp_path / "out")
    assert ingest(*words, "--shuffle-buffer", str((1 << 20) + 1)).returncode == 1
    ingested(*words, "--shuffle-buffer", str(1 << 20))
