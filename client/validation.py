"""Checks of what users pass: clear errors before anything is sent."""

from __future__ import annotations

import operator
import re
import reprlib
import socket
from dataclasses import replace

from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.stream.position import SAMPLE_END, Position
from tokenfeed.wire.request import CLIENT_NAME_MAX

_BITS_MAX = 1024
_SECONDS_MAX = 365 * 24 * 3600
"""A year, which every clock and queue can wait."""


def shown(value: object) -> str:
    """Return what an error shows of anything at all: of what is long or deep, a part."""
    try:
        return reprlib.repr(value)
    except ValueError:  # a number of more digits than Python writes
        return f"a huge {type(value).__name__}"


def integer(name: str, value: int) -> int:
    """Return value as an int.  Raises: InvalidRequest if it is none."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidRequest(name, f"{shown(value)} is no integer") from None
    if number.bit_length() > _BITS_MAX:
        # Not shown: it may have more digits than Python writes.
        raise InvalidRequest(name, f"has {number.bit_length()} bits, and no limit is so high")
    return number


def optional_integer(name: str, value: int | None) -> int | None:
    """As `integer`; None stays None."""
    return None if value is None else integer(name, value)


def count(name: str, value: int) -> int:
    """Return value as an int that is not negative.  Raises: InvalidRequest."""
    number = integer(name, value)
    if number < 0:
        raise InvalidRequest(name, f"{number} is negative")
    return number


def text(name: str, value: str | None) -> str:
    """Return value, "" for None.  Raises: InvalidRequest if it is no text that can travel."""
    if value is None:
        return ""
    if not isinstance(value, str) or not _encodable(value):
        raise InvalidRequest(name, f"{shown(value)} is no text")
    return value


def hash_digits(name: str, value: str | None) -> bytes | None:
    """Return a hash of 32 bytes that is written as 64 hexadecimal digits; None stays None.  Raises:
    InvalidRequest.
    """
    if value is None:
        return None
    if re.fullmatch("[0-9A-Fa-f]{64}", text(name, value)) is None:
        raise InvalidRequest(name, f"{value!r} is not 64 hexadecimal digits")
    return bytes.fromhex(value)


def seconds(name: str, value: float, *, zero: bool) -> float:
    """Return value as a number of seconds.  Raises: InvalidRequest if it is none, too small, or
    above a year.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest(name, f"{value!r} is no number of seconds")
    # Not shown: it may have more digits than Python writes. Not a number is in no range either.
    if not 0 <= value <= _SECONDS_MAX or (value == 0 and not zero):
        first = "[0" if zero else "(0"
        raise InvalidRequest(name, f"has to be in {first}, {_SECONDS_MAX}] seconds")
    return float(value)


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def name_of_client(value: str | None, rank: int) -> str:
    """Return the name by which people know a client; by default its machine and rank.  Raises:
    InvalidRequest if it is no printable text, or too long.
    """
    if value is None:
        value = f"{_host_name()} rank {rank}"
    if not isinstance(value, str) or not value.isprintable():
        raise InvalidRequest("client_name", f"{value!r} is no printable text")
    if len(value) > CLIENT_NAME_MAX:
        raise InvalidRequest(
            "client_name",
            f"has {len(value)} characters, more than {CLIENT_NAME_MAX}",
        )
    return value


def _host_name() -> str:
    """Return the name of this machine, as far as it can stand in a name of a client: a kernel takes
    any bytes for it.
    """
    name = socket.gethostname()[: CLIENT_NAME_MAX // 2]
    return "".join(one if one.isprintable() else "?" for one in name)


def first_position(start_step: int, start_sample: int | None, origin: Position) -> Position:
    """Return where to begin: steps are sugar for samples of all ranks.

    origin: the place at sample 0.
    Raises: InvalidRequest where both are given; SamplesExhausted where a whole step of all ranks
    would reach sample 2^63.
    """
    step = count("start_step", start_step)
    if start_sample is None:
        name, given, samples = "start_step", step, step * origin.stride
    elif step == 0:
        name, given, samples = "start_sample", start_sample, count("start_sample", start_sample)
    else:
        raise InvalidRequest("start_sample", "is given together with start_step; give one of them")
    room = SAMPLE_END - origin.stride
    if samples > room:
        last = room // origin.stride if name == "start_step" else room
        raise SamplesExhausted(
            name,
            f"{given} is not in [0, {last}]; a step is {origin.stride} samples, and all of them "
            "stay below 2^63",
        )
    return replace(origin, first_sample=samples)
