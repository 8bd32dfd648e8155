"""A chat -> its text, and which of its characters and tokens are training targets.

Targets are what the assistant writes, with the tokens that end its turn. A template with
{% generation %} blocks says where that is. For other templates it is found out by rendering the
chat up to each turn of the assistant, without and with that turn: what is added is the target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from ..units import InvalidDocument
from .chat_template import ChatTemplate, Message, Span

_ASSISTANT = "assistant"
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the same field, of which templates read one; as in transformers."""
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""Who speaks in ShareGPT's chats -> the role that templates know."""
_WEIGHTS = {"weight": "0 or 1", "train": "true or false", "training": "true or false"}
"""Fields that say whether a turn of the assistant is a target, as in OpenAI's format and axolotl's:
what each takes."""
_CHARS_SHOWN = 40
_CURE = (
    "so it does not tell which text is the assistant's; put that text between {% generation %} "
    "and {% endgeneration %} in the template"
)

_PLACEHOLDER = "tokenfeed-part-"
"""What no text has, in place of a part of a message."""

Render = Callable[..., tuple[str, list[Span]]]
"""`ChatTemplate.render`, with the tools of a chat."""


def messages_of(value: Any, column: str) -> list[Message]:
    """Return the messages of a chat as templates take them, checked. ShareGPT's `from` and `value`
    become `role` and `content`.

    value: a list of objects.  column: its name, for errors.  Raises: InvalidDocument.
    """
    if not isinstance(value, list):
        raise InvalidDocument(f"column {column!r} is not a list of messages")
    if not value:
        raise InvalidDocument(f"no messages in column {column!r}")
    return [_message(message, f"{column}[{index}]") for index, message in enumerate(value)]


def _message(value: Any, place: str) -> Message:
    if not isinstance(value, dict):
        raise InvalidDocument("message that is not an object", place)
    message = value
    if value.get("role") is None and "from" in value and "value" in value:
        if not isinstance(value["from"], str) or value["from"] not in _ROLES:
            raise InvalidDocument(f"message from {value['from']!r}, which is no role", place)
        renamed = {"role": _ROLES[value["from"]], "content": value["value"]}
        others = {name: field for name, field in value.items() if name not in ("from", "value")}
        message = others | renamed
    if not isinstance(message.get("role"), str):
        raise InvalidDocument("message without a role", place)
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise InvalidDocument("message without content", place)
    if isinstance(content, list):
        for part in content:
            is_text = isinstance(part, dict) and isinstance(part.get("text"), str)
            if not is_text or part.get("type", "text") != "text":
                raise InvalidDocument("part of the content that is not text", place)
    elif content is not None and not isinstance(content, str):
        raise InvalidDocument("content that is neither text nor a list of parts", place)
    if message["role"] == _ASSISTANT:
        for name, taken in _WEIGHTS.items():
            if message.get(name) is not None and message[name] not in (0, 1):
                raise InvalidDocument(f"{name} that is not {taken}", f"{place}.{name}")
    reasoning = (message[name] for name in _REASONING if message.get(name) is not None)
    if (found := next(reasoning, None)) is not None:
        thinking = message.get("thinking")
        own = found if thinking is None else thinking
        return message | {"thinking": own, "reasoning_content": found}
    return message


def tools_of(value: Any, column: str) -> list[Any] | None:
    """Return the tools of a chat, None for none.  Raises: InvalidDocument."""
    if value is not None and not (
        isinstance(value, list) and all(isinstance(tool, dict) for tool in value)
    ):
        raise InvalidDocument(f"column {column!r} is not a list of objects")
    return value


