"""Numbers and names of a status as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.statuses import HOSTILE_NAMES, dataset, stream
from tokenfeed.commands.status import words
from tokenfeed.commands.status.words import spans_of


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1_536, "1.50 KiB"),
        (10.5 * (1 << 20), "10.5 MiB"),
        (1023.6 * (1 << 20), "1.00 GiB"),
        (3 << 60, "3.00 EiB"),
        (1 << 75, "32768 EiB"),
    ],
)
def test_sizes_have_three_digits_and_a_binary_unit(number: float, text: str) -> None:
    """1 GB and 1 GiB differ by 7 %, and limits are in GiB."""
    assert words.size(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (0.25, "0.25"),
        (999.4, "999"),
        (999.6, "1.00 k"),
        (12_345, "12.3 k"),
        (7e9, "7.00 G"),
    ],
)
def test_amounts_have_three_digits_and_a_decimal_unit(number: float, text: str) -> None:
    """People say "300 k tokens/s"."""
    assert words.amount(number) == text


@pytest.mark.parametrize(
    ("part", "text"),
    [(0.0, "0 %"), (1e-9, "<1 %"), (0.01, "1 %"), (0.999, "99 %"), (1.0, "100 %")],
)
def test_a_share_is_100_percent_only_if_nothing_is_missing(part: float, text: str) -> None:
    """ "100 % read" that waits for its last per cent is a question to support."""
    assert words.share(part) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1.0, "0.0 s"),
        (0.04, "0.0 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3_599.6, "1 h"),
        (3_900, "1 h 5 min"),
        (86_400 * 3 + 7_200, "3 d 2 h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    """Seconds tell nothing once it is hours."""
    assert words.duration(seconds) == text


@given(st.text(max_size=200), st.integers(1, 80))
def test_text_from_outside_is_bounded_and_printable(text: str, most: int) -> None:
    """It comes from clients, and is shown in terminals and browsers."""
    shown = words.printable(text, most)

    assert len(shown) <= most
    assert all(sign.isprintable() or sign == "\ufffd" for sign in shown)
    assert text != shown[: len(text)] or len(text) <= most


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_keep_what_is_harmless(name: str) -> None:
    """An operator has to recognise the client."""
    shown = words.printable(name)

    assert shown[:5] == "".join(c if c.isprintable() else "\ufffd" for c in name[:5])


@pytest.mark.parametrize(
    ("peer", "text"),
    [
        ("ipv4:10.0.0.7:41234", "10.0.0.7:41234"),
        ("ipv6:%5B::1%5D:50", "[::1]:50"),
        ("unix:", "Unix socket"),
        ("odd", "odd"),
        ("ipv4:\x1b[2J", "\ufffd[2J"),
    ],
)
def test_addresses_are_written_as_people_do(peer: str, text: str) -> None:
    """It is pasted into ssh."""
    assert words.address(peer) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "rank 3 of 64"),
        ([4, 3], "ranks 3 and 4 of 64"),
        ([1, 2, 3, 5], "ranks 1 to 3 and 5 of 64"),
        (range(64), "ranks 0 to 63 of 64"),
        (range(0, 64, 2), "ranks 0, 2, 4, 6, 8, 10 and 26 others of 64"),
    ],
)
def test_ranks_are_listed_briefly(numbers: list[int], text: str) -> None:
    """A sentence about 1,000 ranks stays a sentence."""
    assert words.ranks(spans_of(numbers), 64) == text


def test_a_dataset_says_what_happens_to_it() -> None:
    """In one place, for the page and the terminal."""
    assert words.state_of(dataset()) == "served"
    assert words.state_of(dataset(lost="a.bin was truncated")) == "lost: a.bin was truncated"
    assert words.state_of(dataset(warm_up_share=0.5)) == "warm-up: 50 % read"
    making = [{"what": "borders of documents", "share": 0.25}]
    assert words.state_of(dataset(making=making)) == "makes borders of documents: 25 %"
    reading = dataset(cold=True, rows_per_second=1.0)
    assert words.state_of(reading) == "reads wait for storage"
    reading.resident_share = 1.0
    assert words.state_of(reading) == "served"


def test_a_mixture_is_named_by_its_first_datasets() -> None:
    """It may have a thousand."""
    names = [f"d{number}" for number in range(32)]
    mixed = stream(order="mixture-1", datasets=names, datasets_omitted=968)

    assert words.data_of(mixed) == "mixture of d0, d1, d2 and 997 more"
    assert words.data_of(stream()) == "web"


@pytest.mark.parametrize("milliseconds", [1 << 63, (1 << 64) - 1])
def test_a_time_that_no_calendar_has_is_shown_as_unknown(milliseconds: int) -> None:
    """A server with a broken clock is one that is looked at."""
    assert words.time(milliseconds) == "an unknown time"
    assert words.time(1_795_000_000_000) == "2026-11-18 11:06:40 UTC"
