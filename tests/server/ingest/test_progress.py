"""The progress of an ingest, on a terminal and in a log."""

from __future__ import annotations

import io

import pytest

from tokenfeed.server.ingest import progress
from tokenfeed.server.ingest.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_log_has_a_line_now_and_then_with_speed_and_time_left(clock: list[float]) -> None:
    log = io.StringIO()
    shown = Progress(1_000_000_000, "fastokens", log)
    for second in range(31):
        clock[0] = 100.0 + second
        shown.show(10_000_000 * second, 5000 * second)
    shown.end()

    assert log.getvalue().splitlines() == [
        "10.0%  50,000 tokens  5,000 tokens/s  10.0 MB/s by fastokens  1:30 left",
        "20.0%  100,000 tokens  5,000 tokens/s  10.0 MB/s by fastokens  1:20 left",
        "30.0%  150,000 tokens  5,000 tokens/s  10.0 MB/s by fastokens  1:10 left",
    ]


def test_work_before_a_kill_does_not_count_for_the_speed(clock: list[float]) -> None:
    """Otherwise the time left would be far too short at first."""
    log = io.StringIO()
    shown = Progress(1_000_000_000, "fastokens", log)
    shown.show(500_000_000, 1_000_000)
    clock[0] += 10
    shown.show(600_000_000, 1_050_000)

    assert (
        log.getvalue()
        == "60.0%  1,050,000 tokens  5,000 tokens/s  10.0 MB/s by fastokens  0:40 left\n"
    )


def test_a_terminal_has_one_live_line_that_goes_away(clock: list[float]) -> None:
    terminal = Terminal()
    shown = Progress(1000, "tokenizers", terminal)
    shown.show(0, 0)
    clock[0] += 1
    shown.show(100, 500)
    shown.end()

    line = "10.0%  500 tokens  500 tokens/s  0.0 MB/s by tokenizers  0:09 left"
    assert terminal.getvalue() == f"\r{line}\x1b[K\r\x1b[K"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.4, "0:59"), (61, "1:01"), (3723, "1:02:03")]
)
def test_time_is_shown_as_on_a_clock(seconds: float, text: str) -> None:
    assert duration(seconds) == text
