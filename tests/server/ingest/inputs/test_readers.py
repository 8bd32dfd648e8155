"""Files -> units: all of the text, once, also if reading is resumed."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet
import pytest
import zstandard

from tests.server.ingest.corpus import documents, write_jsonl, write_parquet
from tokenfeed.errors import InvalidCorpus, InvalidSource
from tokenfeed.server.ingest import run
from tokenfeed.server.ingest.inputs import READERS, jsonl, parquet
from tokenfeed.server.ingest.inputs.discovery import find_sources
from tokenfeed.server.ingest.inputs.hashes import Hashes
from tokenfeed.server.ingest.job import Checkpoint, Job
from tokenfeed.server.ingest.progress import Progress
from tokenfeed.server.ingest.tokenize import splitting
from tokenfeed.server.ingest.tokenize.encoding import EncodedUnit, encode_unit
from tokenfeed.server.ingest.tokenize.recipe import Recipe
from tokenfeed.server.ingest.tokenize.tokenizer import TokenizerFile
from tokenfeed.server.ingest.units import Rows, SourceOffset, Unit
from tokenfeed.server.ingest.work import read_and_encode
from tokenfeed.server.runtime.threads import executors

RECIPE = Recipe(TokenizerFile.read("bytes", parses_special=False), ("text",), None, 256, 0.0)


def units(path: Path, offset: int = 0) -> list[Unit]:
    """In order, each beginning where the one before ended."""
    ((source,), _) = find_sources([str(path)])
    found = list(READERS[source.kind](source, 0, offset, RECIPE, lambda *_: None))
    assert all(one.end == other.place for one, other in pairwise(found))
    return found


def plain(unit: Unit) -> tuple[Unit, object]:
    """All of a unit, in values that compare equal where they are the same."""
    content = unit.content
    if not isinstance(content, Rows):
        return unit, None
    columns = [
        [None if one is None else bytes(one) for one in column] for column in content.columns
    ]
    return replace(unit, content=None), (content.first_row, columns)


def texts(found: list[Unit]) -> str:
    """What would be written, documents ended by byte 0."""
    return tokens_of(encode_unit(unit, RECIPE) for unit in found)


def problems(found: list[Unit]) -> list[tuple[str, str]]:
    return [
        (problem.what, problem.where)
        for unit in found
        for problem in encode_unit(unit, RECIPE).problems
    ]


@pytest.fixture(autouse=True)
def _small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "_UNIT_BYTES", 2000)
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 700)
    monkeypatch.setattr(parquet, "_UNIT_BYTES", 2000)
    monkeypatch.setattr(splitting, "PIECE_CHARS", 2000)
    monkeypatch.setattr(splitting, "_SEARCH_CHARS", 500)


def write(folder: Path, kind: str, content: list[str]) -> Path:
    path = folder / f"pages.{kind}"
    if kind == "parquet":
        return write_parquet(path, {"id": range(len(content)), "text": content})
    if kind == "txt":
        path.write_text("\1".join(content))
        return path
    return write_jsonl(path, ({"id": n, "text": text} for n, text in enumerate(content)))


KINDS = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst", "txt")


@pytest.mark.parametrize("kind", KINDS)
def test_all_text_comes_once_and_in_order(tmp_path: Path, kind: str) -> None:
    content = documents(350)
    path = write(tmp_path, kind, content)

    found = units(path)

    assert len(found) > 10
    assert texts(found) == "".join(text + "\0" for text in content)
    assert problems(found) == []
    done = [unit.done_bytes for unit in found]
    assert done == sorted(done)
    assert done[-1] == path.stat().st_size


@pytest.mark.parametrize("kind", KINDS)
def test_reading_resumes_at_the_end_of_any_unit(tmp_path: Path, kind: str) -> None:
    """With the same units; otherwise a damaged file would give different text each time."""
    path = write(tmp_path, kind, documents(350))
    found = units(path)

    for number in (0, 1, len(found) // 2, len(found) - 1):
        rest = units(path, found[number].end.offset)
        assert list(map(plain, rest)) == list(map(plain, found[number + 1 :]))


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst"])
def test_a_truncated_compressed_file_gives_its_content_and_a_problem(
    tmp_path: Path, kind: str
) -> None:
    """Half a file without a problem would be the worst result."""
    path = write(tmp_path, kind, documents(3000))
    path.write_bytes(path.read_bytes()[:-200])

    found = units(path)

    kept = texts(found)
    assert "".join(text + "\0" for text in documents(3000)).startswith(kept)
    assert len(kept) > 100_000
    ((what, where),) = problems(found)
    assert what.startswith("unreadable: ")
    assert where.startswith("all from byte ")
    assert units(path, found[-2].end.offset) == found[-1:]


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst"])
def test_a_compressed_file_may_have_several_members(tmp_path: Path, kind: str) -> None:
    """As `cat a.gz b.gz` makes them."""
    one, two = documents(50), documents(50, seed=1)
    (tmp_path / "b").mkdir()
    paths = [write(tmp_path, kind, one), write(tmp_path / "b", kind, two)]
    both = tmp_path / f"both.{kind}"
    both.write_bytes(b"".join(path.read_bytes() for path in paths))

    assert texts(units(both)) == "".join(text + "\0" for text in one + two)


def test_padding_behind_gzip_is_ignored(tmp_path: Path) -> None:
    """Tapes and block devices add it; gunzip ignores it too."""
    path = write(tmp_path, "jsonl.gz", documents(3000))
    path.write_bytes(path.read_bytes() + bytes(700))

    assert problems(units(path)) == []
    assert texts(units(path)) == "".join(text + "\0" for text in documents(3000))


def test_content_before_garbage_behind_gzip_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "jsonl.gz", documents(300))
    path.write_bytes(path.read_bytes() + b"no gzip")

    assert texts(units(path)) == "".join(text + "\0" for text in documents(300))
    assert len(problems(units(path))) == 1


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.jsonl.zst"])
def test_nothing_but_a_wrapping_is_an_empty_file(tmp_path: Path, name: str) -> None:
    """For example after a failed download."""
    path = write_jsonl(tmp_path / name, [])

    assert problems(units(path)) == [("empty file", "0 bytes")]


def test_a_unit_is_as_large_as_its_text_not_as_the_file_says(tmp_path: Path) -> None:
    """A dictionary makes gigabytes of few bytes."""
    path = write_parquet(tmp_path / "x.parquet", {"text": ["a" * 1900] * 500}, row_group_size=500)
    assert path.stat().st_size < 10_000

    found = units(path)

    assert len(found) == 250
    assert texts(found) == ("a" * 1900 + "\0") * 500
    for number in (0, 101, 248):
        rest = units(path, found[number].end.offset)
        assert list(map(plain, rest)) == list(map(plain, found[number + 1 :]))


def test_two_columns_of_one_name_are_a_problem(tmp_path: Path) -> None:
    import pyarrow.parquet

    table = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")

    assert problems(units(tmp_path / "x.parquet")) == [("several columns 'text'", "its schema")]


def test_a_line_above_the_limit_is_left_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without line breaks is not jsonl; it must not fill the memory."""
    monkeypatch.setattr(jsonl, "_LINE_BYTES_MAX", 5000)
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": t} for t in ("a", "b" * 20_000, "c", "d")])

    found = units(path)

    assert texts(found) == "a\0c\0d\0"
    assert [where for _, where in problems(found)] == ["byte 14"]
    path = write_jsonl(tmp_path / "y.jsonl", [{"text": "a"}, {"text": "b" * 20_000}])
    assert texts(units(path)) == "a\0"
    assert len(problems(units(path))) == 1


