"""Where a user's programs keep what can be computed again."""

from __future__ import annotations

import os


def cache_folder() -> str:
    """Return the folder; not absolute for a user without a home. It need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "tokenfeed")
