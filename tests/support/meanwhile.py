"""Another thread acts at a chosen moment: in the middle of what a test calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest


def meanwhile(
    monkeypatch: pytest.MonkeyPatch,
    of: Any,
    name: str,
    *acts: Callable[[], object],
    is_before: bool = False,
) -> None:
    """Have another thread act once behind each of the next calls of a function, or before it.

    of, name: the module or class of the function, and its name there.  acts: one for each call;
    what they call may call the function too.  is_before: whether they act before it.
    """
    step, left = getattr(of, name), [*acts]

    def act_once() -> None:
        if left:
            thread = threading.Thread(target=left.pop(0))
            thread.start()
            thread.join()

    def acted(*given: Any, **options: Any) -> Any:
        if is_before:
            act_once()
        found = step(*given, **options)
        if not is_before:
            act_once()
        return found

    monkeypatch.setattr(of, name, acted)
