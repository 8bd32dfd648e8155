"""Chats have the tokens and masks of transformers, where its masks are defined.

transformers is not installed where the tests run, so pytest collects this file only by its name:

    pip install transformers jinja2
    python -m pytest -s tests/server/ingest/tokenize/transformers_chats.py

As a program it writes templates/golden.json, for templates as published, which
test_published_templates.py compares where transformers is missing:

    python -m tests.server.ingest.tokenize.transformers_chats

transformers gives the wrong mask in three cases, which are left out here: where a space belongs to
no token (its mask then ends, or has the rest of the chat), where a block ends in the very first
token (the same), and where a block is empty within a token.
"""

from __future__ import annotations

import json
import random
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from tests.server.ingest.chats import (
    CHATML,
    SPECIAL,
    TEMPLATES,
    make_chat_tokenizer,
    without_blocks,
)
from tests.server.ingest.corpus import WORDS, documents
from tests.server.ingest.published_templates import CHATS as PUBLISHED_CHATS
from tests.server.ingest.published_templates import (
    COMPARED,
    EOS,
    GOLDEN,
    SHAPES,
    SHAPES_GOLDEN,
    bos_token,
    golden,
    golden_shapes,
    has_blocks,
    make_tokenizer,
    names,
    sha256,
    template,
)
from tokenfeed.server.ingest.tokenize.chat_template import ChatTemplateFile
from tokenfeed.server.ingest.tokenize.encoding import EncodedUnit, encode_unit
from tokenfeed.server.ingest.tokenize.recipe import Recipe
from tokenfeed.server.ingest.tokenize.tokenizer import TokenizerFile
from tokenfeed.server.ingest.units import Lines, SourceOffset, Unit

CHATS = 400
# Blocks that end with any character, also one of several tokens.
WITHOUT_ENDS = CHATML.replace(
    "+ '<|im_end|>' }}\n        {%- endgeneration %}",
    "}}\n        {%- endgeneration %}\n        {{- '<|im_end|>' }}",
)
assert WITHOUT_ENDS != CHATML
ALL_TEMPLATES = TEMPLATES | {"without ends": WITHOUT_ENDS}
BOS = {"llama-3": "<|begin_of_text|>", "gemma": "<bos>"}
PARTS = (*WORDS, "🙂", "e\u0301", "<|im_end|>", "<eot>", "a\n\n", "  b", "<end_of_turn>")


def chats(name: str, seed: int) -> list[dict[str, Any]]:
    """Rows of chats of one to five turns, with the roles that a template takes."""
    choose = random.Random(seed)

    def content() -> str:
        return " ".join(choose.choices(PARTS, k=choose.randint(1, 12)))

    rows = []
    for _ in range(CHATS):
        messages = []
        if name in ("chatml", "llama-3") and choose.random() < 0.3:
            messages.append({"role": "system", "content": content()})
        for _ in range(choose.randint(1, 5)):
            messages.append({"role": "user", "content": content()})
            answer: dict[str, Any] = {"role": "assistant", "content": content()}
            if name == "thinking" and choose.random() < 0.5:
                answer[choose.choice(["reasoning_content", "thinking", "reasoning"])] = content()
            messages.append(answer)
        tools = [{"name": content(), "of": [1, 0.5, None, {"é": True}]}]
        rows.append({"messages": messages, "tools": choose.choice([tools, None])})
    return rows


def byte_level(path: Path, *, trims: bool) -> Path:
    """As those of GPT-2, Llama 3 and Qwen. trims: whether offsets leave out spaces."""
    make_chat_tokenizer(path)
    tokenizer = Tokenizer.from_file(str(path))
    if trims:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.save(str(path))
    return path


