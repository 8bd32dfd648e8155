"""Checks of what users pass: clear errors before anything is sent."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from pathlib import Path

from tokenfeed.errors import InvalidRequest

from .channel import Security, Token

_SECONDS_MAX = 365 * 24 * 3600
"""A year, which every clock and queue can wait."""


def integer(name: str, value: int) -> int:
    """Return value as an int.  Raises: InvalidRequest if it is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidRequest(name, f"{value!r} is no integer") from None


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
        raise InvalidRequest(name, f"{value!r} is no text")
    return value


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


def security(
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    token: Token | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Security:
    """Return what was given, and for the rest what the environment says.

    Raises: InvalidRequest.
    """
    token_file = environment.get("TOKENFEED_TOKEN_FILE")
    return Security(
        tls_ca or environment.get("TOKENFEED_TLS_CA") or None,
        tls_cert or environment.get("TOKENFEED_TLS_CERT") or None,
        tls_key or environment.get("TOKENFEED_TLS_KEY") or None,
        token or environment.get("TOKENFEED_TOKEN") or (Path(token_file) if token_file else None),
    )


def first_sample(start_step: int, start_sample: int | None, samples_per_step: int) -> int:
    """Return the sample to begin with: steps are sugar for samples of all ranks.  Raises:
    InvalidRequest where both are given.
    """
    step = count("start_step", start_step)
    if start_sample is None:
        return step * samples_per_step
    if step != 0:
        raise InvalidRequest("start_sample", "is given together with start_step; give one of them")
    return count("start_sample", start_sample)