def test_text_that_is_not_utf8_is_left_out_as_a_whole(tmp_path: Path) -> None:
    """It is one document; the byte is named."""
    path = tmp_path / "x.txt"
    for content, place in ((b"a" * 3_000_000 + b"\xff" + b"b" * 9, 3_000_000), (b"abc\xc3", 3)):
        path.write_bytes(content)
        assert problems(units(path)) == [("invalid UTF-8", f"byte {place}")]


@pytest.mark.parametrize("name", ["x.txt", "x.jsonl", "x.parquet"])
def test_an_empty_file_is_a_problem(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()

    ((what, _),) = problems(units(tmp_path / name))
    assert what == "empty file" or what.startswith("unreadable: ")


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"body": ["a"]}, "no column 'text'"),
        ({"text": [5]}, "column 'text' is not text"),
        ({"text": [["a"]]}, "column 'text' is not text"),
    ],
)
def test_a_table_without_text_is_a_problem(
    tmp_path: Path, columns: dict[str, list], what: str
) -> None:
    path = write_parquet(tmp_path / "x.parquet", columns)

    ((found, _),) = problems(units(path))
    assert found == what


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "large_binary", "dictionary"])
def test_text_may_be_of_any_kind_that_holds_it(tmp_path: Path, kind: str) -> None:
    import pyarrow

    content = ["a", "é", None, "a"]
    array = pyarrow.array(content, pyarrow.string())
    made: Callable[[], object] = {
        "dictionary": array.dictionary_encode,
    }.get(kind, lambda: array.cast(getattr(pyarrow, kind)()))
    path = write_parquet(tmp_path / "x.parquet", {"text": made()})

    found = units(path)

    assert texts(found) == "a\0é\0a\0"
    assert problems(found) == [("null", "row 2")]


