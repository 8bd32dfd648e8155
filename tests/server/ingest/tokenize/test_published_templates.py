"""Chat templates of published models: the tokens and masks of transformers, or a refusal.

Those of transformers are in a golden file, since it is not installed where tests run.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer

from tests.server.ingest.published_templates import (
    CHATS,
    COMPARED,
    EOS,
    SHAPES,
    bos_token,
    golden,
    golden_shapes,
    has_blocks,
    make_tokenizer,
    names,
    sha256,
    template,
)
from tokenfeed.server.ingest.inputs import parquet
from tokenfeed.server.ingest.tokenize.chat_template import ChatTemplateFile
from tokenfeed.server.ingest.tokenize.encoding import EncodedUnit, encode_unit
from tokenfeed.server.ingest.tokenize.recipe import Recipe
from tokenfeed.server.ingest.tokenize.tokenizer import TokenizerFile
from tokenfeed.server.ingest.units import Lines, Rows, SourceOffset, TextSource, Unit

GOLDEN = golden()
GOLDEN_SHAPES = golden_shapes()
REFUSED = ("deepseek_r1_distill", "deepseekv3")
"""They ask the assistant with <think>, which no answer begins with."""
WITH_BLOCKS = [(name, chat) for name in filter(has_blocks, COMPARED) for chat in COMPARED[name]]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": "é"}}\n</tool_call><|im_end|>\n'
LEARNED = {
    ("qwen2_5", "turns"): (
        "four<|im_end|>\n",
        "the same, Straße\n\n<|im_end|>\n",
        " it's four 東京🙂<|im_end|>\n",
    ),
    ("qwen2_5", "calls"): (CALL, "four<|im_end|>\n"),
    ("llama3", "turns"): (
        "four<|eot_id|>",
        "the same, Straße<|eot_id|>",
        "it's four 東京🙂<|eot_id|>",
    ),
    ("gemma", "turns"): (
        "four<end_of_turn>\n",
        "the same, Straße<end_of_turn>\n",
        "it's four 東京🙂<end_of_turn>\n",
    ),
    ("qwen3", "one turn"): ("<think>\nagain\n</think>\n\nyes<|im_end|>\n",),
}
LEARNED[("qwen2_5", "system")] = LEARNED[("qwen2_5", "turns")]
LEARNED[("llama3", "system")] = LEARNED[("llama3", "turns")]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("published") / "tokenizer.json")


def encoded(tokenizer: Path, name: str, chat: str) -> EncodedUnit:
    return encoded_content(tokenizer, name, Lines(json.dumps(CHATS[chat]).encode(), 0))


def encoded_content(tokenizer: Path, name: str, content: Lines | Rows) -> EncodedUnit:
    special = (("bos_token", bos_token(name)), ("eos_token", EOS))
    recipe = Recipe(
        TokenizerFile.read(str(tokenizer), parses_special=True),
        ("messages",),
        None,
        None,
        0.0,
        ChatTemplateFile(f"{name}.jinja", template(name), special),
        "tools",
    )
    return encode_unit(Unit(SourceOffset(0, 0), SourceOffset(0, 1), content, 0), recipe)


@pytest.mark.parametrize(("name", "chat"), WITH_BLOCKS)
def test_a_template_with_blocks_has_the_tokens_and_the_mask_of_transformers(
    name: str, chat: str, tokenizer: Path
) -> None:
    """A corpus made here trains the model that transformers would train."""
    part = encoded(tokenizer, name, chat)

    assert part.problems == ()
    assert part.mask is not None
    assert " ".join(map(str, part.tokens.tolist())) == GOLDEN[name][chat]["ids"]
    assert "".join(map(str, part.mask.astype(int).tolist())) == GOLDEN[name][chat]["mask"]


@pytest.mark.parametrize(("name", "chat"), LEARNED)
def test_a_template_without_blocks_has_its_tokens_and_teaches_whole_turns(
    name: str, chat: str, tokenizer: Path
) -> None:
    """transformers has no mask for it, so turns are found by rendering prefixes."""
    part = encoded(tokenizer, name, chat)

    assert part.problems == ()
    assert part.mask is not None
    assert " ".join(map(str, part.tokens.tolist())) == GOLDEN[name][chat]["ids"]
    made = Tokenizer.from_file(str(tokenizer))
    pairs = zip(part.mask.tolist(), part.tokens.tolist(), strict=True)
    runs = [
        made.decode([token for _, token in run], skip_special_tokens=False)
        for is_target, run in groupby(pairs, lambda pair: pair[0])
        if is_target
    ]
    assert tuple(runs) == LEARNED[name, chat]


@pytest.mark.parametrize(
    ("name", "chat", "place", "problem"),
    [
        (
            "qwen3",
            "turns",
            "messages[1]",
            r"writes '<think>\n\n</think>\n\nfour<|im_end|>\n",
        ),
        (
            "qwen3",
            "reasoned",
            "messages[1]",
            r"writes '<think>\n2 and 2\n</think>\n\nfour<|im_end|>' up to this message, but ",
        ),
        ("qwen3", "calls", "messages[2]", r"writes 'hink>\n\n</think>\n\n<tool_call>\n"),
        (
            "deepseek_r1_distill",
            "turns",
            "messages[1]",
            r"asks the assistant with '<think>\n', but its turn begins with 'four<",
        ),
    ],
)
def test_a_template_that_leaves_out_reasoning_is_refused_with_the_place(
    name: str, chat: str, place: str, problem: str, tokenizer: Path
) -> None:
    """What it keeps of a turn is not what the model wrote, or was asked to write."""
    (found,) = encoded(tokenizer, name, chat).problems

    assert found.is_fatal
    assert found.where == f"byte 0, {place}"
    assert found.what.startswith(f"the chat template {problem}")
    assert found.what.endswith("{% generation %} and {% endgeneration %} in the template")


def row_of_parquet(row: dict[str, Any], path: Path) -> Rows:
    """Write a row into a file beside one that has more fields, and return it as it is read."""
    content = row["messages"][0]["content"] or "a"
    other_call = {"type": "a", "id": "a", "b": 1, "function": {"name": "a", "arguments": {"b": 1}}}
    fields = {"name": "a", "thinking": "a", "reasoning_content": "a", "tool_call_id": "a"}
    properties = {"a": {"type": "a", "b": 1}, "b": {"type": "a"}}
    function = {"name": "a", "strict": True, "parameters": {"b": 1, "properties": properties}}
    other = {
        "messages": [{"role": "user", "content": content, "tool_calls": [other_call], **fields}],
        "tools": [{"b": 1, "function": function}],
    }
    if isinstance(content, list):
        other["messages"][0]["content"] = [{"text": "a", "image": "a"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"tools": None, **row}, other]), path)
    source = TextSource(str(path), "parquet", path.stat().st_size, 0)
    template_file = ChatTemplateFile("", "", ())
    file = TokenizerFile.read("bytes", parses_special=False)
    recipe = Recipe(file, ("messages",), None, None, 0.0, template_file, "tools")
    (unit,) = parquet.units(source, 0, 0, recipe, lambda *_: None)
    assert isinstance(unit.content, Rows)
    return Rows(tuple(column.part(0, 1) for column in unit.content.columns), 0)


@pytest.mark.parametrize("name", names())
def test_chats_of_every_shape_have_the_tokens_of_transformers_or_are_refused(
    name: str, tokenizer: Path, tmp_path: Path
) -> None:
    """From both kinds of files; Arrow adds nulls to the fields of messages, calls and tools."""
    compared = 0
    for shape, row in SHAPES.items():
        parts = [
            encoded_content(tokenizer, name, content)
            for content in (
                Lines(json.dumps(row).encode(), 0),
                row_of_parquet(row, tmp_path / "chats.parquet"),
            )
        ]
        for part in parts:
            if not part.problems:
                assert sha256(part.tokens.tolist()) in GOLDEN_SHAPES[name][shape], shape
                compared += 1
        if not any(part.problems for part in parts):
            assert parts[0].tokens.tolist() == parts[1].tokens.tolist(), shape
    print(f"\n{name}: {compared} of {2 * len(SHAPES)} are equal, others are refused")
    assert compared == 0 if name in REFUSED else compared > len(SHAPES)
