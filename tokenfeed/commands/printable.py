"""Text from outside as a command prints it: nothing in it acts on what shows it. Pure."""

from __future__ import annotations


def printable(text: object, most: int | None = None, *, mark: str | None = None) -> str:
    """Return text in which each sign that cannot be printed is escaped, among them those that turn
    the direction of writing.

    most: signs of the text; beyond them it is cut.  mark: takes the place of such a sign, in place
    of its escape, so that no text gets longer.
    """
    whole = str(text)
    cut = whole if most is None or len(whole) <= most else f"{whole[: most - 1]}…"
    return "".join(
        sign if sign.isprintable() else mark or sign.encode("unicode_escape").decode("ascii")
        for sign in cut
    )
