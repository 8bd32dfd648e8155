"""What tokenfeed top shows of a status: lines that fit, tables and a minute as blocks."""

from __future__ import annotations

import pytest

from tests.support.statuses import dataset, status, stream
from tokenfeed.commands.status.view import Column
from tokenfeed.tools.top.text import columns_of, cut, spark, status_lines, table, wrapped
from tokenfeed.v1 import status_pb2 as pb


@pytest.mark.parametrize("height", range(24))
@pytest.mark.parametrize("width", [1, 20, 79])
def test_lines_fit(width: int, height: int) -> None:
    """Whatever is to be said, the first line says how the server is."""
    names = [f"d{number}" for number in range(40)]
    found = status(
        datasets=[dataset(name, lost="gone") for name in names],
        streams=[stream(name, waits_for_server=1.0) for name in names],
        streams_omitted=5,
    )

    lines = status_lines(found, "host:50051", width, height)

    assert len(lines) <= height
    assert all(columns_of(line.text) <= width for line in lines)
    if height:
        assert lines[0].text[:9] == "tokenfeed"[: width - 1] + "…" * (width < 9)


def test_columns_that_matter_least_are_left_out_first() -> None:
    """A narrow terminal shows who has a problem."""
    columns = [Column("a", "", 0), Column("b", "", 2), Column("c", "", 1, "number")]
    rows = [("aa", "bbbb", "1"), ("a", "b", "22")]

    assert table(columns, rows, None) == ["A   B      C", "aa  bbbb   1", "a   b     22"]
    assert table(columns, rows, 11) == ["A    C", "aa   1", "a   22"]
    assert table(columns, rows, 5) == ["A", "aa", "a"]
    assert table(columns, rows, 1) == ["A", "…", "a"]


def test_a_client_shows_where_its_trainer_is_and_that_it_has_ended() -> None:
    """Rows that were sent may still wait for the trainer."""
    streams = [
        stream("run", trainer_sample=900, next_sample=1000),
        stream("done", calls=0, has_ended=True, idle_seconds=500.0, tokens_per_second=0.0),
    ]

    lines = [line.text for line in status_lines(status(streams=streams), "host:50051", 200)]

    heading = next(line for line in lines if line.startswith("STATE"))
    run = next(line for line in lines if " run " in line)
    begin, end = heading.index("TRAINER AT"), heading.index("SENT TO") + len("SENT TO")
    assert run[begin:end].split() == ["900", "1,000"]
    assert any(line.split()[:3] == ["has", "ended", "done"] for line in lines)
    assert not any("ATTENTION" in line for line in lines)


def test_a_snapshot_has_what_the_page_has() -> None:
    """Who has no browser misses nothing: requests to object stores, and calls that were refused."""
    found = status(
        object_requests=[pb.ObjectRequests(reason="row", requests=3400, bytes=3 << 30)],
        object_cache=pb.ObjectCache(size_bytes=1 << 30, blocks=800, cached_blocks=200, hits=1),
        refusals=[pb.Refusals(status="NOT_FOUND", reason="NotFound", count=7)],
    )

    lines = [line.text for line in status_lines(found, "host:50051")]

    figures = " ".join(" ".join(lines).split())
    assert "objects 3.00 GiB in 3,400 requests" in figures
    assert "cached 200 MiB of 800 MiB, for 100 % of the rows" in figures
    assert [line.split() for line in lines[-5:]] == [
        ["FOR", "REQUESTS", "BYTES"],
        ["rows", "3,400", "3.00", "GiB"],
        [],
        ["STATUS", "REASON", "CALLS"],
        ["NOT_FOUND", "NotFound", "7"],
    ]


def test_wide_signs_take_two_columns() -> None:
    """Otherwise a table with Chinese names is ragged."""
    assert columns_of("語e\u0301a") == 4
    assert cut("語語語", 5) == "語語…"
    assert cut("語語語", 6) == "語語語"
    assert cut("abc", 0) == ""


def test_sentences_are_broken_at_spaces() -> None:
    """And what is longer than a line is cut."""
    assert wrapped("!  one two three", 8, 3) == ["!  one", "   two", "   three"]
    assert wrapped("one", None, 3) == ["one"]
    assert wrapped("a bbbbbbbb", 5, 2) == ["a", "  bb…"]


def test_a_minute_is_drawn_in_the_columns_there_are() -> None:
    """The latest second at the right end."""
    assert spark([], 20) == ""
    assert spark([0, 0], 60) == ""
    assert spark([1, 2], 60).endswith(" ▅█")
    assert len(spark([5] * 60, 20)) == 20
    assert len(spark([5] * 60, 60)) == 60
