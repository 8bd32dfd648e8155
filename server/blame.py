"""What a log line may say of an exception that nobody foresaw.

Its text may hold a path or a token, and its traceback fills a page.
"""

from __future__ import annotations

import os
import traceback

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(os.path.join(_ROOT, room, "") for room in ("server", "tokenfeed"))


def blame(error: BaseException) -> str:
    """Return the type of an exception and the line of ours that it passed first:
    "KeyError at server/service.py:88".
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(_OURS)]
    kind = type(error).__name__
    if not ours:
        return kind
    return f"{kind} at {os.path.relpath(ours[-1].filename, _ROOT)}:{ours[-1].lineno}"
