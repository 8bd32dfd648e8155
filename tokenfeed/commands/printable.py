"""Text from outside as a command prints it: nothing in it acts on what shows it. Pure."""

from __future__ import annotations


def printable(text: object, most: int | None = None, *, mark: str | None = None) -> str:
    """Return text in which each sign that cannot be printed is escaped, among them those that turn
    the direction of writing, and bytes that are no UTF-8.

    most: signs of the text; beyond them it is cut.  mark: takes the place of such a sign, in place
    of its escape, so that no text gets longer.
    """
    whole = str(text)
    cut = whole if most is None or len(whole) <= most else f"{whole[: most - 1]}…"
    return "".join(sign if sign.isprintable() else mark or _escaped(sign) for sign in cut)


def _escaped(sign: str) -> str:
    if "\udc80" <= sign <= "\udcff":  # what Python makes of a byte that is no UTF-8
        return f"\\x{ord(sign) - 0xDC00:02x}"
    return sign.encode("unicode_escape").decode("ascii")
