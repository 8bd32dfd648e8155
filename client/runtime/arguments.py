"""Checks of user arguments: clear errors before anything is sent."""

from __future__ import annotations

import operator
import re
import reprlib
import socket
from dataclasses import replace
from fractions import Fraction

from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.stream.position import SAMPLE_END, Position, require_range
from tokenfeed.wire.request import CLIENT_NAME_MAX

_AMOUNT = re.compile(r"([0-9][0-9_]*)(?:\.([0-9]+))?(?:[eE]\+?([0-9]{1,2}))?")
_BITS_MAX = 1024
_SECONDS_MAX = 365 * 24 * 3600
"""One year: every clock and queue supports this timeout."""


def shown(value: object) -> str:
    """Return any value as an error shows it; long or deep values are cut."""
    try:
        return reprlib.repr(value)
    except ValueError:  # a number with more digits than Python prints
        return f"a huge {type(value).__name__}"


def integer(name: str, value: int, *limits: int) -> int:
    """Return value as an int.

    limits: are the first and the end of the range that it has to be in, if there are any.
    Raises: InvalidRequest if it is not an integer, or not in that range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):  # to Python it is a number
        raise InvalidRequest(name, f"{shown(value)} is not an integer")
    if number.bit_length() > _BITS_MAX:
        # The value is not shown: it may have more digits than Python prints.
        raise InvalidRequest(
            name, f"has {number.bit_length()} bits; no number may have more than {_BITS_MAX}"
        )
    if limits:
        require_range(name, number, *limits)
    return number


def amount(name: str, written: str, what: str) -> int:
    """Return a whole number above 0 that is written as 1e12, 2.5e9 or 2_000_000_000.

    what: is counted, for the message.  Raises: InvalidRequest.
    """
    match = _AMOUNT.fullmatch(written)
    if match is None:
        problem = f"{shown(written)} is not a number of {what}, such as 1e12 or 2_000_000_000"
        raise InvalidRequest(name, problem)
    whole, part, exponent = match.groups("")
    found = Fraction(int(whole.replace("_", "") + part)) * Fraction(10) ** (
        int(exponent or 0) - len(part)
    )
    if found.denominator != 1 or not found:
        raise InvalidRequest(name, f"{written} is not a whole number above 0")
    return found.numerator


def optional_integer(name: str, value: int | None, *limits: int) -> int | None:
    """Like `integer`; None stays None."""
    return None if value is None else integer(name, value, *limits)


def count(name: str, value: int) -> int:
    """Return value as an int, at least 0.  Raises: InvalidRequest."""
    number = integer(name, value)
    if number < 0:
        raise InvalidRequest(name, f"{number} is negative; the minimum is 0")
    return number


def text(name: str, value: str | None) -> str:
    """Return value, "" for None.  Raises: InvalidRequest unless UTF-8 can encode it."""
    if value is None:
        return ""
    if not isinstance(value, str) or value.encode(errors="replace").decode() != value:
        raise InvalidRequest(name, f"{shown(value)} is not text")
    return value


def one_of(name: str, value: str, values: tuple[str, ...]) -> str:
    """Return value.  Raises: InvalidRequest unless it is one of values."""
    if not isinstance(value, str) or value not in values:
        raise InvalidRequest(name, f"{shown(value)} is not one of {', '.join(values)}")
    return value


def flag(name: str, value: bool) -> bool:
    """Return value.  Raises: InvalidRequest unless it is True or False."""
    if not isinstance(value, bool):
        raise InvalidRequest(name, f"{shown(value)} is neither True nor False")
    return value


def hash_digits(name: str, value: str | None) -> bytes | None:
    """Return the 32 bytes of a hash written as 64 hexadecimal digits; None stays None.  Raises:
    InvalidRequest.
    """
    if value is None:
        return None
    if re.fullmatch("[0-9A-Fa-f]{64}", text(name, value)) is None:
        raise InvalidRequest(name, f"{value!r} is not 64 hexadecimal digits")
    return bytes.fromhex(value)


def seconds(name: str, value: float, *, zero: bool) -> float:
    """Return value as a float.  Raises: InvalidRequest if it is not a number, negative, above a
    year, or 0 where zero is False.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest(name, f"{value!r} is not a number of seconds")
    # The value is not shown: it may have more digits than Python prints. NaN is in no range.
    if not 0 <= value <= _SECONDS_MAX or (value == 0 and not zero):
        first = "[0" if zero else "(0"
        raise InvalidRequest(name, f"has to be in {first}, {_SECONDS_MAX}] seconds")
    return float(value)


def name_of_client(value: str | None, rank: int) -> str:
    """Return the name of a client in server logs; by default its machine and rank.  Raises:
    InvalidRequest if it is not printable text, or too long.
    """
    if value is None:
        value = f"{_host_name()} rank {rank}"
    if not isinstance(value, str) or not value.isprintable():
        raise InvalidRequest("client_name", f"{value!r} is not printable text")
    if len(value) > CLIENT_NAME_MAX:
        raise InvalidRequest(
            "client_name",
            f"has {len(value)} characters; the maximum is {CLIENT_NAME_MAX}",
        )
    return value


def _host_name() -> str:
    """Return this machine's name, shortened, with "?" for each character that is not printable:
    the kernel accepts any bytes.
    """
    name = socket.gethostname()[: CLIENT_NAME_MAX // 2]
    return "".join(char if char.isprintable() else "?" for char in name)


def first_position(start_step: int, start_sample: int | None, origin: Position) -> Position:
    """Return the position to begin at: a step stands for one batch of each rank.

    origin: the position at sample 0.
    Raises: InvalidRequest if both are given; SamplesExhausted if a whole step of all ranks would
    reach sample 2^63.
    """
    step = count("start_step", start_step)
    if start_sample is None:
        name, given, samples = "start_step", step, step * origin.stride
    elif step == 0:
        name, given, samples = "start_sample", start_sample, count("start_sample", start_sample)
    else:
        raise InvalidRequest(
            "start_sample", "is given together with start_step; pass only one of them"
        )
    room = SAMPLE_END - origin.stride
    if samples > room:
        last = room // origin.stride if name == "start_step" else room
        raise SamplesExhausted(
            name,
            f"{given} is not in [0, {last}]; a step is {origin.stride} samples, and samples have "
            "to stay below 2^63",
        )
    return replace(origin, first_sample=samples)
