"""Chat templates as their authors published them, chats for them, and what transformers makes of
these: templates/README.md says where they are from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.server.ingest.chats import SPECIAL

FOLDER = Path(__file__).parent / "templates"
GOLDEN = FOLDER / "golden.json"
SHAPES_GOLDEN = FOLDER / "shapes.json"
EOS = "<|im_end|>"
BOS = {"llama3": "<|begin_of_text|>", "gemma": "<bos>"}
_SPECIAL = (*SPECIAL, "<think>", "</think>", "<tool_call>", "</tool_call>")
_MERGES = ("h e", "t he", "Ġ the", "i n", "o u", "f ou", "Ċ Ċ", "ĊĊ Ċ", "æ Ŀ", "Ã Ł")

Row = dict[str, Any]

TURNS: list[Row] = [
    {"role": "user", "content": "2 + 2? "},
    {"role": "assistant", "content": "four"},
    {"role": "user", "content": "in 東京?"},
    {"role": "assistant", "content": "the same, Straße\n\n"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "content": " it's four 東京🙂"},
]
REASONED: list[Row] = [
    TURNS[0],
    {"role": "assistant", "reasoning_content": "2 and 2", "content": "four"},
    TURNS[4],
    {"role": "assistant", "reasoning_content": "again\n", "content": "yes"},
]
ONE_TURN = [REASONED[2], REASONED[3]]
SYSTEM: Row = {"role": "system", "content": "be kind"}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "naïve <sum>"}}]
CALLS: list[Row] = [
    SYSTEM,
    TURNS[0],
    {
        "role": "assistant",
        "tool_calls": [
            {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": "é"}}}
        ],
    },
    {"role": "tool", "content": "4"},
    TURNS[1],
]
CHATS: dict[str, Row] = {
    "turns": {"messages": TURNS},
    "system": {"messages": [SYSTEM, *TURNS]},
    "reasoned": {"messages": REASONED},
    "one turn": {"messages": ONE_TURN},
    "calls": {"messages": CALLS, "tools": TOOLS},
}
COMPARED = {
    "qwen2_5": ("turns", "system", "calls"),
    "qwen2_5_training": ("turns", "system", "calls"),
    "llama3": ("turns", "system"),
    "llama3_training": ("turns", "system"),
    "gemma": ("turns",),
    "gemma_training": ("turns",),
    "qwen3": ("one turn",),
    "qwen3_training": ("turns", "reasoned", "one turn", "calls"),
}
"""The chats of each template that are compared with transformers; others are refused."""

_QUESTION: Row = {"role": "user", "content": "2 + 2?"}
_ANSWER: Row = {"role": "assistant", "content": "four"}
_RESULT: Row = {"role": "tool", "content": "4", "tool_call_id": "call_0001", "name": "add"}
_FUNCTION: Row = {
    "name": "add",
    "description": "naïve <sum>",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
}


def _call(**fields: Any) -> Row:
    function = {"name": "add", "arguments": {"a": 2}}
    calls = [{"type": "function", "id": "call_0001", "function": function}]
    return {"role": "assistant", "tool_calls": calls, **fields}


def _parts(*texts: str) -> list[Row]:
    return [{"type": "text", "text": text} for text in texts]


def _asked(**fields: Any) -> Row:
    """A tool is asked, and the fields are those of the message that asks it."""
    tools = [{"type": "function", "function": _FUNCTION}]
    return {"messages": [_QUESTION, _call(**fields), _RESULT, _ANSWER], "tools": tools}


SHAPES: dict[str, Row] = {
    "null content": _asked(content=None),
    "tools": {**_asked(), "messages": [SYSTEM, _QUESTION, _ANSWER]},
    "tool results": _asked(content="let me see"),
    "reasoning": {"messages": [_QUESTION, {**_ANSWER, "reasoning_content": "2 and 2"}]},
    "thinking": {"messages": [_QUESTION, {**_ANSWER, "thinking": "2 and 2"}]},
    "reasoning and a call": _asked(content=None, reasoning_content="2 and 2"),
    "system only": {"messages": [SYSTEM, _ANSWER]},
    "parts": {
        "messages": [
            {"role": "user", "content": _parts("2 + ", "2?")},
            {"role": "assistant", "content": _parts("four")},
        ]
    },
    **{
        f"null {field}": {"messages": [_QUESTION | {field: None}, _ANSWER | {field: None}]}
        for field in ("name", "tool_calls", "tool_call_id", "reasoning_content", "thinking")
    },
    "null tools": {"messages": [_QUESTION, _ANSWER], "tools": None},
    "null content of a user": {"messages": [{"role": "user", "content": None}, _ANSWER]},
}
"""Chats as they lie in files, each for every template."""


def names() -> list[str]:
    """Return all templates."""
    return sorted(path.stem for path in FOLDER.glob("*.jinja"))


def template(name: str) -> str:
    """Return the text of one."""
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def has_blocks(name: str) -> bool:
    """Return whether a template says what the assistant writes."""
    return name.endswith("_training")


def bos_token(name: str) -> str:
    """Return what a template calls bos_token, "" if it does not."""
    return BOS.get(name.partition("_")[0], "")


def make_tokenizer(path: Path) -> Path:
    """Write a tokenizer of bytes, a few merges, and the tokens around turns. It is not trained, so
    that each version of the package makes the same one.
    """
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [(first, second) for first, _, second in (one.partition(" ") for one in _MERGES)]
    pieces += [first + second for first, second in merges]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in _SPECIAL])
    tokenizer.save(str(path))
    return path


def sha256(tokens: Sequence[int]) -> str:
    """Return what stands for tokens in the golden file of shapes."""
    return hashlib.sha256(" ".join(map(str, tokens)).encode()).hexdigest()[:16]


def golden_shapes() -> dict[str, dict[str, list[str]]]:
    """Return the hashes of the tokens of transformers: template, shape -> one for each way in which
    its versions treat null, none where they fail.
    """
    found: dict[str, dict[str, list[str]]] = json.loads(SHAPES_GOLDEN.read_text(encoding="utf-8"))
    return found


def golden() -> dict[str, dict[str, dict[str, str]]]:
    """Return what transformers makes: template, chat -> `ids` and, with blocks, `mask`, in words
    and digits.
    """
    found: dict[str, dict[str, dict[str, str]]] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found
