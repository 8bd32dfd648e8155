"""Names of files and ids of documents as text that is safe to show: one line, and valid UTF-8."""

from __future__ import annotations

import os

_SURROGATES = range(0xDC80, 0xDD00)
"""What Python makes of bytes that are no UTF-8: 0xDC00 + byte."""


def escaped(text: str) -> str:
    r"""Return a text whose control characters, and bytes that are no UTF-8, are escaped: \n, \x80,
    \u2028.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def file_name(path: str) -> str:
    """Return the name of a file, escaped, without its folder."""
    return escaped(os.path.basename(path))


def _escaped(sign: str) -> str:
    if sign.isprintable():
        return sign
    if ord(sign) in _SURROGATES:
        return f"\\x{ord(sign) - 0xDC00:02x}"
    return ascii(sign)[1:-1]
