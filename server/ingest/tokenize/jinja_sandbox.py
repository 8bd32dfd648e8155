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
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.meta import TrackingCodeGenerator
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class Refused(TemplateError):
    """The template itself refuses a chat, by raise_exception."""


class _Unfolded(CodeGenerator):
    """Leaves constant expressions to the rendering, which is limited in time."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData | nodes.Const):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class _Tracking(_Unfolded, TrackingCodeGenerator):
    """As jinja2.meta finds variables, but leaves constant expressions alone too."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Where templates are compiled, with the settings of transformers."""

    code_generator_class = _Unfolded

    def __init__(self) -> None:
        """Add the functions and statements that templates know."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[Targets, "jinja2.ext.loopcontrols"],
            optimized=False,  # as in _Unfolded
        )
        self.filters |= {"tojson": _to_json, "random": _forbidden("random")}
        self.globals |= {
            "raise_exception": _refuse,
            "lipsum": _forbidden("lipsum"),
            # The class itself would have more attributes than a template needs.
            "dict": lambda *pairs, **values: dict(*pairs, **values),
            "namespace": _PublicNamespace,
        }


@dataclass(slots=True)
class RenderedText:
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
    _noted: ClassVar[RenderedText | None] = None

    @classmethod
    @contextmanager
    def noted(cls, pieces: list[str]) -> Iterator[RenderedText]:
        """Note the blocks of one rendering.  pieces: its text, which the caller extends."""
        cls._noted = noted = RenderedText(pieces)
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


def undeclared(tree: nodes.Template) -> set[str]:
    """Return the variables that a template gets from outside."""
    assert tree.environment is not None
    tracking = _Tracking(tree.environment)
    tracking.optimizer = None
    tracking.visit(tree)
    return tracking.undeclared_identifiers


_BUFFERED = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.Block)


def targets_in(tree: nodes.Template) -> tuple[bool, int | None]:
    """Return whether a template has {% generation %} blocks; and the line of one whose place in the
    text is unknown, since the text around it is collected before it is written; None if there is
    no such block.
    """
    found = False
    open_nodes: list[tuple[nodes.Node, bool]] = [(tree, False)]
    while open_nodes:
        node, is_buffered = open_nodes.pop()
        if isinstance(node, nodes.CallBlock) and _is_target(node):
            if is_buffered:
                return True, node.lineno
            found = True
        is_buffered |= isinstance(node, _BUFFERED)
        is_buffered |= isinstance(node, nodes.For) and node.recursive
        open_nodes += [(child, is_buffered) for child in node.iter_child_nodes()]
    return found, None


def _is_target(node: nodes.CallBlock) -> bool:
    called = node.call.node
    return isinstance(called, nodes.ExtensionAttribute) and called.identifier == Targets.identifier


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


def _forbidden(name: str) -> Callable[..., NoReturn]:
    """Return what stands for something random."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise SecurityError(f"{name}, since the same chats must become the same tokens each time")

    return refuse


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
