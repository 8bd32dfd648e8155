"""Lets `client` and `server` be other names of the packages tokenfeed.client and tokenfeed.server.

Every module has one name, tokenfeed.client.x, and one module object. `import client.x` gives that
object too: two of them would be two RemoteBatches, and an exception of the one would not be caught
by the other one's name.

A package that is an alias consists of this:

    import sys

    _package = sys.modules.pop(__name__)
    from tokenfeed._aliases import alias

    alias(_package)

It takes itself out of sys.modules first: other threads that import it wait until the alias is made.
Other threads can see it for the 40 microseconds in which Python reads these lines. A thread that
imports it then gets a module that forwards to ours; one that imports `client.x` may get an
ImportError or a KeyError, and in a checkout, rarely, a second copy. The long names are always safe.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module, util
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


class _Forwarding(ModuleType):
    """A replaced package, for code that still holds it: it has the attributes of the new one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules[_long(self.__name__)], name)


class _Aliases(MetaPathFinder, InspectLoader):
    """Finds modules of packages under their short names, and loads what has the long name."""

    def __init__(self) -> None:
        """Know of no package."""
        self._packages: dict[str, ModuleType] = {}
        self._specs: dict[str, ModuleSpec | None] = {}

    def add(self, package: str, module: ModuleType) -> None:
        """Find the modules of a package, for as long as its short name means this module."""
        self._packages[package] = module
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec of what has the long name; None if there is none, or it is not ours."""
        package, _, within = fullname.partition(".")
        ours = self._packages.get(package)
        if not within or ours is None or sys.modules.get(package) is not ours:
            return None
        real = _long_spec(fullname)
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
        loader = _long_loader(fullname)
        return loader.get_code(_long(fullname)) if loader else None

    def get_source(self, fullname: str) -> str | None:
        """Return the source of a module, for tracebacks."""
        loader = _long_loader(fullname)
        return loader.get_source(_long(fullname)) if loader else None


_ALIASES = _Aliases()


def alias(package: ModuleType) -> None:
    """Make a package that is being imported another name of tokenfeed's package of that name.

    To be called by the package itself, so that a foreign one of the same name stays what it is.
    Raises: ImportError where tokenfeed's package is not there.
    """
    name = package.__name__
    package.__class__ = _Forwarding
    require_package(name)
    module = import_module(_long(name))
    # Once it is in sys.modules, other threads import its modules: the finder has to be there.
    _ALIASES.add(name, module)
    sys.modules[name] = module
    for other in [other for other in sys.modules if other.startswith(f"{name}.")]:
        # A thread that did not wait loads what lies beside the package in a checkout. Its import
        # ends with what is in sys.modules by then.
        if _long_spec(other) is not None:
            sys.modules[other] = import_module(_long(other))


def require_package(name: str) -> None:
    """Raise ImportError, with the reason, where tokenfeed has no package or module of this name."""
    if _long_spec(name) is not None:
        return
    link = Path(__file__).with_name(name)
    if link.is_file():
        raise ImportError(
            f"{link} has to be a symbolic link to ../{name}, and is a text file, as git (where "
            "core.symlinks is false) and Python's zipfile write it: set core.symlinks to true and "
            "check out again, or unpack with tar or unzip"
        )
    raise ImportError(f"{_long(name)} is not part of this installation")


def _long(name: str) -> str:
    return f"tokenfeed.{name}"


def _long_spec(fullname: str) -> ModuleSpec | None:
    """Return the spec of what has the long name; None if there is none."""
    name = _long(fullname)
    try:
        spec = util.find_spec(name)
    except ValueError:
        spec = None
    # A test may have put there a stub without a spec, or None, which forbids the import.
    return ModuleSpec(name, None) if spec is None and name in sys.modules else spec


def _long_loader(fullname: str) -> InspectLoader | None:
    spec = _long_spec(fullname)
    return spec.loader if spec and isinstance(spec.loader, InspectLoader) else None
