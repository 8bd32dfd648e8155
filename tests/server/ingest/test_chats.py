"""Chats from files to shards, by the command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer

from tests.server.ingest.chats import CHATML, GEMMA, THINKING, make_chat_tokenizer, without_blocks
from tests.server.ingest.corpus import make_tokenizer, stored, tree, write_jsonl, write_parquet
from tests.server.ingest.running import ingest, ingested

pytestmark = pytest.mark.slow

TOOLS = [{"name": "add", "strict": True, "cost": 0.5}]


def chat(number: int) -> list[dict[str, Any]]:
    """Three turns."""
    answers = (f"{number} and {turn}, naïve" for turn in range(3))
    return [
        message
        for turn, answer in enumerate(answers)
        for message in (
            {"role": "user", "content": f"what of {turn}?", "reasoning_content": None},
            {"role": "assistant", "content": answer, "reasoning_content": None},
        )
    ]


@pytest.fixture
def words(tmp_path: Path) -> tuple[str | Path, ...]:
    """The options of ChatML without blocks."""
    (tmp_path / "t.jinja").write_text(without_blocks(CHATML))
    tokenizer = make_chat_tokenizer(tmp_path / "tokenizer.json")
    given = ("--tokenizer", tokenizer, "--chat-template", tmp_path / "t.jinja")
    return (*given, "--messages-column", "chat", "--out", tmp_path / "out")


def test_parquet_and_jsonl_become_the_same_tokens_and_targets(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    """Lists of structs, of objects, or text of JSON; on any number of workers."""
    (tmp_path / "t.jinja").write_text(without_blocks(THINKING))
    chats = [chat(number) for number in range(300)]
    rows = [{"chat": one, "tools": TOOLS} for one in chats]
    of_text = {"chat": list(map(json.dumps, chats)), "tools": [json.dumps(TOOLS)] * 300}
    files = [
        write_jsonl(tmp_path / "a.jsonl", rows),
        write_parquet(tmp_path / "b.parquet", {"chat": chats, "tools": [TOOLS] * 300}),
        write_parquet(tmp_path / "c.parquet", of_text),
    ]
    made = []
    for number, file in enumerate(files):
        out = tmp_path / f"out-{number}"
        more = ("--tools-column", "tools", "--val-fraction", "0.2", "--workers", str(number + 1))
        ingested(file, *words, *more, "--out", out)
        made.append({name: content for name, content in tree(out).items() if "/" in name})

    assert made[0] == made[1] == made[2]
    train = tmp_path / "out-0" / "train"
    assert 0.1 < sum(stored(train, ".ds.loss", "|u1")) / len(stored(train)) < 0.6


WRITES_CALLS = (
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ m.content }}{% else %}{% generation %}"
    "{{ m.content or '' }}{% for call in m.tool_calls or [] %}CALL {{ call | tojson }}{% endfor %}"
    "{% endgeneration %}{% endif %}\n{% endfor %}"
)


def asks(name: str, **arguments: Any) -> dict[str, Any]:
    """A chat that asks a tool, which has the parameters of the call."""
    parameters = {key: {"type": "string", "of": {key: 1}} for key in arguments}
    call = {"function": {"name": name, "arguments": arguments}}
    return {
        "chat": [
            {"role": "user", "content": "what?", "at": None},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ],
        "tools": [{"name": name, "parameters": {"properties": parameters}}],
    }


def of_json(rows: list[dict[str, Any]]) -> pyarrow.Table:
    """The columns that datasets writes since 4.7."""
    columns = {
        name: pyarrow.array([json.dumps(row[name]) for row in rows]) for name in ("chat", "tools")
    }
    kind = pyarrow.json_()
    return pyarrow.table(
        {name: pyarrow.ExtensionArray.from_storage(kind, one) for name, one in columns.items()}
    )


def of_json_within(rows: list[dict[str, Any]]) -> pyarrow.Table:
    """Lists of structs, of which one field is JSON."""
    arguments = [json.dumps(row["chat"][1]["tool_calls"]) for row in rows]
    calls = pyarrow.array([text for one in arguments for text in (None, one)])
    content = pyarrow.array(["what?", None] * len(rows))
    roles = pyarrow.array(["user", "assistant"] * len(rows))
    kept = pyarrow.ExtensionArray.from_storage(pyarrow.json_(), calls)
    messages = pyarrow.StructArray.from_arrays(
        [roles, content, kept], ["role", "content", "tool_calls"]
    )
    chats = pyarrow.ListArray.from_arrays(pyarrow.array(range(0, 2 * len(rows) + 1, 2)), messages)
    return pyarrow.table({"chat": chats, "tools": of_json(rows)["tools"]})


@pytest.mark.parametrize("table", [pyarrow.Table.from_pylist, of_json, of_json_within])
def test_fields_that_other_rows_have_are_no_nulls_of_this_row(
    words: tuple[str | Path, ...], tmp_path: Path, table: Callable[..., pyarrow.Table]
) -> None:
    """A struct of Arrow has the keys of all rows: in calls, in tools, at any depth."""
    (tmp_path / "t.jinja").write_text(WRITES_CALLS)
    rows = [asks("weather", city="Oslo"), asks("add", a="1", b="2"), asks("now")]
    rows[2]["tools"][0]["parameters"] = {"properties": {}}
    stored_rows = rows if table is not pyarrow.Table.from_pylist else rows[:2]
    made = []
    for name, write in (
        ("a.jsonl", lambda path: write_jsonl(path, map(without_at, stored_rows))),
        ("b.parquet", lambda path: write_table(path, table(stored_rows))),
    ):
        out = tmp_path / f"of-{name}"
        said = ingested(write(tmp_path / name), *words, "--tools-column", "tools", "--out", out)
        assert "not ingested" not in said
        made.append((stored(out / "train"), stored(out / "train", ".ds.loss", "|u1")))

    assert made[0] == made[1]
    text = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).decode(made[0][0])
    assert '{"city": "Oslo"}' in text
    assert "null" not in text


def without_at(row: dict[str, Any]) -> dict[str, Any]:
    """A null that was in the data looks like one that Arrow added."""
    chat = [{key: one[key] for key in one if key != "at"} for one in row["chat"]]
    return row | {"chat": chat}


def write_table(path: Path, table: pyarrow.Table) -> Path:
    pyarrow.parquet.write_table(table, path)
    return path


def test_a_time_in_a_message_is_text(words: tuple[str | Path, ...], tmp_path: Path) -> None:
    """Logs of chats have one in each."""
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}{% generation %}{{ m.at }} {{ m.price }}{% endgeneration %}"
        "{% endfor %}"
    )
    message = {"role": "assistant", "content": "a", "price": Decimal("0.50")}
    message["at"] = datetime(2026, 11, 25, 12, 30, tzinfo=UTC)
    path = write_table(tmp_path / "x.parquet", pyarrow.Table.from_pylist([{"chat": [message]}]))

    ingested(path, *words)

    tokens = stored(tmp_path / "out" / "train")
    text = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).decode(tokens)
    assert text == "2026-11-25T12:30:00+00:00 0.50"


def test_a_folder_of_a_tokenizer_has_its_template_too(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    """As save_pretrained writes it; variables are the template's own."""
    path = write_jsonl(tmp_path / "x.jsonl", [{"chat": chat(1)}])
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "tokenizer.json").rename(folder / "tokenizer.json")
    (tmp_path / "t.jinja").rename(folder / "chat_template.jinja")
    config = {"bos_token": "<|im_start|>", "chat_template": "never"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    template = folder / "chat_template.jinja"
    template.write_text("{{ bos_token }}{{ thinks }}" + template.read_text())
    out, other = tmp_path / "out", tmp_path / "other"
    of_folder = ("--tokenizer", folder, "--messages-column", "chat")

    ingested(path, *of_folder, "--out", out, "--template-variable", 'thinks="of 2"')
    ingested(path, *of_folder, "--out", other)

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [
        tokenizer.decode(stored(made / "train"), skip_special_tokens=False) for made in (out, other)
    ]
    assert texts[0].startswith("<|im_start|>of 2<|im_start|>user")
    assert texts[1].startswith("<|im_start|><|im_start|>user")
    manifests = [json.loads((made / "manifest.json").read_text())["job"] for made in (out, other)]
    assert [one["template_variables"] for one in manifests] == [{"thinks": '"of 2"'}, {}]


def test_tokens_of_a_template_that_the_tokenizer_lacks_are_said_at_the_start(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    """ChatML with a tokenizer of plain text: each <|im_start|> becomes six tokens."""
    make_tokenizer(tmp_path / "tokenizer.json")
    path = write_jsonl(tmp_path / "x.jsonl", [{"chat": chat(1)}])

    done = ingest(path, *words)

    assert done.returncode == 0
    (line,) = (line for line in done.stderr.splitlines() if "no token of" in line)
    assert re.search(r"t\.jinja writes what is no token of tokenizer\.json", line)
    assert re.search(r"<\|im_end\|> \(\d+\), <\|im_start\|> \(\d+\); use the tokenizer", line)


def test_a_folder_of_chats_is_that_of_its_template(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    """Another template makes other tokens, so the folder is not finished for it."""
    path = write_jsonl(tmp_path / "x.jsonl", [{"chat": chat(1)}])
    ingested(path, *words)
    ingested(path, *words)
    (tmp_path / "t.jinja").write_text(CHATML)

    done = ingest(path, *words)

    assert done.returncode == 1
    assert "contains an ingest with other chat_template_sha256 (" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    made = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert "loss_mask_sha256" in made["splits"]["train"]["shards"][0]
    (tmp_path / "t.jinja").write_text(without_blocks(CHATML))
    (tmp_path / "out" / "train" / "000000.ds.loss").unlink()
    assert "000000.ds.loss: is damaged" in ingest(path, *words).stderr


def test_a_template_that_does_not_fit_the_chats_ends_the_ingest(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    """In one sentence, with the file, the row and the message; also without --strict."""
    (tmp_path / "t.jinja").write_text(without_blocks(THINKING))
    chats = [chat(number) for number in range(40)]
    chats[30][1]["reasoning_content"] = "well"
    path = write_parquet(tmp_path / "x.parquet", {"chat": chats})

    done = ingest(path, *words)

    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {path}: the chat template writes '<think>\\nwell\\n</t")
    assert done.stderr.endswith("in the template, row 30, chat[1]\n")
    assert len(done.stderr.splitlines()) == 1


def test_chats_that_the_template_refuses_are_reported_with_its_reason(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"chat_template": without_blocks(GEMMA), "bos_token": "<bos>"})
    )
    system = [{"role": "system", "content": "be kind"}, *chat(2)]
    path = write_jsonl(tmp_path / "x.jsonl", [{"chat": chat(1)}, {"chat": system}, {"chat": []}])

    said = ingested(path, *words, "--chat-template", tmp_path / "config.json")

    first = len(json.dumps({"chat": chat(1)})) + 1
    second = first + len(json.dumps({"chat": system})) + 1
    assert [line for line in said.splitlines() if line.startswith("not ingested")] == [
        f"not ingested: {path}: refused by the chat template: System role not supported, "
        f"1 time(s), first: byte {first:,}",
        f"not ingested: {path}: no messages in column 'chat', 1 time(s), first: byte {second:,}",
    ]


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ([1], "column 'chat' is neither a list of structs nor JSON, 1 time(s), first: but int64"),
        ([{"role": "user"}], "neither a list of structs nor JSON, 1 time(s), first: but struct<"),
        ([[{"role": b"user"}]], "neither a list of structs nor JSON, 1 time(s), first: but list<"),
    ],
)
def test_a_column_of_another_type_is_left_out_with_its_file(
    words: tuple[str | Path, ...], tmp_path: Path, column: list[Any], problem: str
) -> None:
    good = write_parquet(tmp_path / "good.parquet", {"chat": [chat(1)]})
    bad = write_parquet(tmp_path / "bad.parquet", {"chat": column})

    said = ingested(good, bad, *words)

    (line,) = [line for line in said.splitlines() if line.startswith("not ingested")]
    assert line.startswith(f"not ingested: {bad}: ")
    assert problem in line


