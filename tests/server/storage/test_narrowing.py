"""Stored integers as tokens: as narrow as they fit, and never another number."""

from __future__ import annotations

import numpy as np
import pytest

from tokenfeed.server.storage.formats import STORED
from tokenfeed.server.storage.narrowing import Narrowing, TokenScan


def served(name: str, values: list[int], token_max: int | None = None) -> list[int]:
    narrowing = Narrowing(STORED[name], token_max)
    tokens = np.array(values, STORED[name])
    assert narrowing.scan(tokens).wrong_place is None
    found: list[int] = narrowing.serve(tokens).tolist()
    return found


@pytest.mark.parametrize(
    ("name", "token_max", "width"),
    [
        ("uint8", None, 2), ("int8", None, 2), ("uint16", None, 2), ("int16", None, 2),
        ("uint32", None, 4), ("int32", None, 4), ("int64", None, 4), ("uint64", None, 4),
        ("int32", 65_535, 2), ("int32", 65_536, 4), ("int64", 65_535, 2), ("uint64", 0, 2),
        ("uint32", 5, 4), ("uint16", 5, 2),
    ],
)  # fmt: skip
def test_the_narrowest_type_that_holds_them_all_is_served(
    name: str, token_max: int | None, width: int
) -> None:
    """What is stored as uint16 or uint32 travels as it is."""
    assert Narrowing(STORED[name], token_max).served.itemsize == width


@pytest.mark.parametrize("name", STORED)
def test_tokens_keep_their_value(name: str) -> None:
    greatest = min(np.iinfo(STORED[name]).max, 2**32 - 1)
    values = [0, 1, 100, int(greatest)]

    assert served(name, values, greatest) == values
    assert served(name, [0, 99], 99) == [0, 99]


@pytest.mark.parametrize(
    ("name", "value", "token_max"),
    [
        ("int8", -1, None), ("int16", -1, None), ("int16", -32_768, 5), ("int32", -100, None),
        ("int32", 65_536, 65_535), ("int64", -1, None), ("int64", 2**32, None),
        ("int64", 2**63 - 1, 65_535), ("uint64", 2**64 - 1, None), ("uint64", 65_536, 6),
    ],
)  # fmt: skip
def test_a_number_that_is_not_a_token_is_found_with_its_position(
    name: str, value: int, token_max: int | None
) -> None:
    """-100 masks a label; cut to 16 bits it would be a token."""
    tokens = np.array([0, 5, value, 1], STORED[name])
    assert Narrowing(STORED[name], token_max or 65_535).scan(tokens[:2]).greatest in (-1, 5)

    assert Narrowing(STORED[name], token_max).scan(tokens).wrong_place == 2


def test_a_number_beyond_the_vocabulary_is_not_a_token_even_if_it_could_be_served() -> None:
    """Every number is checked anyway."""
    tokens = np.array([0, 50_256, 50_257], "<i4")

    assert Narrowing(STORED["int32"], 50_256).scan(tokens[:2]) == TokenScan(50_256)
    assert Narrowing(STORED["int32"], 50_256).scan(tokens).wrong_place == 2
