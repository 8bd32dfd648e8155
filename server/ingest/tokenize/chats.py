"""A chat -> its text, and which of its characters and tokens are training targets.

Targets are what the assistant writes, with the tokens that end its turn. A template with
{% generation %} blocks says where that is. For other templates it is found out by rendering the
chat up to each turn of the assistant, without and with that turn: what is added is the target.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from ..units import InvalidDocument
from .chat_template import ChatTemplate, Message, Span

_ASSISTANT = "assistant"
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the same field; templates read the first or the second."""
_CHARS_SHOWN = 40
_CURE = (
    "so it does not tell which text is the assistant's; put that text between {% generation %} "
    "and {% endgeneration %} in the template"
)


def messages_of(value: Any, column: str) -> list[Message]:
    """Return the messages of a chat as templates take them, checked.

    value: a list of objects.  column: its name, for errors.  Fields that are null are left out.
    Content in parts of text is joined.  Raises: InvalidDocument.
    """
    if not isinstance(value, list):
        raise InvalidDocument(f"column {column!r} is not a list of messages")
    if not value:
        raise InvalidDocument(f"no messages in column {column!r}")
    return [_message(message, f"{column}[{index}]") for index, message in enumerate(value)]


def _message(value: Any, place: str) -> Message:
    if not isinstance(value, dict):
        raise InvalidDocument("message that is not an object", place)
    message = {name: field for name, field in value.items() if field is not None}
    if not isinstance(message.get("role"), str):
        raise InvalidDocument("message without a role", place)
    if "content" in message:
        message["content"] = _content(message["content"], place)
    elif not message.get("tool_calls"):
        raise InvalidDocument("message without content", place)
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _content(value: Any, place: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidDocument("content that is neither text nor a list of parts", place)
    for part in value:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise InvalidDocument("part of the content that is not text", place)
        if part.get("type", "text") != "text":
            raise InvalidDocument("part of the content that is not text", place)
    return "".join(part["text"] for part in value)


def tools_of(value: Any, column: str) -> list[Any] | None:
    """Return the tools of a chat, None for none.  Raises: InvalidDocument."""
    if value is not None and not (
        isinstance(value, list) and all(isinstance(tool, dict) for tool in value)
    ):
        raise InvalidDocument(f"column {column!r} is not a list of objects")
    return value


def canonical(messages: Sequence[Message]) -> str:
    """Return messages as JSON, the same in each kind of file; what decides on their split.

    Raises: InvalidDocument.
    """
    try:
        return json.dumps(messages, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise InvalidDocument("messages that are nested too deeply") from None


def rendered(
    messages: Sequence[Message], tools: list[Any] | None, template: ChatTemplate, column: str
) -> tuple[str, tuple[Span, ...]]:
    """Return the text of a chat, and which of its characters are targets.

    column: of the messages, for errors.  Raises: InvalidDocument.
    """
    text, blocks = template.render(messages, tools)
    if template.marks_targets:
        return text, tuple(blocks)
    return text, tuple(_turns(messages, tools, template, column, text))


def _turns(
    messages: Sequence[Message],
    tools: list[Any] | None,
    template: ChatTemplate,
    column: str,
    text: str,
) -> Iterable[Span]:
    """Yield where each turn of the assistant is.

    The text before the turn has to begin the text that ends with it, and that the whole text:
    otherwise the turn is somewhere else in the whole, or not as the model would write it.
    """
    for index, message in enumerate(messages):
        if message["role"] != _ASSISTANT:
            continue
        place = f"{column}[{index}]"
        before = _rendered_part(messages[:index], tools, template, place, adds_prompt=True)
        after = text
        if index + 1 < len(messages):
            after = _rendered_part(messages[: index + 1], tools, template, place)
        _require_begins(
            after, before, place, "asks the assistant with {}, but its turn begins with {}"
        )
        _require_begins(
            text, after, place, "writes {} up to this message, but {} once others follow"
        )
        yield len(before), len(after)


def _rendered_part(
    messages: Sequence[Message],
    tools: list[Any] | None,
    template: ChatTemplate,
    place: str,
    *,
    adds_prompt: bool = False,
) -> str:
    try:
        return template.render(messages, tools, adds_prompt=adds_prompt)[0]
    except InvalidDocument as error:
        what = f"{error.what} (for the first {len(messages)} message(s) alone)"
        raise InvalidDocument(what, place, is_fatal=error.is_fatal) from error


def _require_begins(text: str, part: str, place: str, how: str) -> None:
    """Raise InvalidDocument, which is fatal, unless text begins with a part."""
    if text.startswith(part):
        return
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(part, text, strict=False)))
    shown = (repr(one[same : same + _CHARS_SHOWN]) for one in (part, text))
    problem = f"the chat template {how.format(*shown)}, {_CURE}"
    raise InvalidDocument(problem, place, is_fatal=True)


def target_mask(
    offsets: npt.NDArray[np.int64], spans: Iterable[Span], *, are_blocks: bool
) -> npt.NDArray[np.bool_]:
    """Return which tokens are targets.

    offsets: int64[n, 2], the characters of each token.  spans: those that are targets: a token that
    has one of them is a target.  are_blocks: whether they are {% generation %} blocks. Of these a
    last character of several tokens has only its first one in the mask, as in transformers.
    Returns: bool[n].
    """
    mask = np.zeros(len(offsets), dtype=np.bool_)
    # Some tokenizers give tokens without characters the place 0.
    firsts, ends = np.maximum.accumulate(offsets, axis=0).T
    for first, end in spans:
        if first == end:
            continue
        first_token = int(np.searchsorted(ends, first, side="right"))
        end_token = int(np.searchsorted(firsts, end, side="left"))
        if are_blocks:
            last = int(np.searchsorted(ends, end - 1, side="right"))
            end_token = min(end_token, last + 1)
        mask[first_token:end_token] = True
    return mask
