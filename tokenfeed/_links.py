"""The packages tokenfeed.client and tokenfeed.server, which are links to folders of the repository,
and their short names.

Every module has one name, tokenfeed.client.x: with two of them there would be two of each class. So
`client` has what tokenfeed.client offers, and no modules; `server` has nothing.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def short_path(name: str) -> list[str]:
    """Return the path of a package with a short name: all that it has is what `python -m` runs.
    Raises: ImportError, like `require_package`.
    """
    require_package(name)
    return [str(Path(__file__).with_name("short") / name)]


def require_package(name: str) -> None:
    """Raise ImportError, with the reason, where tokenfeed has no package or module of this name."""
    module = f"tokenfeed.{name}"
    try:
        found = find_spec(module)
    except ValueError:
        return  # a stub of a test, which has no spec
    if found is not None:
        return
    link = Path(__file__).with_name(name)
    if link.is_file():
        raise ImportError(
            f"{link} has to be a symbolic link to ../{name}, and is a text file, as git (where "
            "core.symlinks is false) and Python's zipfile write it: set core.symlinks to true and "
            "check out again, or unpack with tar or unzip"
        )
    raise ImportError(f"{module} is not part of this installation")
