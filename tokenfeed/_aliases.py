"""Lets `client` and `server` be other names of the packages tokenfeed.client and tokenfeed.server.

Every module has one name, tokenfeed.client.x, and one module object. `import client.x` gives that
object too: two of them would be two RemoteBatches, and an exception of the one would not be caught
by the other one's name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module, util
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType


class _Aliases(MetaPathFinder, InspectLoader):
    """Finds modules of packages under their short names, and loads what has the long name."""

    def __init__(self) -> None:
        """Know of no package."""
        self.packages: set[str] = set()
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec of what has the long name; None if there is none, or it is not ours."""
        package, _, within = fullname.partition(".")
        if package not in self.packages or not within:
            return None
        real = util.find_spec(_long(fullname))
        if real is None:
            return None
        is_package = real.submodule_search_locations is not None
        return ModuleSpec(fullname, self, origin=real.origin, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that has the long name."""
        module = import_module(_long(spec.name))
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Take back the spec that the import has just given it; it has run already."""
        spec = module.__spec__
        assert spec is not None
        module.__spec__ = self._specs.pop(spec.name)

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of a module, for `python -m`."""
        spec = util.find_spec(_long(fullname))
        loader = spec.loader if spec else None
        return loader.get_code(_long(fullname)) if isinstance(loader, InspectLoader) else None

    def get_source(self, fullname: str) -> str | None:
        """Return the source of a module, for tracebacks."""
        spec = util.find_spec(_long(fullname))
        loader = spec.loader if spec else None
        return loader.get_source(_long(fullname)) if isinstance(loader, InspectLoader) else None


_ALIASES = _Aliases()


def alias(package: str) -> None:
    """Make a package that is being imported another name of tokenfeed's package of that name.

    To be called by the package itself, so that a foreign one of the same name stays what it is.
    """
    sys.modules[package] = import_module(_long(package))
    _ALIASES.packages.add(package)
    if _ALIASES not in sys.meta_path:
        sys.meta_path.insert(0, _ALIASES)


def _long(name: str) -> str:
    return f"tokenfeed.{name}"
