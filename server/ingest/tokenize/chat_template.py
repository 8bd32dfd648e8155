"""Chat templates: a Jinja file, a tokenizer_config.json or a folder with one of them, as
transformers renders them.

A template is a program of another author. So it runs in Jinja's sandbox, for a limited time, and
has no clock: a corpus must not depend on the day on which it is made.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tokenfeed.commands.extras import missing
from tokenfeed.errors import InvalidRequest

from ..units import InvalidDocument

OPTION = "--chat-template"
RENDER_SECONDS = 10.0
"""Of processor time for one chat: the templates of current models need about a millisecond."""
_SPECIAL_TOKENS = frozenset(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
"""Undefined, they would be missing from the text. Other names are often absent on purpose."""
_PROMPT = "add_generation_prompt"
CONFIG = "tokenizer_config.json"
_RESERVED = frozenset(["messages", "tools", "documents", _PROMPT])
"""Variables of templates that have their own meaning."""
_TOKEN = re.compile("<[|\uff5c][^|\uff5c<>\\s]{1,40}[|\uff5c]>|</?\\w+_of_\\w+>")
"""What looks like a special token in the text of a template."""
_TEXT_CHARS_MAX = 64 << 20
_CHARS_SHOWN = 160

Message = dict[str, Any]
Span = tuple[int, int]
"""Where characters begin and end."""


@dataclass(frozen=True, slots=True)
class ChatTemplateFile:
    """A template before it is compiled, to be sent to workers.

    name: path of its file.  text: in Jinja.  special_tokens: name and text of each, by name; None
    for one that the tokenizer has not.  variables: name and JSON of each other variable, by name.
    """

    name: str
    text: str
    special_tokens: tuple[tuple[str, str | None], ...]
    variables: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(
        cls,
        path: str,
        special_tokens: Sequence[str],
        variables: Sequence[str] = (),
        *,
        has_tools: bool = False,
    ) -> ChatTemplateFile:
        """Read a file, or the one that a folder has.

        special_tokens: NAME=TEXT of each that is given or overridden.  variables: NAME=JSON of what
        the template gets besides.  has_tools: whether chats have tools, for which a file may have
        another template.  Raises: InvalidRequest.
        """
        known: dict[str, str | None] = {}
        if os.path.isdir(path):
            jinja, config = (os.path.join(path, name) for name in ("chat_template.jinja", CONFIG))
            if not os.path.exists(jinja) and not os.path.exists(config):
                problem = f"{path} has neither chat_template.jinja nor {CONFIG}"
                raise InvalidRequest(OPTION, problem)
            text = _read(jinja) if os.path.exists(jinja) else None
            path = config if text is None else jinja
            if text is None or os.path.exists(config):
                text, known = _of_config(config, text, has_tools=has_tools)
        elif path.lower().endswith(".json"):
            text, known = _of_config(path, has_tools=has_tools)
        else:
            text = _read(path)
        for word in special_tokens:
            name, sign, token = word.partition("=")
            if not sign or not name.isidentifier() or not name.endswith("_token"):
                problem = f"{word!r} is not NAME=TEXT with a name such as bos_token"
                raise InvalidRequest("--special-token", problem)
            known[name] = token
        given: dict[str, str] = {}
        for word in variables:
            name, sign, value = word.partition("=")
            if not sign or not name.isidentifier() or name in _RESERVED:
                problem = f"{word!r} is not NAME=JSON, such as enable_thinking=false"
                raise InvalidRequest("--template-variable", problem)
            try:
                given[name] = json.dumps(json.loads(value))
            except (ValueError, RecursionError) as error:
                problem = f"{word!r} has no value in JSON; put text in double quotes"
                raise InvalidRequest("--template-variable", problem) from error
        return cls(path, text, tuple(sorted(known.items())), tuple(sorted(given.items())))

    @property
    def sha256(self) -> str:
        """Hash of the template, its special tokens and variables, in hexadecimal digits."""
        content = json.dumps([self.text, self.special_tokens, self.variables])
        return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "is not UTF-8"
        raise InvalidRequest(OPTION, f"{path}: {problem}") from error


def _of_config(
    path: str, text: str | None = None, *, has_tools: bool
) -> tuple[str, dict[str, str | None]]:
    """Return the template of a tokenizer_config.json, and its special tokens.

    text: the template that is taken instead, of a file beside it.  has_tools: as of `read`.
    """
    try:
        config = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(OPTION, f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        config = {}
    found = config.get("chat_template") if text is None else text
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
        if "tool_use" in named and has_tools:
            cure = "write the one that you want to a file of Jinja, and pass that"
            raise InvalidRequest(
                OPTION, f"{path} has another template for chats with tools; {cure}"
            )
    if not isinstance(found, str):
        cure = "pass a tokenizer_config.json that has one, or a file of Jinja"
        raise InvalidRequest(OPTION, f"{path} has no chat_template of its own; {cure}")
    special = {}
    for name, value in config.items():
        token = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and (token is None or isinstance(token, str)):
            special[name] = token
    return found, special


@functools.lru_cache(maxsize=2)
def load_chat_template(file: ChatTemplateFile) -> ChatTemplate:
    """Compile a template; cached in each process.  Raises: InvalidRequest."""
    return ChatTemplate(file)


class ChatTemplate:
    """A compiled template.

    marks_targets: whether it has {% generation %} blocks, which say what the assistant wrote.
    uses_tools: whether it asks for the tools of a chat.
    token_texts: what it writes that looks like a special token.
    """

    def __init__(self, file: ChatTemplateFile) -> None:
        """Compile it.  Raises: InvalidRequest."""
        try:
            from . import jinja_sandbox
        except ImportError as error:
            raise InvalidRequest(OPTION, missing(error, "chat")) from error
        self._name = file.name
        with _compile_errors(file.name):
            sandbox = jinja_sandbox.Sandbox()
            tree = sandbox.parse(file.text)
            undeclared = jinja_sandbox.undeclared(tree)
            self._template = sandbox.from_string(file.text)
        self._special_tokens = dict(file.special_tokens)
        self._variables = {name: json.loads(value) for name, value in file.variables}
        if unknown := sorted((undeclared & _SPECIAL_TOKENS) - self._special_tokens.keys()):
            cure = f"pass --special-token {unknown[0]}=TEXT, or a tokenizer_config.json that has it"
            raise InvalidRequest(OPTION, f"{file.name} uses {unknown[0]}, which is unknown; {cure}")
        self.marks_targets, misplaced = jinja_sandbox.targets_in(tree)
        if misplaced is not None:
            problem = "this {% generation %} block is inside of a macro, a recursive loop, or a "
            problem += "call, filter, set, block or generation block, where its place in the text "
            problem += "is unknown; move it out"
            raise InvalidRequest(OPTION, f"{file.name}, line {misplaced}: {problem}")
        self._names_prompt = _PROMPT in undeclared
        self.uses_tools = "tools" in undeclared
        used = (self._special_tokens.get(name) for name in undeclared & _SPECIAL_TOKENS)
        self.token_texts = sorted({*_TOKEN.findall(file.text), *filter(None, used)})

    @property
    def ignores_prompt(self) -> bool:
        """Whether a generation prompt changes nothing, as far as a message of a user shows."""
        if not self._names_prompt:
            return True
        chat = [{"role": "user", "content": "a"}]
        try:
            plain, asking = (self.render(chat, None, adds_prompt=adds) for adds in (False, True))
        except InvalidDocument:  # of this chat, which is none of those that are ingested
            return False
        return plain == asking

    def render(
        self, messages: Sequence[Message], tools: Any, *, adds_prompt: bool = False
    ) -> tuple[str, list[Span]]:
        """Return the text of messages, and where its {% generation %} blocks are.

        adds_prompt: whether the text ends where the assistant would begin to write.
        Raises: InvalidDocument.
        """
        from .jinja_sandbox import Targets

        variables = {
            **{name: token for name, token in self._special_tokens.items() if token is not None},
            **self._variables,
            "messages": messages,
            "tools": tools,
            "documents": None,
            _PROMPT: adds_prompt,
        }
        pieces: list[str] = []
        try:
            with _time_limit(), Targets.noted(pieces) as targets:
                for piece in self._template.generate(variables):
                    pieces.append(piece)
                    if targets.size_chars > _TEXT_CHARS_MAX:
                        raise InvalidDocument(f"chat above {_TEXT_CHARS_MAX:,} characters")
        except InvalidDocument:
            raise
        except (Exception, _OutOfTime) as error:  # whatever a program of another author raises
            raise self._problem(error) from error
        return "".join(pieces), [(first, first + len(block)) for first, block in targets.blocks]

    def _problem(self, error: BaseException) -> InvalidDocument:
        """Return what to raise for an error of the template, fatal if others would end like it."""
        from jinja2.exceptions import SecurityError

        from .jinja_sandbox import Refused

        line = _one_line(error)
        if isinstance(error, Refused):
            return InvalidDocument(f"refused by the chat template: {line}")
        problem = ""
        if isinstance(error, MemoryError):
            problem = f"the chat template {self._name} needs more memory than there is"
        elif isinstance(error, _OutOfTime):
            problem = f"the chat template runs for more than {RENDER_SECONDS:g} s"
        elif isinstance(error, SecurityError):
            problem = f"the chat template does what Jinja's sandbox forbids: {line}"
        elif "strftime_now" in line:
            problem = "the chat template asks for the date by strftime_now, and a corpus must not "
            problem += "depend on the day; write a date into the template"
        fails = f"the chat template fails: {line}"
        return InvalidDocument(problem or fails, is_fatal=bool(problem))


class _OutOfTime(BaseException):
    """Not an Exception: Jinja takes one in a constant to mean that it is none."""


@contextmanager
def _compile_errors(name: str) -> Iterator[None]:
    """Raise InvalidRequest for whatever the compiler raises, also after RENDER_SECONDS."""
    from jinja2 import TemplateSyntaxError

    try:
        with _time_limit():
            yield
    except TemplateSyntaxError as error:
        problem = f"{name}, line {error.lineno}: {_one_line(error)}"
        raise InvalidRequest(OPTION, problem) from error
    except (RecursionError, SyntaxError) as error:  # the latter by Python
        raise InvalidRequest(OPTION, f"{name} is nested too deeply") from error
    except _OutOfTime as error:
        problem = f"{name} takes more than {RENDER_SECONDS:g} s to compile"
        raise InvalidRequest(OPTION, problem) from error
    except Exception as error:  # of Python, where it computes a constant
        raise InvalidRequest(OPTION, f"{name} cannot be compiled: {_one_line(error)}") from error


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise _OutOfTime after RENDER_SECONDS of processor time. Only the main thread, as which
    workers encode, can be interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _OutOfTime

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, RENDER_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _CHARS_SHOWN else f"{text[:_CHARS_SHOWN]}..."