def damaged(path: Path, first: int, end: int) -> None:
    content = bytearray(path.read_bytes())
    content[first:end] = bytes(end - first)
    path.write_bytes(content)


def test_a_damaged_footer_is_a_problem(tmp_path: Path) -> None:
    path = write(tmp_path, "parquet", documents(350))
    path.write_bytes(path.read_bytes()[:-5])

    ((what, where),) = problems(units(path))
    assert what.startswith("unreadable: ")
    assert where == "its footer"


def test_a_damaged_row_group_costs_its_own_rows(tmp_path: Path) -> None:
    """The others are as they were."""
    import pyarrow.parquet

    content = documents(350)
    path = write(tmp_path, "parquet", content)
    facts = pyarrow.parquet.read_metadata(path).row_group(1).column(1)
    first = facts.dictionary_page_offset or facts.data_page_offset
    damaged(path, first, first + facts.total_compressed_size)

    found = units(path)

    assert texts(found) == "".join(text + "\0" for text in content[:100] + content[200:])
    ((what, where),) = problems(found)
    assert what.startswith("unreadable: ")
    assert where == "row group 1: 100 rows from row 100 on"


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_workers_read_are_those_that_one_process_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """From any place on where a run may resume. Some row groups are small, one is empty, one is
    damaged, one is too large for a worker, and a dictionary makes one so when it is read.
    """
    monkeypatch.setattr(parquet, "_UNREAD_BYTES_MAX", 24_000)
    content: list[str | bytes | None] = [*documents(150), None, b"\xff", "", *documents(20)]
    path = tmp_path / "x.parquet"
    groups = [content, [], documents(60, seed=1), documents(900, seed=2), ["word " * 400] * 60]
    write_groups(path, [*groups, documents(70, seed=3)])
    facts = pyarrow.parquet.read_metadata(path)
    first = facts.row_group(2).column(0).dictionary_page_offset
    damaged(path, first, first + 500)
    stored = [facts.row_group(group).total_byte_size for group in range(6)]
    assert stored[4] < max(stored[:3]) < 24_000 < stored[3]

    ((source,), _) = find_sources([str(path)])
    expected = list(parquet.units(source, 0, 0, RECIPE, lambda *_: None))
    lost = problems(expected)
    found = list(parts(path, SourceOffset(0, 0), workers))

    assert len(expected) > 20
    assert [what.partition(":")[0] for what, _ in lost] == [
        "null", "invalid UTF-8", "empty document", "unreadable",
    ]  # fmt: skip
    assert sum(unit.content is None for unit, _ in found) == len(found)
    assert tokens_of(part for _, part in found) == texts(expected)
    assert [(one.what, one.where) for _, part in found for one in part.problems] == lost
    # An empty row group is passed over.
    assert all(one.end <= other.place for (one, _), (other, _) in pairwise(found))
    done = [unit.done_bytes for unit, _ in found]
    assert done == sorted(done)
    assert done[-1] == path.stat().st_size
    (within,) = [number for number, (_, part) in enumerate(found) if part.read is not None]
    for number in (0, 2, 3, within - 1, within, within + 1, len(found) - 2):
        rest = parts(path, found[number][0].end, workers)
        assert tokens_of(part for _, part in rest) == tokens_of(
            part for _, part in found[number + 1 :]
        )


