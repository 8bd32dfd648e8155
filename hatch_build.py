"""Ends a build of the sdist or the wheel that would have no code in it.

tokenfeed/client and tokenfeed/server are symbolic links, in an sdist folders. Some tools write such
a link as a text file that holds its target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LinksHook(BuildHookInterface[Any]):
    """Looks for what the links lead to."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """End the build, with the reason, unless both packages are there."""
        for name in ("client", "server"):
            if not Path(self.root, "tokenfeed", name, "__init__.py").is_file():
                self.app.abort(
                    f"error: tokenfeed/{name} has to be a symbolic link to ../{name}, and is none. "
                    "Git (where core.symlinks is false) and Python's zipfile write a text file: "
                    "set core.symlinks to true and check out again, or unpack with tar or unzip"
                )
