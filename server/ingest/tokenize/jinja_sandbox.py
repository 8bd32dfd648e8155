"""The Jinja of chat templates: its sandbox, and what transformers adds to the language.

Needs jinja2, so it is imported only where there are chats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class Refused(TemplateError):
    """The template itself refuses a chat, by raise_exception."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Where templates are compiled, with the settings of transformers."""

    def __init__(self) -> None:
        """Add the functions and statements that templates know."""
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[Targets, "jinja2.ext.loopcontrols"]
        )
        self.filters["tojson"] = _to_json
        self.globals |= {
            "raise_exception": _refuse,
            # The class itself would have more attributes than a template needs.
            "dict": lambda *pairs, **values: dict(*pairs, **values),
            "namespace": _PublicNamespace,
        }


@dataclass(slots=True)
class Noted:
    """The text that was rendered so far, in pieces; and of {% generation %} blocks, which are
    targets: where each begins, in characters, and its text.
    """

    pieces: list[str]
    blocks: list[tuple[int, str]] = field(default_factory=list)
    _counted: int = 0
    _chars: int = 0

    @property
    def size_chars(self) -> int:
        """Length of the pieces."""
        self._chars += sum(map(len, self.pieces[self._counted :]))
        self._counted = len(self.pieces)
        return self._chars


class Targets(Extension):
    """The statement {% generation %} ... {% endgeneration %}: what the assistant wrote."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]
    _noted: ClassVar[Noted | None] = None

    @classmethod
    @contextmanager
    def noted(cls, pieces: list[str]) -> Iterator[Noted]:
        """Note the blocks of one rendering.  pieces: its text, which the caller extends."""
        cls._noted = noted = Noted(pieces)
        try:
            yield noted
        finally:
            cls._noted = None

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse a block up to its end."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: Callable[[], str]) -> str:
        text = caller()
        if self._noted is not None:
            self._noted.blocks.append((self._noted.size_chars, text))
        return text


class _PublicNamespace(Namespace):
    """Has no names of Python's own objects, which lead out of the sandbox."""

    def __init__(*arguments: Any, **values: Any) -> None:
        # As in Jinja, so that a name may be `self`.
        self, *pairs = arguments
        Namespace.__init__(self, *pairs, **values)
        for name in dict(*pairs, **values):
            _require_public(name)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_public(name)
        super().__setitem__(name, value)


def _require_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have {name!r}")


def _refuse(message: object) -> NoReturn:
    raise Refused(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as transformers writes it; Jinja's own filter escapes it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
