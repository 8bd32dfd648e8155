"""Chat templates as their authors published them, chats for them, and what transformers makes of
these: templates/README.md says where they are from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.server.ingest.chats import SPECIAL

FOLDER = Path(__file__).parent / "templates"
GOLDEN = FOLDER / "golden.json"
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


def golden() -> dict[str, dict[str, dict[str, str]]]:
    """Return what transformers makes: template, chat -> `ids` and, with blocks, `mask`, in words
    and digits.
    """
    found: dict[str, dict[str, dict[str, str]]] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found