def test_invalid_utf_8_in_one_chat_leaves_out_that_chat(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    """Parquet does not check what it stores."""
    chats = pyarrow.array([chat(1), chat(2), chat(3)])
    content = chats.values.field("content")
    buffers = content.buffers()
    data = bytearray(buffers[2].to_pybytes())
    data[data.index(b"2 and 1")] = 0xFF
    broken = pyarrow.StringArray.from_buffers(
        len(content), buffers[1], pyarrow.py_buffer(bytes(data))
    )
    fields = [chats.values.field("role"), broken]
    structs = pyarrow.StructArray.from_arrays(fields, ["role", "content"])
    made = pyarrow.ListArray.from_arrays(chats.offsets, structs)
    path = write_parquet(tmp_path / "x.parquet", {"chat": made})

    said = ingested(path, *words)

    assert f"not ingested: {path}: invalid UTF-8, 1 time(s), first: row 1\n" in said
    assert "2 documents" in said


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--messages-column", "c"), "--chat-template: is missing: --messages-column needs it"),
        (("--chat-template", "x"), "--chat-template: needs --messages-column"),
        (("--tools-column", "x"), "--tools-column: needs --messages-column"),
        (("--special-token", "x"), "--special-token: needs --messages-column"),
        (("--template-variable", "x=1"), "--template-variable: needs --messages-column"),
        (
            (
                "--messages-column",
                "c",
                "--chat-template",
                "{folder}/x",
                "--template-variable",
                "x=yes",
            ),
            "--template-variable: 'x=yes' has no value in JSON; put text in double quotes",
        ),
        (
            (
                "--messages-column",
                "c",
                "--chat-template",
                "{folder}/x",
                "--template-variable",
                "tools=1",
            ),
            "--template-variable: 'tools=1' is not NAME=JSON",
        ),
        (
            ("--messages-column", "c", "--chat-template", "{folder}/empty"),
            "--chat-template: {folder}/empty has neither chat_template.jinja nor tokenizer_config",
        ),
        (
            ("--messages-column", "c", "--text-column", "t", "--chat-template", "x"),
            "--messages-column: cannot be combined with --text-column; omit one of them",
        ),
        (
            ("--messages-column", "c", "--prompt-column", "t", "--chat-template", "x"),
            "--messages-column: cannot be combined with --prompt-column; omit one of them",
        ),
        (("--messages-column", "c", "--chat-template", "nope"), "--chat-template: nope: No such"),
        (
            ("--messages-column", "c", "--chat-template", "{folder}/broken.jinja"),
            "--chat-template: {folder}/broken.jinja, line 2: Unexpected end of template.",
        ),
        (
            ("--messages-column", "c", "--chat-template", "{folder}/bos.jinja"),
            "--chat-template: {folder}/bos.jinja uses bos_token, which is unknown; pass "
            "--special-token bos_token=TEXT",
        ),
    ],
)
def test_an_invalid_option_of_chats_is_named(
    tmp_path: Path, options: tuple[str, ...], problem: str
) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "abc"}])
    (tmp_path / "broken.jinja").write_text("a\n{% if true %}")
    (tmp_path / "bos.jinja").write_text("{{ bos_token }}")
    (tmp_path / "x").write_text("a")
    (tmp_path / "empty").mkdir()
    given = (word.format(folder=tmp_path) for word in options)

    done = ingest(path, "--out", tmp_path / "out", "--tokenizer", "bytes", *given)

    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {problem.format(folder=tmp_path)}"), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_tools_of_a_column_that_parquet_lacks_are_refused(tmp_path: Path) -> None:
    """A misspelt name would leave all tools out."""
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = write_parquet(tmp_path / "x.parquet", {"messages": [chat], "tools": ["[]"]})
    template = tmp_path / "t.jinja"
    template.write_text(CHATML)
    words = ("--messages-column", "messages", "--chat-template", template, "--tools-column")

    done = ingest(path, "--out", tmp_path / "out", "--tokenizer", "bytes", *words, "toolz")

    assert done.returncode == 1
    assert f"{path}: no column 'toolz', it has messages, tools" in done.stderr


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_tools_that_nothing_was_said_about_are_refused_if_the_template_uses_them(
    words: tuple[str | Path, ...], tmp_path: Path, kind: str
) -> None:
    """The model would learn to call tools that it was never shown."""
    path = tmp_path / f"x.{kind}"
    columns = {"chat": [chat(1)], "tools": [TOOLS]}
    if kind == "jsonl":
        write_jsonl(path, [{name: one for name, (one,) in columns.items()}])
    else:
        write_parquet(path, columns)
    template = tmp_path / "t.jinja"
    plain = template.read_text()
    template.write_text(
        "{% if tools is defined and tools %}{{ tools | tojson }}{% endif %}" + plain
    )

    done = ingest(path, *words)

    assert done.returncode == 1
    problem = "column 'tools' has the tools of chats, which the template uses; pass --tools-column "
    assert f"error: {path}: {problem}tools, or --tools-column none" in done.stderr
    sizes = []
    for column in ("tools", "none"):
        ingested(path, *words, "--tools-column", column, "--out", tmp_path / column)
        sizes.append(len(stored(tmp_path / column / "train")))
    template.write_text(plain)
    ingested(path, *words, "--out", tmp_path / "unused")
    assert sizes[0] > sizes[1] == len(stored(tmp_path / "unused" / "train"))


