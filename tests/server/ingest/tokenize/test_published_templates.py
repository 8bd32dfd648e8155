"""Chat templates of published models: the tokens and masks of transformers, or a refusal.

Those of transformers are in a golden file, since it is not installed where tests run.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from server.ingest.tokenize.chat_template import ChatTemplateFile
from server.ingest.tokenize.encoding import EncodedUnit, encode_unit
from server.ingest.tokenize.recipe import Recipe
from server.ingest.tokenize.tokenizer import TokenizerFile
from server.ingest.units import Lines, SourceOffset, Unit
from tests.server.ingest.published_templates import (
    CHATS,
    COMPARED,
    bos_token,
    golden,
    has_blocks,
    make_tokenizer,
    template,
)

GOLDEN = golden()
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
    recipe = Recipe(
        TokenizerFile.read(str(tokenizer), parses_special=True),
        ("messages",),
        None,
        None,
        0.0,
        ChatTemplateFile(f"{name}.jinja", template(name), (("bos_token", bos_token(name)),)),
        "tools",
    )
    content = Lines(json.dumps(CHATS[chat]).encode(), 0)
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
