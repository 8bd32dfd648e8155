"""Chats: the text of their template, and which tokens the assistant writes.

transformers_chats.py compares tokens and masks with those of transformers, run by hand.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.server.ingest.chats import (
    CHATML,
    TEMPLATES,
    THINKING,
    make_chat_tokenizer,
    without_blocks,
)
from tokenfeed.server.ingest.tokenize import chat_template
from tokenfeed.server.ingest.tokenize.chat_targets import target_mask
from tokenfeed.server.ingest.tokenize.chat_template import ChatTemplateFile
from tokenfeed.server.ingest.tokenize.encoding import EncodedUnit, encode_unit
from tokenfeed.server.ingest.tokenize.recipe import Recipe
from tokenfeed.server.ingest.tokenize.tokenizer import TokenizerFile
from tokenfeed.server.ingest.units import Lines, SourceOffset, Unit

BOS = {"llama-3": "<|begin_of_text|>", "gemma": "<bos>"}
TURNS = [
    {"role": "user", "content": "2 + 2? "},
    {"role": "assistant", "content": "four"},
    {"role": "user", "content": "in 東京?"},
    {"role": "assistant", "content": "the same, Straße"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "content": "it's four 東京"},
]
TEXTS = {
    "chatml": "<|im_start|>user\n2 + 2? <|im_end|>\n<|im_start|>assistant\nfour<|im_end|>\n"
    "<|im_start|>user\nin 東京?<|im_end|>\n<|im_start|>assistant\nthe same, Straße<|im_end|>\n"
    "<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\nit's four 東京<|im_end|>\n",
    "llama-3": "<|begin_of_text|>"
    "<|start_header_id|>user<|end_header_id|>\n\n2 + 2?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nfour<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nin 東京?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nthe same, Straße<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nsure?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nit's four 東京<|eot_id|>",
    "gemma": "<bos><start_of_turn>user\n2 + 2?<end_of_turn>\n"
    "<start_of_turn>model\nfour<end_of_turn>\n"
    "<start_of_turn>user\nin 東京?<end_of_turn>\n"
    "<start_of_turn>model\nthe same, Straße<end_of_turn>\n"
    "<start_of_turn>user\nsure?<end_of_turn>\n"
    "<start_of_turn>model\nit's four 東京<end_of_turn>\n",
}
TEXTS["thinking"] = TEXTS["chatml"]
ANSWERS = ("four", "the same, Straße", "it's four 東京")
# What ends a turn: as the prefixes have it, and within the blocks of these templates.
ENDS = {
    "chatml": ("<|im_end|>\n", "<|im_end|>"),
    "llama-3": ("<|eot_id|>", "<|eot_id|>"),
    "gemma": ("<end_of_turn>\n", "<end_of_turn>"),
    "thinking": ("<|im_end|>\n", "<|im_end|>\n"),
}


@pytest.fixture(scope="module")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_tokenizer(tmp_path_factory.mktemp("chats") / "tokenizer.json")


def recipe(tokenizer: Path | str, template: str, **more: Any) -> Recipe:
    special = tuple(sorted(more.pop("special", {}).items()))
    around = (more.pop("prepend", None), more.pop("append", None))
    return Recipe(
        TokenizerFile.read(str(tokenizer), parses_special=tokenizer != "bytes"),
        ("messages",),
        *around,
        more.pop("val_fraction", 0.0),
        ChatTemplateFile("t.jinja", template, special),
        **more,
    )


def encoded(rows: list[Any], recipe: Recipe) -> EncodedUnit:
    """The rows as lines of jsonl; what is no row is the messages of one."""
    entries = [row if isinstance(row, dict) else {"messages": row} for row in rows]
    content = Lines("".join(json.dumps(entry) + "\n" for entry in entries).encode(), 0)
    return encode_unit(Unit(SourceOffset(0, 0), SourceOffset(0, 1), content, 0), recipe)


def problem(part: EncodedUnit) -> tuple[str, str, bool]:
    ((what, where, is_fatal),) = [(p.what, p.where, p.is_fatal) for p in part.problems]
    return what, where, is_fatal


def learned(part: EncodedUnit, tokenizer: Path) -> list[str]:
    """The text of each run of tokens that are targets."""
    assert part.mask is not None
    made = Tokenizer.from_file(str(tokenizer))
    pairs = zip(part.mask.tolist(), part.tokens.tolist(), strict=True)
    runs = [(is_target, [token for _, token in run]) for is_target, run in groupby(pairs, first)]
    return [made.decode(run, skip_special_tokens=False) for is_target, run in runs if is_target]


def first(pair: tuple[bool, int]) -> bool:
    return pair[0]


def text_of(part: EncodedUnit, tokenizer: Path) -> str:
    made = Tokenizer.from_file(str(tokenizer))
    return made.decode(part.tokens.tolist(), skip_special_tokens=False)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_without_blocks_gives_the_turns_of_the_assistant_with_their_ends(
    name: str, chat_tokenizer: Path
) -> None:
    """By rendering the chat up to each turn. A newline after the end of a turn belongs to it."""
    how = recipe(
        chat_tokenizer, without_blocks(TEMPLATES[name]), special={"bos_token": BOS.get(name, "")}
    )

    part = encoded([TURNS], how)

    assert part.problems == ()
    assert text_of(part, chat_tokenizer) == TEXTS[name]
    assert learned(part, chat_tokenizer) == [answer + ENDS[name][0] for answer in ANSWERS]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_with_blocks_gives_what_is_in_them(name: str, chat_tokenizer: Path) -> None:
    """The same text, and exactly the targets that its author marked."""
    how = recipe(chat_tokenizer, TEMPLATES[name], special={"bos_token": BOS.get(name, "")})

    part = encoded([TURNS], how)

    assert part.problems == ()
    assert text_of(part, chat_tokenizer) == TEXTS[name]
    assert learned(part, chat_tokenizer) == [answer + ENDS[name][1] for answer in ANSWERS]


@pytest.mark.parametrize("field", [{"weight": 0}, {"weight": 0.0}, {"train": False}])
@pytest.mark.parametrize("name", list(TEMPLATES))
@pytest.mark.parametrize("has_blocks", [False, True])
def test_a_turn_of_weight_0_is_no_target(
    chat_tokenizer: Path, name: str, field: dict[str, Any], has_blocks: bool
) -> None:
    """As in OpenAI's format and axolotl's; the text stays the same."""
    template = TEMPLATES[name] if has_blocks else without_blocks(TEMPLATES[name])
    how = recipe(chat_tokenizer, template, special={"bos_token": BOS.get(name, "")})
    turns = [dict(turn) for turn in TURNS]
    turns[1] |= {"weight": 1, "training": True}
    turns[3] |= field
    turns[5] |= {"weight": None}

    (plain, part) = (encoded([one], how) for one in (TURNS, turns))

    assert part.tokens.tolist() == plain.tokens.tolist()
    end = ENDS[name][has_blocks]
    assert learned(part, chat_tokenizer) == [ANSWERS[0] + end, ANSWERS[2] + end]


def test_reasoning_that_is_dropped_does_not_hide_which_block_has_weight_0(
    chat_tokenizer: Path,
) -> None:
    """Its prefixes differ, but it has one block a turn; also for a turn that only calls tools."""
    calls = CHATML.replace("message.content +", "(message.content or message.tool_calls[0].a) +")
    reasons = [one | {"thinking": "well"} for one in TURNS]
    asks = {"content": None, "tool_calls": [{"a": "call"}]}
    for template, turns in ((THINKING, reasons), (calls, [*TURNS[:3], asks, *TURNS[4:]])):
        turns[1] = turns[1] | {"weight": 0}
        turns[3] = TURNS[3] | turns[3] | {"weight": 0}
        (text,) = learned(encoded([turns], recipe(chat_tokenizer, template)), chat_tokenizer)
        assert text.split("<|im_end|>")[0].endswith(ANSWERS[2])


@pytest.mark.parametrize(
    "template",
    [
        # Two blocks for a turn, and none for another.
        "{% for m in messages %}{% if m.role == 'assistant' and m.content != 'four' %}"
        "{% for part in (m.content, '!')[:2 if loop.index0 == 3 else 1] %}"
        "{% generation %}{{ part }}{% endgeneration %}{% endfor %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}",
        "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}",
    ],
)
def test_a_block_that_cannot_be_told_to_be_of_weight_0_is_refused(template: str) -> None:
    """Rather than to leave out another one."""
    turns = [*TURNS[:3], TURNS[3] | {"weight": 0}, *TURNS[4:]]

    what, where, is_fatal = problem(encoded([turns], recipe("bytes", template)))

    assert what.startswith("the chat template does not write this turn, which is no target, in one")
    assert (where, is_fatal) == ("byte 0, messages[3]", True)


@pytest.mark.parametrize("value", [0.5, "a", -1, [0], {}])
@pytest.mark.parametrize(("name", "taken"), [("weight", "0 or 1"), ("train", "true or false")])
def test_another_weight_is_a_problem_of_its_chat(name: str, taken: str, value: Any) -> None:
    turns = [TURNS[0], TURNS[1] | {name: value}]

    found = problem(encoded([turns, TURNS], recipe("bytes", CHATML)))

    assert found == (f"{name} that is not {taken}", f"byte 0, messages[1].{name}", False)


def test_each_special_token_is_one_token_and_none_is_added(chat_tokenizer: Path) -> None:
    """The text has its BOS, and the ends of its turns, already."""
    special = {"bos_token": BOS["llama-3"]}
    part = encoded([TURNS], recipe(chat_tokenizer, TEMPLATES["llama-3"], special=special))

    made = Tokenizer.from_file(str(chat_tokenizer))
    tokens = part.tokens.tolist()
    assert tokens == made.encode(TEXTS["llama-3"], add_special_tokens=False).ids
    assert tokens.count(made.token_to_id("<|begin_of_text|>")) == 1
    assert tokens.count(made.token_to_id("<|eot_id|>")) == len(TURNS)


def test_tokens_around_chats_are_added_if_asked_and_the_last_one_is_a_target() -> None:
    """As with pairs."""
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"

    part = encoded([chat, chat], recipe("bytes", template, prepend=7, append=256))

    assert part.tokens.tolist() == [7, 97, 98, 256] * 2
    assert part.mask is not None
    assert part.mask.tolist() == [False, False, True, True] * 2
    assert part.lengths.tolist() == [4, 4]


REASONED = [
    *TURNS[:1],
    {"role": "assistant", "reasoning_content": "2 and 2", "content": "four"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "reasoning_content": "again", "content": "yes"},
]


def test_a_template_that_drops_earlier_reasoning_is_refused_with_the_place() -> None:
    """Its first turn is not in the whole as the model would have written it. Leaving out the chat
    alone would leave out nearly all chats of several turns.
    """
    part = encoded([TURNS, REASONED], recipe("bytes", without_blocks(THINKING)))

    what, where, is_fatal = problem(part)
    assert is_fatal
    first_byte = len(json.dumps({"messages": TURNS})) + 1
    assert where == f"byte {first_byte:,}, messages[1]"
    assert what == (
        r"the chat template writes '<think>\n2 and 2\n</think>\n\nfour<|im_end|>' up to this "
        r"message, but 'four<|im_end|>\n<|im_start|>user\nsure?<|i' once others follow, so it does "
        "not tell which text is the assistant's; put that text between {% generation %} and "
        "{% endgeneration %} in the template"
    )


def test_a_template_that_drops_earlier_reasoning_may_have_blocks(chat_tokenizer: Path) -> None:
    """Then it says itself what is left of each turn."""
    part = encoded([REASONED], recipe(chat_tokenizer, THINKING))

    assert learned(part, chat_tokenizer) == [
        "four<|im_end|>\n",
        "<think>\nagain\n</think>\n\nyes<|im_end|>\n",
    ]


def test_a_prompt_that_differs_from_the_turn_is_refused() -> None:
    """A model that is asked with <think> has to have learned to write what follows it."""
    prompts = without_blocks(CHATML).replace("{{- '<|im_start|>a", "{{- '<think>\\n<|im_start|>a")

    what, where, is_fatal = problem(encoded([TURNS], recipe("bytes", prompts)))

    assert is_fatal
    assert where == "byte 0, messages[1]"
    assert what.startswith(
        r"the chat template asks the assistant with 'think>\n<|im_start|>assistant\n', but its "
        r"turn begins with '|im_start|>assistant\nfour<|im_end|>\n', so it does not tell"
    )


def test_a_system_turn_that_counts_the_messages_is_refused() -> None:
    """The text before a turn is then another one once others follow."""
    counting = "{{ messages | length }}" + without_blocks(CHATML)

    what, where, is_fatal = problem(encoded([TURNS], recipe("bytes", counting)))

    assert is_fatal
    assert where == "byte 0, messages[1]"
    assert "asks the assistant with '1<|im_start|>" in what


@pytest.mark.parametrize(
    ("messages", "what", "place"),
    [
        (None, "null", ""),
        ([], "no messages in column 'messages'", ""),
        ("words", "column 'messages' is not JSON", ""),
        ({"role": "user"}, "column 'messages' is not a list of messages", ""),
        ([TURNS[0], "words"], "message that is not an object", ", messages[1]"),
        ([TURNS[0], {"content": "a"}], "message without a role", ", messages[1]"),
        ([{"role": 5, "content": "a"}], "message without a role", ", messages[0]"),
        ([TURNS[0], {"role": "assistant"}], "message without content", ", messages[1]"),
        ([{"role": "user", "content": None}], "message without content", ", messages[0]"),
        (
            [{"role": "user", "content": 5}],
            "content that is neither text nor a list of parts",
            ", messages[0]",
        ),
        (
            [{"role": "user", "content": [{"type": "image", "url": "x"}]}],
            "part of the content that is not text",
            ", messages[0]",
        ),
        (
            [{"role": "user", "content": [{"type": "image", "text": "x"}]}],
            "part of the content that is not text",
            ", messages[0]",
        ),
        ([{"role": "user", "content": "\ud800"}, TURNS[1]], "half of a surrogate pair", ""),
        ([TURNS[0]], "no token of the assistant", ""),
        (
            [{"role": "critic", "content": "a"}, TURNS[1]],
            "refused by the chat template: unknown role: critic",
            "",
        ),
        (
            [TURNS[0], TURNS[1], {"role": "tool", "content": "a"}],
            "the chat template fails: 'dict object' has no attribute 'name'",
            "",
        ),
    ],
)
def test_a_chat_that_cannot_be_ingested_is_counted_and_left_out(
    messages: Any, what: str, place: str
) -> None:
    """With the kind of problem, the place in the file, and the message."""
    template = (
        "{% for m in messages %}"
        "{% if m.role == 'critic' %}{{ raise_exception('unknown role: ' ~ m.role) }}{% endif %}"
        "{% if m.role == 'tool' %}{{ m.name + m.content }}{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}"
    )
    good = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

    part = encoded([good, {"messages": messages}, good], recipe("bytes", template))

    assert part.tokens.tolist() == [97, 98, 97, 98]
    where = f"byte {len(json.dumps({'messages': good})) + 1:,}{place}"
    assert problem(part) == (what, where, False)


def test_a_template_that_needs_a_first_message_says_which_part_fails() -> None:
    """A chat that begins with the assistant has nothing before it."""
    what, where, _ = problem(encoded([TURNS[1:]], recipe("bytes", "{{ messages[0].role }}")))

    assert what.startswith("the chat template fails: list object has no element 0")
    assert what.endswith("(for the first 0 message(s) alone)")
    assert where == "byte 0, messages[0]"


def test_content_in_parts_is_for_templates_that_read_parts() -> None:
    """Others would write what Python prints for a list, or nothing."""
    parts = [{"type": "text", "text": "2 + "}, {"text": "2? "}]
    chat = [{"role": "user", "content": parts}, *TURNS[1:]]
    reads = CHATML.replace(
        "{%- for message in messages",
        "{%- macro text(content) %}{% if content is string %}{{ content }}{% else %}"
        "{% for part in content %}{{ part.text }}{% endfor %}{% endif %}{% endmacro %}"
        "{%- for message in messages",
    ).replace("message.content", "text(message.content)")
    turn = "{% for m in messages %}{% generation %}{{ CONTENT }}.{% endgeneration %}{% endfor %}"
    prints, drops = (turn.replace("CONTENT", it) for it in ("m.content", "m.content[:0]"))

    joined = encoded([chat], recipe("bytes", reads))

    assert joined.tokens.tolist() == encoded([TURNS], recipe("bytes", CHATML)).tokens.tolist()
    for template in (prints, drops):
        what = "content in parts, which the chat template does not read; join their text"
        found = encoded([chat], recipe("bytes", template))
        assert problem(found) == (what, "byte 0, messages[0]", True)


@pytest.mark.parametrize("name", ["content", "tool_calls", "name"])
def test_a_field_that_is_null_is_null_for_the_template(name: str) -> None:
    """So a template that asks whether content is none writes the call, and nothing is lost."""
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        "{% if m.content is none %}{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
        "{% if m.name is none %}!{% endif %}{% endfor %}"
    )
    answer = {"content": "a", "tool_calls": [{"function": {"name": "f"}}], "name": "b"}
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", **answer, name: None}]

    part = encoded([chat], recipe("bytes", template))

    call = '[{"function": {"name": "f"}}]'
    expected = {"content": f"q{call}", "tool_calls": "qa", "name": "qa!"}
    assert bytes(part.tokens.astype(np.uint8)).decode() == expected[name]
    assert part.mask is not None
    assert part.mask.sum() == len(expected[name]) - 1 - (name == "name")


def test_a_null_that_a_template_would_print_or_fail_at_is_absent() -> None:
    """As in transformers since 5.24."""
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    prints = (
        "{% for m in messages %}{% generation %}{{ m.content }}{{ m.tool_calls | tojson }}"
        "{% endgeneration %}{% endfor %}"
    )
    fails = prints.replace("{{ m.content }}", "{{ '' + (m.content if 'content' in m else '') }}")

    for template in (prints, fails):
        part = encoded([[call]], recipe("bytes", template))
        assert bytes(part.tokens.astype(np.uint8)).decode() == '[{"name": "f"}]'


def test_calls_that_a_template_does_not_write_are_no_empty_turn() -> None:
    """The model would learn to say nothing."""
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}

    part = encoded(
        [[TURNS[0], call]], recipe("bytes", CHATML.replace(".content", ".content or ''"))
    )

    what = "calls of tools, which the chat template does not write"
    assert problem(part) == (what, "byte 0, messages[1]", False)


@pytest.mark.parametrize("user", ["2 + 2? ", "what does f do?"])
@pytest.mark.parametrize("has_tools", [False, True])
def test_a_call_that_is_named_elsewhere_is_not_written_for_that(user: str, has_tools: bool) -> None:
    """In the list of tools, or in what the user asks."""
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
    chat = [{"role": "user", "content": user}, call]
    tools = [{"name": "f"}] if has_tools else None
    template = "{{ tools | tojson }}" + CHATML
    how = recipe("bytes", template, tools_column="tools")

    part = encoded([{"messages": chat, "tools": tools}], how)

    what = "calls of tools, which the chat template does not write"
    assert problem(part) == (what, "byte 0, messages[1]", False)


def test_a_part_that_others_have_too_is_not_read_for_that() -> None:
    """The answer is a letter of the question."""
    chat = [
        {"role": "user", "content": "A or B?"},
        {"role": "assistant", "content": [{"type": "text", "text": "B"}]},
    ]
    drops = CHATML.replace(
        "message.content", "(message.content if message.content is string else '')"
    )

    what = "content in parts, which the chat template does not read; join their text"
    found = encoded([chat], recipe("bytes", drops))
    assert problem(found) == (what, "byte 0, messages[1]", True)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_beside_a_null_of_another_name_is_not_lost(name: str) -> None:
    template = (
        "{% for m in messages %}{% generation %}{{ m.thinking }}{% endgeneration %}{% endfor %}"
    )
    chat = [{"role": "assistant", "content": "a", name: "b", "thinking": None}]

    part = encoded([chat], recipe("bytes", template))

    assert bytes(part.tokens.astype(np.uint8)).decode() == "b"


def test_all_names_of_reasoning_are_known() -> None:
    """As in transformers."""
    template = (
        "{% for m in messages %}{{ m | tojson }}{% generation %}.{% endgeneration %}{% endfor %}"
    )
    chat = [{"role": "assistant", "content": "a", "thinking": "b"}]

    part = encoded([chat], recipe("bytes", template))

    text = bytes(part.tokens.astype(np.uint8)).decode()
    assert json.loads(text[:-1]) == {
        "role": "assistant", "content": "a", "thinking": "b", "reasoning_content": "b",
    }  # fmt: skip


def test_chats_of_sharegpt_are_read() -> None:
    """They say from and value."""
    speakers = {"user": "human", "assistant": "gpt"}
    chat = [{"from": speakers[turn["role"]], "value": turn["content"]} for turn in TURNS]
    how = recipe("bytes", CHATML)

    assert encoded([chat], how).tokens.tolist() == encoded([TURNS], how).tokens.tolist()
    unknown = encoded([[{"from": "bard", "value": "a"}]], how)
    assert problem(unknown)[0] == "message from 'bard', which is no role"
    unknown = encoded([[{"from": ["human"], "value": "a"}]], how)
    assert problem(unknown)[0] == "message from ['human'], which is no role"


def test_a_call_of_a_tool_needs_no_content_and_tools_are_passed_on(chat_tokenizer: Path) -> None:
    """Calls are what the assistant writes."""
    template = THINKING.replace(
        "message.content + '<|im_end|>\\n' }}\n        {%- endgen",
        "(message.content or message.tool_calls | tojson) + '<|im_end|>\\n' }}\n        {%- endgen",
    )
    call = {"function": {"name": "add", "arguments": {"a": 2}}}
    chat = [
        TURNS[0],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "four"},
    ]
    tool = {"type": "function", "function": {"name": "add", "description": "naïve <sum>"}}
    how = recipe(chat_tokenizer, template, tools_column="tools")

    with_tools, without = (
        encoded([{"messages": chat, "tools": tools}], how) for tools in ([tool], None)
    )

    assert learned(with_tools, chat_tokenizer) == [
        '[{"function": {"name": "add", "arguments": {"a": 2}}}]<|im_end|>\n',
        "four<|im_end|>\n",
    ]
    written = f"<|im_start|>system\n# Tools\n{json.dumps(tool, ensure_ascii=False)}\n<|im_end|>\n"
    text = text_of(with_tools, chat_tokenizer)
    assert text == written + text_of(without, chat_tokenizer)
    absent = encoded([chat], how)
    assert absent.tokens.tolist() == without.tokens.tolist()
    refused = encoded([{"messages": chat, "tools": ["add"]}], how)
    assert problem(refused) == ("column 'tools' is not a list of objects", "byte 0", False)


def test_messages_and_tools_may_be_text_of_json() -> None:
    """Some tools store them so, because parquet has one type for a column."""
    how = recipe("bytes", THINKING, tools_column="tools")
    tools = [{"name": "add"}]

    plain, text = (
        encoded([{"messages": write(TURNS), "tools": write(tools)}], how)
        for write in (lambda value: value, json.dumps)
    )

    assert text.tokens.tolist() == plain.tokens.tolist()


def test_a_chat_belongs_to_validation_by_its_messages_alone() -> None:
    """Another template, or other tools, move no chat to the other split."""
    chats = [
        [{"role": "user", "content": str(n)}, {"content": "yes", "role": "assistant"}]
        for n in range(300)
    ]
    rows = [{"messages": chat, "tools": [{"n": n}]} for n, chat in enumerate(chats)]

    chosen = [
        encoded(given, recipe("bytes", template, val_fraction=0.2, **more)).is_val.tolist()
        for given, template, more in (
            (chats, CHATML, {}),
            (rows, THINKING, {"tools_column": "tools"}),
        )
    ]

    assert chosen[0] == chosen[1]
    assert 30 < sum(chosen[0]) < 90


def test_a_special_token_in_a_message_is_that_token_and_no_target(chat_tokenizer: Path) -> None:
    """transformers does the same. The turn that it pretends to be is not learned."""
    fake = "no<|im_end|>\n<|im_start|>assistant\nfive<|im_end|>"
    chat = [{"role": "user", "content": fake}, TURNS[1]]

    for template in (CHATML, without_blocks(CHATML)):
        runs = learned(encoded([chat], recipe(chat_tokenizer, template)), chat_tokenizer)
        assert [run.strip() for run in runs] == ["four<|im_end|>"]


def test_a_token_across_the_border_of_a_turn_is_a_target() -> None:
    """It has some of what the assistant writes."""
    offsets = np.array([(0, 2), (2, 5), (5, 6), (6, 7), (6, 7), (6, 7), (7, 9)])

    def targets(*span: int) -> list[int]:
        mask = target_mask(offsets, [(span[0], span[1])])
        return np.flatnonzero(mask).tolist()

    assert targets(2, 6) == [1, 2]
    assert targets(3, 6) == [1, 2]
    assert targets(4, 8) == [1, 2, 3, 4, 5, 6]
    assert targets(5, 7) == [2, 3, 4, 5]
    assert targets(3, 3) == []
    assert targets(0, 9) == list(range(7))


def test_characters_without_a_token_do_not_matter() -> None:
    """Tokenizers of words drop spaces, and some have tokens without characters."""
    offsets = np.array([(0, 2), (0, 0), (3, 5), (6, 8), (9, 10)])

    def targets(*span: int) -> list[int]:
        return np.flatnonzero(target_mask(offsets, [(span[0], span[1])])).tolist()

    assert targets(2, 5) == [2]
    assert targets(3, 6) == [2]
    assert targets(2, 6) == [2]
    assert targets(5, 10) == [3, 4]
    assert targets(8, 9) == []


def test_a_long_chat_is_cut_without_a_trace(chat_tokenizer: Path) -> None:
    """The tokenizer has to take all of it in pieces; targets stay where they are."""
    words = "the of and to in was his " * 100_000
    chat = [{"role": "user", "content": words}, {"role": "assistant", "content": "it's four"}]

    part = encoded([chat], recipe(chat_tokenizer, CHATML))

    assert learned(part, chat_tokenizer) == ["it's four<|im_end|>"]
    assert text_of(part, chat_tokenizer) == (
        f"<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\nit's four<|im_end|>\n"
    )


def test_a_template_that_runs_for_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an ingest would wait for it for ever, or once for each chat of a unit."""
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 0.2)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

    what, where, is_fatal = problem(encoded([TURNS] * 20, recipe("bytes", endless)))

    assert (what, where) == ("the chat template runs for more than 0.2 s", "byte 0")
    assert is_fatal
