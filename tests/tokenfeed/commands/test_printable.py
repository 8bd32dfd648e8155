"""What comes from a file or a server is printed, and does nothing else."""

from __future__ import annotations

import pytest

from tokenfeed.commands.printable import printable


@pytest.mark.parametrize(
    ("text", "most", "mark", "shown"),
    [
        ("été 文", None, None, "été 文"),
        ("\x1b[2J\n", None, None, r"\x1b[2J\n"),
        ("\u202eevil\udc80", None, None, r"\u202eevil\x80"),
        ("\x1b[2J", None, "?", "?[2J"),
        ("x" * 9, 9, None, "x" * 9),
        ("x" * 10, 9, None, "x" * 8 + "…"),
        ("\x00" * 3, 2, None, r"\x00…"),
        (12, None, None, "12"),
    ],
)
def test_no_sign_of_a_text_acts_on_what_shows_it(
    text: object, most: int | None, mark: str | None, shown: str
) -> None:
    """Neither a terminal nor a page; and each sign that was there can be read, or is marked."""
    assert printable(text, most, mark=mark) == shown