def with_byte_fallback(path: Path) -> Path:
    """As those of Llama 2 and Gemma: spaces are marks, and rare characters are several bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    special = ["<unk>", *SPECIAL]
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        (text for text in documents(2000, seed=9) if text.isascii()), trainer
    )
    made = json.loads(tokenizer.to_str())
    made["added_tokens"] = [one for one in made["added_tokens"] if one["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(made))
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in special])
    tokenizer.save(str(path))
    return path


TOKENIZERS = {
    "byte-level": lambda path: byte_level(path, trims=False),
    "byte-level, trimmed": lambda path: byte_level(path, trims=True),
    "byte-fallback": with_byte_fallback,
}


def encoded(tokenizer: Path, name: str, template: str, row: dict[str, Any]) -> EncodedUnit:
    recipe = Recipe(
        TokenizerFile.read(str(tokenizer), parses_special=True),
        ("messages",),
        None,
        None,
        0.0,
        ChatTemplateFile("t", template, (("bos_token", BOS.get(name, "")),)),
        "tools",
    )
    content = Lines(json.dumps(row).encode(), 0)
    part = encode_unit(Unit(SourceOffset(0, 0), SourceOffset(0, 1), content, 0), recipe)
    assert part.problems == ()
    return part


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", ALL_TEMPLATES)
def test_tokens_and_masks_are_those_of_transformers(name: str, kind: str, tmp_path: Path) -> None:
    """A corpus made here trains the model that transformers would train."""
    path = TOKENIZERS[kind](tmp_path / "tokenizer.json")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path), bos_token=BOS.get(name))
    targets = compared = tokens = 0
    for row in chats(name, seed=len(name)):
        found = theirs.apply_chat_template(
            row["messages"],
            tools=row["tools"],
            chat_template=ALL_TEMPLATES[name],
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        part = encoded(path, name, ALL_TEMPLATES[name], row)
        assert part.mask is not None
        assert part.tokens.tolist() == found["input_ids"]
        tokens += len(part.tokens)
        if kind == "byte-level, trimmed" and has_space_at_a_border(row, name):
            continue
        assert part.mask.astype(int).tolist() == found["assistant_masks"]
        compared += 1
        targets += int(part.mask.sum())
    print(
        f"\n{name}, {kind}: tokens of {CHATS} chats ({tokens:,}), masks of {compared} "
        f"({targets:,} targets) are equal"
    )
    assert compared > CHATS // 10


def has_space_at_a_border(row: dict[str, Any], name: str) -> bool:
    """Whether a block begins or ends with a space, which belongs to no token in transformers."""
    texts = [
        message["content"].strip() if name in ("llama-3", "gemma") else message["content"]
        for message in row["messages"]
        if message["role"] == "assistant"
    ]
    ends = -1 if name == "without ends" else 0
    return any(not text or text[0].isspace() or text[ends].isspace() for text in texts)


@pytest.mark.parametrize("name", ["chatml", "llama-3", "gemma"])
def test_turns_that_are_found_by_prefixes_are_those_of_blocks(name: str, tmp_path: Path) -> None:
    """Up to a newline after the end of a turn, which is outside of the blocks."""
    path = byte_level(tmp_path / "tokenizer.json", trims=False)
    made = Tokenizer.from_file(str(path))
    ends = [made.token_to_id(end) for end in SPECIAL if "end" in end or "eot" in end]
    for row in chats(name, seed=7):
        blocks = encoded(path, name, TEMPLATES[name], row)
        turns = encoded(path, name, without_blocks(TEMPLATES[name]), row)
        assert turns.tokens.tolist() == blocks.tokens.tolist()
        assert turns.mask is not None
        assert blocks.mask is not None
        assert not (blocks.mask & ~turns.mask).any()
        more = np.flatnonzero(turns.mask & ~blocks.mask)
        newline = made.encode("\n").ids
        assert all(turns.tokens[place] in newline for place in more.tolist())
        assert all(turns.tokens[place - 1] in ends for place in more.tolist())


def test_the_golden_file_is_what_transformers_makes(tmp_path: Path) -> None:
    """The tests that run without transformers compare with it."""
    assert golden() == made_by_transformers(make_tokenizer(tmp_path / "tokenizer.json"))


def made_by_transformers(tokenizer: Path) -> dict[str, dict[str, dict[str, str]]]:
    """The tokens of templates as published and their chats, and the masks of those with blocks."""
    made: dict[str, dict[str, dict[str, str]]] = {}
    for name, chats in COMPARED.items():
        theirs = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer), bos_token=bos_token(name))
        for chat in chats:
            row = PUBLISHED_CHATS[chat]
            found = theirs.apply_chat_template(
                row["messages"],
                tools=row.get("tools"),
                chat_template=template(name),
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=has_blocks(name),
            )
            entry = {"ids": " ".join(map(str, found["input_ids"]))}
            if has_blocks(name):
                entry["mask"] = "".join(map(str, found["assistant_masks"]))
            made.setdefault(name, {})[chat] = entry
    return made


def test_the_golden_file_of_shapes_is_what_transformers_makes(tmp_path: Path) -> None:
    """As above."""
    assert golden_shapes() == shapes_by_transformers(make_tokenizer(tmp_path / "tokenizer.json"))


def shapes_by_transformers(tokenizer: Path) -> dict[str, dict[str, list[str]]]:
    """The hashes of the tokens of all templates and shapes, with fields of messages that are null
    left out, as since 5.24, and as they are, as before. Only JSON is between both and the template.
    """
    made: dict[str, dict[str, list[str]]] = {}
    for name in names():
        special = {"bos_token": bos_token(name), "eos_token": EOS}
        theirs = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer), **special)
        for shape, row in SHAPES.items():
            found = made.setdefault(name, {}).setdefault(shape, [])
            bare = [{k: v for k, v in one.items() if v is not None} for one in row["messages"]]
            for messages in (bare, row["messages"]):
                with suppress(Exception):  # whatever a template of another author raises
                    (text,), _ = render_jinja_template(
                        conversations=[messages],
                        tools=row.get("tools"),
                        chat_template=template(name),
                        **special,
                    )
                    tokens = theirs.encode(text, add_special_tokens=False)
                    if (digest := sha256(tokens)) not in found:
                        found.append(digest)
    return made


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = make_tokenizer(Path(folder) / "tokenizer.json")
        for path, made in (
            (GOLDEN, made_by_transformers(tokenizer)),
            (SHAPES_GOLDEN, shapes_by_transformers(tokenizer)),
        ):
            path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