def canonical(messages: Sequence[Message]) -> str:
    """Return messages as JSON, the same in each kind of file, so without what is null; what decides
    on their split.

    Raises: InvalidDocument.
    """
    try:
        present = _without_nulls(messages)
        return json.dumps(present, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise InvalidDocument("messages that are nested too deeply") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(held) for name, held in value.items() if held is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def rendered(
    messages: Sequence[Message], tools: list[Any] | None, template: ChatTemplate, column: str
) -> tuple[str, tuple[Span, ...]]:
    """Return the text of a chat, and which of its characters are targets.

    column: of the messages, for errors.  Raises: InvalidDocument.
    """
    render = partial(template.render, tools=tools)
    messages, (text, blocks) = _with_or_without_nulls(messages, render)
    for index, message in enumerate(messages):
        place = f"{column}[{index}]"
        if isinstance(message.get("content"), list) and message["content"]:
            _require_parts_written(messages, index, render, text, place)
        if message.get("tool_calls") and not message.get("content"):
            _require_calls_written(messages, index, render, text, place)
    if template.marks_targets:
        return text, tuple(_without_excluded(messages, render, column, text, blocks))
    return text, tuple(_turns(messages, render, column, text))


def _with_or_without_nulls(
    messages: Sequence[Message], render: Render
) -> tuple[Sequence[Message], tuple[str, list[Span]]]:
    """Return the messages that a template is for, and what it makes of them: as they are, as in
    transformers up to 5.23, or without fields that are null, as since then. Some templates ask
    whether content is none, others write None, or fail.
    """
    bare = [{name: held for name, held in one.items() if held is not None} for one in messages]
    if bare == messages:
        return messages, render(messages)
    try:
        found = render(messages)
    except InvalidDocument as error:
        try:
            return bare, render(bare)
        except InvalidDocument:
            raise error from None
    with suppress(InvalidDocument):
        other = render(bare)
        if found[0].count("None") > other[0].count("None"):
            return bare, other
    return messages, found


def _with_other(
    messages: Sequence[Message], index: int, message: Message, render: Render
) -> str | None:
    """Return the text of a chat with another message in a place; None if the template refuses."""
    with suppress(InvalidDocument):
        return render([*messages[:index], message, *messages[index + 1 :]])[0]
    return None


def _require_parts_written(
    messages: Sequence[Message], index: int, render: Render, text: str, place: str
) -> None:
    """Raise InvalidDocument, which is fatal, if a template has left out a part of the content of a
    message, or has written what Python prints for their list: with other words in the parts, these
    are missing.
    """
    content = messages[index]["content"]
    parts = [
        part | {"text": f"{_PLACEHOLDER}{number}."}
        for number, part in enumerate(content)
        if part["text"].strip()
    ]
    found = _with_other(messages, index, messages[index] | {"content": parts}, render) or ""
    if str(content) in text or not all(part["text"] in found for part in parts):
        problem = "content in parts, which the chat template does not read; join their text"
        raise InvalidDocument(problem, place, is_fatal=True)


def _require_calls_written(
    messages: Sequence[Message], index: int, render: Render, text: str, place: str
) -> None:
    """Raise InvalidDocument if the text would be the same without the calls of a message that has
    nothing else: the template does not write them.
    """
    without = {name: held for name, held in messages[index].items() if name != "tool_calls"}
    # Where the template refuses, it asks for them.
    if _with_other(messages, index, without, render) == text:
        raise InvalidDocument("calls of tools, which the chat template does not write", place)


def _is_excluded(message: Message) -> bool:
    """Return whether a turn of the assistant is no target."""
    return message["role"] == _ASSISTANT and any(message.get(name) == 0 for name in _WEIGHTS)


def _without_excluded(
    messages: Sequence[Message], render: Render, column: str, text: str, blocks: Sequence[Span]
) -> Iterable[Span]:
    """Return the blocks of a text that are targets. If a turn is none, each turn has to have one
    block, and of that turn no other block may change with its words.
    """
    turns = [index for index, message in enumerate(messages) if message["role"] == _ASSISTANT]
    excluded = {number for number, index in enumerate(turns) if _is_excluded(messages[index])}
    for number in excluded:
        index = turns[number]
        other = {"role": _ASSISTANT, "content": f"{_PLACEHOLDER}0."}
        found, spans = "", list[Span]()
        with suppress(InvalidDocument):
            found, spans = render([*messages[:index], other, *messages[index + 1 :]])
        changed = [
            block
            for block, (own, new) in enumerate(zip(blocks, spans, strict=False))
            if text[slice(*own)] != found[slice(*new)]
        ]
        if not len(turns) == len(blocks) == len(spans) or changed != [number]:
            problem = "the chat template does not write this turn, which is no target, in one "
            problem += "{% generation %} block of its own; write one around each turn"
            raise InvalidDocument(problem, f"{column}[{index}]", is_fatal=True)
    return (block for number, block in enumerate(blocks) if number not in excluded)


def _turns(messages: Sequence[Message], render: Render, column: str, text: str) -> Iterable[Span]:
    """Yield where each turn of the assistant is.

    The text before the turn has to begin the text that ends with it, and that the whole text:
    otherwise the turn is somewhere else in the whole, or not as the model would write it.
    """
    for index, message in enumerate(messages):
        if message["role"] != _ASSISTANT or _is_excluded(message):
            continue
        place = f"{column}[{index}]"
        count = index
        after = text
        try:
            before, _ = render(messages[:index], adds_prompt=True)
            count += 1
            if count < len(messages):
                after, _ = render(messages[:count])
        except InvalidDocument as error:
            what = f"{error.what} (for the first {count} message(s) alone)"
            raise InvalidDocument(what, place, is_fatal=error.is_fatal) from error
        _require_begins(
            after, before, place, "asks the assistant with {}, but its turn begins with {}"
        )
        _require_begins(
            text, after, place, "writes {} up to this message, but {} once others follow"
        )
        yield len(before), len(after)


def _require_begins(text: str, part: str, place: str, how: str) -> None:
    """Raise InvalidDocument, which is fatal, unless text begins with a part."""
    if text.startswith(part):
        return
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(part, text, strict=False)))
    shown = (repr(one[same : same + _CHARS_SHOWN]) for one in (part, text))
    problem = f"the chat template {how.format(*shown)}, {_CURE}"
    raise InvalidDocument(problem, place, is_fatal=True)


def target_mask(offsets: npt.NDArray[np.int64], spans: Iterable[Span]) -> npt.NDArray[np.bool_]:
    """Return which tokens are targets.

    offsets: int64[n, 2], the characters of each token.  spans: those that are targets: a token that
    has one of them is a target, as in transformers since 5.24.
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
        mask[first_token:end_token] = True
    return mask