def test_a_worker_finds_that_a_file_has_changed(tmp_path: Path) -> None:
    """It opens it long after the process that looked at its row groups."""
    path = write_groups(tmp_path / "x.parquet", [documents(10), documents(10)])
    ((source,), _) = find_sources([str(path)], for_workers=True)
    first, second = READERS["parquet"](source, 0, 0, RECIPE, lambda *_: None)
    read_and_encode(first, RECIPE)
    os.utime(path)

    with pytest.raises(InvalidSource, match="changed while it was ingested"):
        read_and_encode(second, RECIPE)


def test_a_worker_reads_a_group_of_rows_without_text_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kilobyte has millions of them, and each is a problem."""
    monkeypatch.setattr(parquet, "_UNIT_ROWS_MAX", 100)
    path = write_groups(tmp_path / "x.parquet", [[None] * 350, documents(10)])

    found = list(parts(path, SourceOffset(0, 0), 2))

    assert [len(part.problems) for _, part in found] == [100, 100, 100, 50, 0]
    assert len({problem.where for _, part in found for problem in part.problems}) == 350
    assert tokens_of(part for _, part in found) == "".join(text + "\0" for text in documents(10))


def write_groups(path: Path, groups: list[list[str]] | list[list[Any]]) -> Path:
    """Write parquet, of these row groups, as bytes that need not be UTF-8."""
    kind = pyarrow.binary()
    with pyarrow.parquet.ParquetWriter(path, pyarrow.schema([("text", kind)])) as writer:
        for group in groups:
            writer.write_table(pyarrow.table({"text": pyarrow.array(group, kind)}))
    return path


def parts(path: Path, place: SourceOffset, workers: int) -> Iterator[tuple[Unit, EncodedUnit]]:
    """Units and their tokens, as a run gets them from workers, of which this process is one.

    workers: for which units are begun before a result is needed.
    """
    ((source,), _) = find_sources([str(path)], for_workers=True)
    job = Job((source,), RECIPE)

    def executor(units: Any, recipe: Recipe, left: Any) -> Iterator[EncodedUnit]:
        def done(unit: Unit) -> EncodedUnit:
            return read_and_encode(unit, recipe)

        yield from executors._in_order(units, lambda unit: unit, done, workers, left)

    with closing(Hashes(job.sources, {})) as hashes:
        progress = Progress(source.size_bytes, "bytes")
        checkpoint = Checkpoint(place)
        yield from run._parts(job, executor, hashes, checkpoint, deque(), False, progress)


def tokens_of(found: Iterable[EncodedUnit]) -> str:
    """As `texts` writes them; byte 1 stands for byte 0 in a file of text."""
    tokens = [token for part in found for token in part.tokens.tolist()]
    return bytes(0 if token in (1, 256) else token for token in tokens).decode()


def test_lines_are_known_by_what_is_in_them(tmp_path: Path) -> None:
    """If the name does not tell."""
    path = tmp_path / "pages"
    path.write_text(json.dumps({"text": "a"}) + "\n")

    assert texts(units(path)) == "a\0"


@pytest.mark.parametrize("packing", ["", ".gz", ".gzip", ".zst", ".xz", ".bz2"])
@pytest.mark.parametrize("lines", ["jsonl", "ndjson", "json"])
def test_a_folder_has_lines_of_json_under_any_usual_name(
    tmp_path: Path, lines: str, packing: str
) -> None:
    """As C4 (c4-train.00000-of-01024.json.gz) and the Pile name theirs."""
    path = write_jsonl(tmp_path / f"part.{lines}", [{"text": "in it"}])
    packed = {"": bytes, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstandard.compress}
    made = tmp_path / f"part.{lines}{packing}"
    made.write_bytes(packed.get(packing, gzip.compress)(path.read_bytes()))
    if made != path:
        path.unlink()

    ((source,), others) = find_sources([str(tmp_path)])

    assert (source.path, source.kind, others) == (str(made), "jsonl", [])
    assert texts(units(made)) == "in it\0"


@pytest.mark.parametrize("packing", [lzma, bz2, zstandard])
def test_a_truncated_file_of_xz_bzip2_or_zstd_gives_its_content_and_a_problem(
    tmp_path: Path, packing: ModuleType
) -> None:
    """The rest is lost, and said."""
    rows = "".join(f'{{"text": "{random.Random(line).random()}"}}\n' for line in range(5000))
    content = packing.compress(rows.encode())
    path = tmp_path / "x.jsonl.packed"
    path.write_bytes(content[: len(content) // 2])

    found = units(path)

    begun = texts(found).count("\0")
    assert 0 <= begun < 5000
    ((what, _),) = problems(found)[-1:]
    assert what.startswith(("unreadable: ", "truncated line"))


@pytest.mark.parametrize(("name", "packing"), [("x.jsonl.xz", lzma), ("x.jsonl.bz2", bz2)])
def test_all_streams_of_xz_and_bzip2_are_read_with_padding_between_them(
    tmp_path: Path, name: str, packing: ModuleType
) -> None:
    """As `cat a.xz b.xz` and tapes make them; more zeros than a block."""
    streams = [packing.compress(f'{{"text": "{text}"}}\n'.encode()) for text in "abc"]
    path = tmp_path / name
    path.write_bytes(streams[0] + bytes(4) + streams[1] + streams[2] + bytes(2000) + streams[0])

    assert problems(units(path)) == []
    assert texts(units(path)) == "a\0b\0c\0a\0"


@pytest.mark.parametrize(("name", "packing"), [("x.jsonl.xz", lzma), ("x.jsonl.bz2", bz2)])
@pytest.mark.parametrize("damage", ["header", "content", "truncated", "garbage"])
def test_a_damaged_later_stream_of_xz_or_bzip2_is_a_problem(
    tmp_path: Path, name: str, packing: ModuleType, damage: str
) -> None:
    """Content before it is read, and the rest is not left out in silence."""
    rows = [f'{{"text": "{random.Random(line).random()}"}}\n' for line in range(200)]
    first = packing.compress("".join(rows).encode())
    second = {
        "header": b"\xff" + first[1:],
        "content": first[:20] + bytes(9) + first[29:],
        "truncated": first[:-5],
        "garbage": b"no stream",
    }
    path = tmp_path / name
    path.write_bytes(first + second[damage])

    found = units(path)

    assert texts(found).count("\0") >= 200
    ((what, where),) = problems(found)[-1:]
    assert what.startswith("unreadable: ")
    assert where.startswith("all from byte ")
    assert units(path, found[-2].end.offset) == found[-1:]


def test_a_bomb_of_xz_is_unpacked_in_blocks(tmp_path: Path) -> None:
    """A kilobyte may hold gigabytes."""
    path = tmp_path / "x"
    for packing in (lzma, bz2):
        path.write_bytes(packing.compress(bytes(100_000)))
        with path.open("rb") as file:
            assert {len(block) for block in jsonl._blocks(file, 0)} <= set(range(701))


def test_zstd_may_look_back_two_gib(tmp_path: Path) -> None:
    """`zstd --long=31`, as the archives of Reddit are packed."""
    window = zstandard.ZstdCompressionParameters.from_level(3, window_log=31)
    packer = zstandard.ZstdCompressor(compression_params=window).compressobj()
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(packer.compress(b'{"text": "a"}\n{"text": "b"}\n') + packer.flush())

    assert texts(units(path)) == "a\0b\0"


def test_what_a_folder_has_besides_is_named(tmp_path: Path) -> None:
    """A folder, a script, JSON that is no lines."""
    write_jsonl(tmp_path / "a.jsonl", [{"text": "a" * 500}])
    (tmp_path / "sub").mkdir()
    write_jsonl(tmp_path / "sub" / "b.jsonl", [{"text": "b"}])
    (tmp_path / "load.py").write_text("import this")
    (tmp_path / "info.json").write_text('{\n "a": 1\n}')
    (tmp_path / "array.json").write_text('[{"text": "a"}]')
    (tmp_path / ".gitattributes").write_text("x")

    sources, others = find_sources([str(tmp_path)])

    assert [Path(source.path).name for source in sources] == ["a.jsonl"]
    assert {Path(one.path).name: one.why for one in others} == {
        "sub": "a folder; name its files by a glob",
        "load.py": "another kind of file",
        "info.json": "not JSON lines",
        "array.json": "a JSON array; write one object per line",
    }


def test_a_folder_that_has_more_besides_is_an_error_with_the_option_to_go_on(
    tmp_path: Path,
) -> None:
    """Ingesting what lies beside the data is never what was meant."""
    (tmp_path / "note.txt").write_text("free")
    (tmp_path / "lang=en").mkdir()
    write_jsonl(tmp_path / "lang=en" / "0.jsonl", [{"text": "a"}])

    with pytest.raises(InvalidCorpus) as caught:
        find_sources([str(tmp_path)])

    assert re.fullmatch(
        r"has 14 bytes that would not be ingested: 1 file\(s\) or folder\(s\): lang=en "
        r"\(a folder; name its files by a glob\); pass --ignore-others .*",
        caught.value.problem,
    )
    sources, _ = find_sources([str(tmp_path)], ignores_others=True)
    assert len(sources) == 1


def test_what_is_about_a_corpus_is_no_document_of_it(tmp_path: Path) -> None:
    """A licence, and what the package datasets writes beside its data."""
    write_jsonl(tmp_path / "c4-train.0.json", [{"text": "a"}])
    (tmp_path / "LICENSE.txt").write_text("free")
    (tmp_path / "dataset_infos.json").write_text('{"default": 1}')

    sources, others = find_sources([str(tmp_path)])

    assert [Path(source.path).name for source in sources] == ["c4-train.0.json"]
    assert [Path(one.path).name for one in others] == ["LICENSE.txt", "dataset_infos.json"]
    assert len(find_sources([str(tmp_path / "LICENSE.txt")])[0]) == 1


def test_a_glob_names_the_folders_that_it_matches_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a long text, longer than the other one")
    (tmp_path / "en").mkdir()
    (tmp_path / "en" / "b.txt").write_text("b")

    sources, others = find_sources([f"{tmp_path}/*"])

    assert [Path(source.path).name for source in sources] == ["a.txt"]
    assert [Path(one.path).name for one in others] == ["en"]


def test_the_folder_that_an_ingest_writes_is_nothing_that_it_leaves_out(tmp_path: Path) -> None:
    """The same command is given again to resume."""
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train-000.ds").write_bytes(bytes(1000))

    sources, others = find_sources([str(tmp_path)], made=f"{tmp_path}/./out")

    assert (len(sources), others) == (1, [])


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    os.mkfifo(tmp_path / "b.json")

    _, others = find_sources([str(tmp_path)])

    assert [Path(one.path).name for one in others] == ["b.json"]
    with pytest.raises(InvalidSource, match=r"b\.json: is not a regular file"):
        find_sources([str(tmp_path / "b.json")])


@pytest.mark.parametrize("content", ["a text".encode("utf-16-le"), bytes(5000)])
def test_text_with_zeros_is_refused(tmp_path: Path, content: bytes) -> None:
    """UTF-16 without a mark, or a file that was never filled, is also valid UTF-8."""
    path = tmp_path / "a.txt"
    path.write_bytes(content)

    with pytest.raises(InvalidSource, match="is not text: it has bytes that no text has"):
        find_sources([str(path)])


def test_a_byte_order_mark_of_text_is_no_text(tmp_path: Path) -> None:
    """Offsets stay those of the file, and one alone is an empty file."""
    path = tmp_path / "a.txt"
    content = "\1".join(documents(100))
    path.write_bytes("\ufeff".encode() + content.encode())

    found = units(path)

    assert texts(found) == content.replace("\1", "\0") + "\0"
    assert (found[0].place.offset, found[-1].end.offset) == (0, path.stat().st_size)
    assert found[0].content.is_first
    for number in (0, len(found) - 1):
        assert units(path, found[number].end.offset) == found[number + 1 :]
    path.write_bytes("\ufeff".encode())
    assert problems(units(path)) == [("empty file", "3 bytes")]


def test_a_text_that_begins_with_bzh_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("BZhukov was a town")

    assert find_sources([str(path)])[0][0].kind == "text"


def test_an_array_of_json_is_named(tmp_path: Path) -> None:
    """In one line, or in several."""
    for content in ('[{"text": "a"}]', '[\n{"text": "a"}\n]'):
        path = tmp_path / "x.json"
        path.write_text(content)

        what, where = problems(units(path))[0]

        assert (what, where) == ("a JSON array, not an object; write one object per line", "byte 0")
