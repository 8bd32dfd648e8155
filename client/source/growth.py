"""Whether what servers make, such as the rows of a corpus, gets on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_FALLS_MAX = 8
"""How often the progress of one thing may fall. It falls where a server was restarted, and where
work that had to wait shows the progress of the work before it. A server that is killed at each try
has to be given up."""


class _Level(NamedTuple):
    last: float
    greatest: float
    falls: int


class Growth:
    """The progress of everything that is being made, as of the last answers."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[str, _Level] = {}

    def note(self, progress: Mapping[str, float]) -> bool:
        """Take an answer: shares by name.  Returns: whether any of them gets on.

        Any change is such a sign. Once a share has fallen too often, only a share above all before
        is one.
        """
        gets_on = False
        for name, share in progress.items():
            last, greatest, falls = self._known.get(name, _Level(-1.0, -1.0, 0))
            falls += share < last
            gets_on |= share > greatest or (share != last and falls <= _FALLS_MAX)
            self._known[name] = _Level(share, max(share, greatest), falls)
        return gets_on
