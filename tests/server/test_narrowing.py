"""Stored integers as tokens: as narrow as they fit, and never another number."""

from __future__ import annotations

import numpy as np
import pytest

from server.formats import STORED
from server.narrowing import Narrowing, NoToken


def served(name: str, values: list[int], token_max: int | None = None) -> list[int]:
    narrowing = Narrowing(STORED[name], token_max)
    content = np.array(values, STORED[name]).view(np.uint8)
    tokens: list[int] = narrowing.serve(content).view(narrowing.served).tolist()
    return tokens


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
        ("int64", 2**63 - 1, 65_535), ("uint64", 2**64 - 1, None), ("uint64", 65_536, 1),
    ],
)  # fmt: skip
def test_a_number_that_is_no_token_is_named_with_its_place(
    name: str, value: int, token_max: int | None
) -> None:
    """-100 masks a label; cut to 16 bits it would be a token."""
    with pytest.raises(NoToken) as caught:
        served(name, [0, 7, value, 9], token_max)

    assert (caught.value.place, caught.value.value) == (2, value)


def test_rows_are_as_long_in_the_file_as_their_tokens_are_wide() -> None:
    assert Narrowing(STORED["int64"], 9).stored_bytes(10) == 40
    assert Narrowing(STORED["int64"]).stored_bytes(12) == 24
    assert Narrowing(STORED["uint8"]).stored_bytes(10) == 5
