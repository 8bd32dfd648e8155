"""Checks of what users pass: clear errors before anything is sent."""

from __future__ import annotations

import operator

from tokenfeed.errors import InvalidRequest


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
