"""Names, ranges and texts as these commands print them: nothing in them acts on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tokenfeed.commands.printable import printable
from tokenfeed.errors import TokenfeedError
from tokenfeed.v1 import provenance_pb2 as pb

DELETED = "deleted"
"""What is said of tokens that were erased."""
_NAME_SHOWN = 200
_PROBLEM_SHOWN = 1000


def escaped(text: str, most: int = _NAME_SHOWN) -> str:
    """Return text with an escape for each sign that is not printable, cut after `most` signs."""
    return printable(text, most)


def span(first: int, end: int) -> str:
    """Return a half-open range."""
    return f"[{first:,}, {end:,})"


def pairs(spans: Iterable[pb.TokenSpan]) -> list[list[int]]:
    """Return half-open ranges of tokens as an answer in JSON has them."""
    return [[each.first_token, each.end_token] for each in spans]


def counted(number: int, what: str) -> str:
    """Return "1 row" or "2 rows"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def step_place(step: int, rank: int, row: int) -> str:
    """Return where a row was delivered."""
    return f"step {step:,} rank {rank:,} row {row:,}"


@contextmanager
def printable_errors() -> Iterator[None]:
    """Escape what a server or a file has written into an error."""
    try:
        yield
    except TokenfeedError as error:
        subject, problem = escaped(error.subject), escaped(error.problem, _PROBLEM_SHOWN)
        raise TokenfeedError(subject, problem) from None
