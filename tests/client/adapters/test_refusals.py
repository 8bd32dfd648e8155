"""What an error tells users to write instead is there; no framework has to be installed here."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

from tokenfeed.client.device import loaders


def test_an_adapter_that_a_refusal_names_exists() -> None:
    """The cure is typed as it stands."""
    text = " ".join(
        node.value
        for node in ast.walk(ast.parse(Path(loaders.__file__).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    named = re.findall(r"(\w+) of (tokenfeed\.client\.adapters\.\w+)", text)
    named += [pair[::-1] for pair in re.findall(r"(tokenfeed\.client\.adapters\.\w+)\.(\w+)", text)]

    assert {module for _, module in named} >= {"tokenfeed.client.adapters.transformers"}
    for name, module in named:
        # Found, and not imported.
        source = Path(find_spec(module).origin).read_text()
        assert f"class {name}(" in source or f"def {name}(" in source
