"""Which module imports which: python -m tests.support.import_graph FOLDER draws it.

Reads the source and executes none of it. A box is a module or a package directly in a folder.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("tokenfeed", "server", "client")


@dataclass(frozen=True)
class Import:
    """name: a module of ours, or the name in the statement.  line: of the statement.  is_eager:
    whether it runs when the importing module is imported.
    """

    name: str
    line: int
    is_eager: bool


def module_name(path: Path) -> str:
    """The name under which a file is imported: server.rpc.service."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Every module of ours by name, without generated code; links are not followed."""
    return {
        module_name(path): path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "_pb2" not in path.name
    }


@cache
def imports(name: str) -> list[Import]:
    """All imports of a module, anywhere in its source."""
    path = modules()[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = []
    for node, is_eager in _statements(ast.parse(path.read_text()), True):
        if isinstance(node, ast.Import):
            found += [Import(_ours(alias.name), node.lineno, is_eager) for alias in node.names]
        else:
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                parts = parts[: len(parts) - node.level + 1]
                base = ".".join([*parts, base] if base else parts)
            base = _ours(base)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.append(Import(full if full in modules() else base, node.lineno, is_eager))
    return found


def _statements(
    node: ast.AST, is_eager: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, is_eager
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            yield from _statements(child, False)
        else:
            in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _statements(child, is_eager and not in_function)


def _ours(name: str) -> str:
    short = name.removeprefix("tokenfeed.")
    return short if short.partition(".")[0] in ("server", "client") else name


@cache
def reached(name: str) -> frozenset[str]:
    """Everything that importing a module imports: modules of ours, and names of other packages."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        if module in modules():
            waiting += [one.name for one in imports(module) if one.is_eager]
            # Importing a module imports the packages around it.
            waiting += [module.rpartition(".")[0]] if "." in module else []
    return frozenset(found - {name})


def box_of(name: str, folder: str) -> str | None:
    """The box of a folder ("server", "server.storage") that contains a module, or None."""
    if name == folder:
        return "__init__"
    if not name.startswith(f"{folder}."):
        return None
    return name.removeprefix(f"{folder}.").partition(".")[0]


def arrows(folder: str) -> dict[str, set[str]]:
    """Box of a folder -> the other boxes that it imports, including lazy imports."""
    found: dict[str, set[str]] = {}
    for module in modules():
        box = box_of(module, folder)
        if box is None:
            continue
        targets = {box_of(one.name, folder) for one in imports(module)} - {None, box}
        found.setdefault(box, set()).update(target for target in targets if target is not None)
    return found


def drawing(folder: str) -> str:
    """The boxes of a folder and their arrows, as text that graphviz draws."""
    lines = [f'digraph "{folder}" {{', "  node [shape=box, fontname=sans];"]
    for box, targets in sorted(arrows(folder).items()):
        lines += [f'  "{box}";', *(f'  "{box}" -> "{target}";' for target in sorted(targets))]
    return "\n".join([*lines, "}"])


if __name__ == "__main__":
    print(drawing(sys.argv[1]))