def test_a_template_without_a_generation_prompt_is_accepted_and_said_once(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    """Right for Llama 2 and Mistral; elsewhere the header of a turn is learned."""
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    path = write_jsonl(tmp_path / "x.jsonl", [{"chat": chat(number)} for number in range(3)])

    done = ingest(path, *words)

    assert done.returncode == 0
    assert done.stderr.count("t.jinja writes no generation prompt: all that it writes for ") == 1


def test_plain_text_has_no_messages(words: tuple[str | Path, ...], tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("a book")

    done = ingest(path, *words)

    problem = "cannot be used with plain text, which has no columns"
    assert done.stderr == f"error: --messages-column: {problem}\n"


def test_a_time_that_python_does_not_have_costs_its_chat_alone(
    words: tuple[str | Path, ...], tmp_path: Path
) -> None:
    """Tables have such times in place of none."""
    rows = [
        [{"role": "user", "content": "q", "at": at}, {"role": "assistant", "content": "a", "at": 0}]
        for at in (0, 1 << 62)
    ]
    kind = pyarrow.struct(
        {"role": pyarrow.string(), "content": pyarrow.string(), "at": pyarrow.timestamp("us")}
    )
    table = pyarrow.table({"chat": pyarrow.array(rows, pyarrow.list_(kind))})
    pyarrow.parquet.write_table(table, tmp_path / "chats.parquet")
    said = ingested(tmp_path / "chats.parquet", *words)

    assert "column 'chat' is not JSON, 1 time(s)" in said
    assert "1 documents" in said
