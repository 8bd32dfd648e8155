"""What is installed with an extra, and what a command says where it is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import util

NEED_TORCH = ("RemoteBatches", "RichBatch", "validation_feeds")
"""The public names that import it."""


def is_installed(package: str) -> bool:
    """Say whether a package can be imported, without importing it."""
    return bool(sys.modules.get(package) or util.find_spec(package))


def shown(names: Iterable[str]) -> list[str]:
    """Return the names that help() can touch: some of them import torch."""
    return [name for name in names if name not in NEED_TORCH or is_installed("torch")]


def require_installed(command: str, extra: str, *packages: str) -> None:
    """Exit with code 1 and a line on stderr unless all packages are installed.

    To be called before they are imported.  extra: what they come with.
    """
    for package in packages:
        if not is_installed(package):
            raise SystemExit(f"error: {command}: {missing(package, extra)}")


def missing(package: str | ImportError, extra: str) -> str:
    """Return what to say of a package that is not installed, or cannot be imported."""
    problem = f"{package} is missing"
    if isinstance(package, ModuleNotFoundError):
        problem = f"{package.name} is missing"
    elif isinstance(package, ImportError):
        problem = str(package)
    return f"{problem}: pip install 'tokenfeed[{extra}]' (in a clone, '.[{extra}]')"
