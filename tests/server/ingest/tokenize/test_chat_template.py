"""Chat templates: files, special tokens, and the sandbox in which they run."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tokenfeed.errors import InvalidRequest
from tokenfeed.server.ingest.tokenize import chat_template
from tokenfeed.server.ingest.tokenize.chat_template import (
    ChatTemplate,
    ChatTemplateFile,
    load_chat_template,
)
from tokenfeed.server.ingest.units import InvalidDocument

CHAT = [{"role": "user", "content": "a\n<b>"}]


def template(text: str, **special: str | None) -> ChatTemplate:
    return load_chat_template(ChatTemplateFile("t.jinja", text, tuple(sorted(special.items()))))


def rendered(text: str, **special: str | None) -> str:
    return template(text, **special).render(CHAT, None)[0]


def written(folder: Path, content: Any, name: str = "tokenizer_config.json") -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize("name", ["t.jinja", "t.j2", "t.txt"])
def test_a_file_of_jinja_is_the_template_and_options_are_its_special_tokens(
    tmp_path: Path, name: str
) -> None:
    path = written(tmp_path, "{{ bos_token }}{{ eos_token }}", name)

    file = ChatTemplateFile.read(path, ["bos_token=<s>", "eos_token="])

    assert load_chat_template(file).render(CHAT, None)[0] == "<s>"


@pytest.mark.parametrize(
    "found", ["{{ bos_token }}", [{"name": "tool_use", "template": ""}, {"name": "default"}]]
)
def test_a_tokenizer_config_has_both_its_template_and_its_special_tokens(
    tmp_path: Path, found: Any
) -> None:
    """As text, or as an object with more of a token; options override them."""
    if isinstance(found, list):
        found[1]["template"] = "{{ bos_token }}"
    config = {
        "chat_template": found,
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "pad_token": None,
        "add_bos_token": True,
    }
    path = written(tmp_path, config)

    plain, other = (ChatTemplateFile.read(path, words) for words in ([], ["bos_token=<t>"]))

    assert dict(plain.special_tokens) == {
        "bos_token": "<s>", "eos_token": "</s>", "pad_token": None,
    }  # fmt: skip
    assert load_chat_template(plain).render(CHAT, None)[0] == "<s>"
    assert load_chat_template(other).render(CHAT, None)[0] == "<t>"
    assert plain.sha256 != other.sha256


def test_a_token_that_is_null_is_undefined_and_one_that_is_unknown_an_error() -> None:
    """Undefined, it would silently be missing from every chat."""
    assert rendered("{{ bos_token is defined }}", bos_token=None) == "False"
    assert rendered("{{ image_token is defined }}") == "False"
    with pytest.raises(InvalidRequest) as caught:
        template("{{ bos_token }}")
    assert str(caught.value) == (
        "--chat-template: t.jinja uses bos_token, which is unknown; pass --special-token "
        "bos_token=TEXT, or a tokenizer_config.json that has it"
    )


@pytest.mark.parametrize(
    ("content", "name", "problem"),
    [
        ("{", "tokenizer_config.json", "is not JSON: Expecting property name"),
        ("[1]", "tokenizer_config.json", "has no chat_template of its own"),
        ({"chat_template": [{"name": "rag", "template": ""}]}, "c.json", "has no chat_template"),
        ("a\n{% for %}", "t.jinja", "t.jinja, line 2: "),
        ("\n\n{% generation %}", "t.jinja", "t.jinja, line 3: "),
        ("{{ 1 | unknown }}", "t.jinja", "t.jinja, line 1: No filter named 'unknown'"),
        ("{{ " + "1" * 5000 + " }}", "t.jinja", "t.jinja cannot be compiled: Exceeds the limit"),
        ("{% if " + "(" * 5000, "t.jinja", "t.jinja is nested too deeply"),
        ("{% for a in b %}" * 40 + "{% endfor %}" * 40, "t.jinja", "t.jinja is nested too deeply"),
    ],
)
def test_a_file_that_is_no_template_is_an_error_in_one_sentence(
    tmp_path: Path, content: Any, name: str, problem: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_chat_template(ChatTemplateFile.read(written(tmp_path, content, name), []))

    said = str(caught.value)
    assert said.startswith("--chat-template: ")
    assert problem in said
    assert "\n" not in said


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"none\.jinja: No such file"):
        ChatTemplateFile.read(str(tmp_path / "none.jinja"), [])
    (tmp_path / "x.jinja").write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match=r"x\.jinja: is not UTF-8"):
        ChatTemplateFile.read(str(tmp_path / "x.jinja"), [])


@pytest.mark.parametrize("word", ["bos_token", "bos=<s>", "=<s>", "bos token_token=x"])
def test_a_special_token_has_a_name_and_a_text(tmp_path: Path, word: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplateFile.read(written(tmp_path, "", "t.jinja"), [word])

    assert str(caught.value) == (
        f"--special-token: {word!r} is not NAME=TEXT with a name such as bos_token"
    )


def test_the_language_is_that_of_transformers() -> None:
    """Blocks take their line with them, loops may break, and JSON is not escaped for HTML."""
    text = """\
{% for message in messages %}
    {% if loop.index0 == 1 %}{% break %}{% endif %}
{{ message | tojson }}
{% endfor %}
{{ {"b": "é", "a": 1} | tojson(indent=1, sort_keys=true) }}
"""

    assert rendered(text) == ('{"role": "user", "content": "a\\n<b>"}\n{\n "a": 1,\n "b": "é"\n}')
    assert rendered("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}") == "2"
    assert rendered("{{ dict(a=1) }}{{ documents is none }}{{ tools is none }}") == (
        "{'a': 1}TrueTrue"
    )


def test_blocks_of_generation_are_where_their_text_is() -> None:
    """Also in loops and conditions, and empty ones."""
    text = (
        "ab{% for m in messages + messages %}{% generation %}{{ m.role }}{% endgeneration %}c"
        "{% endfor %}{% if true %}{% generation %}{% endgeneration %}{% endif %}d"
    )

    assert template(text).marks_targets
    assert template(text).render(CHAT, None) == ("abusercusercd", [(2, 6), (7, 11), (12, 12)])
    assert not template("{{ 'generation' }}").marks_targets


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{ messages.__class__.__mro__ }}", "Jinja's sandbox forbids"),
        ("{{ messages.append(1) }}", "Jinja's sandbox forbids"),
        ("{% set ns = namespace() %}{% set ns.__call__ = 1 %}", "Jinja's sandbox forbids"),
        ("{{ namespace(_x=1) }}", "Jinja's sandbox forbids"),
        ("{{ strftime_now('%d %b') }}", "must not depend on the day"),
        ("{{ messages | random }}", "sandbox forbids: random, since the same chats must become"),
        ("{{ lipsum() }}", "sandbox forbids: lipsum, since the same chats must become the same"),
        ("{{ 'a' * (messages | length * 10 ** 12) }}", "the chat template t.jinja needs more mem"),
    ],
)
def test_what_no_chat_can_cure_is_fatal(text: str, problem: str) -> None:
    """An attempt to leave the sandbox, today's date, what is random, and too much memory."""
    with pytest.raises(InvalidDocument) as caught:
        rendered(text)

    assert problem in caught.value.what
    assert caught.value.is_fatal
    assert "\n" not in caught.value.what


MARKED = "{% generation %}a{% endgeneration %}"


@pytest.mark.parametrize(
    "around",
    [
        "{% macro one() %}_{% endmacro %}{{ one() }}",
        "{% macro one() %}{{ caller() }}{% endmacro %}{% call one() %}_{% endcall %}",
        "{% filter upper %}_{% endfilter %}",
        "{% set a %}{% if true %}_{% endif %}{% endset %}{{ a }}",
        "{% block a %}_{% endblock %}{{ self.a() }}",
        "{% for a in [1] recursive %}_{% endfor %}",
        "{% generation %}_{% endgeneration %}",
    ],
)
def test_a_block_of_generation_whose_place_is_unknown_is_refused(around: str) -> None:
    """Text around it is collected first. Where it agrees by chance, the mask would be wrong."""
    with pytest.raises(InvalidRequest) as caught:
        template("a\n" + around.replace("_", MARKED))

    assert str(caught.value).startswith(
        "--chat-template: t.jinja, line 2: this {% generation %} block is inside of a macro, "
    )


@pytest.mark.parametrize(
    ("text", "ignores"),
    [
        ("{{ messages[0].content }}", True),
        ("{{ messages[0].content }}{% if add_generation_prompt and false %}b{% endif %}", True),
        ("{{ messages[0].content }}{% if add_generation_prompt %}b{% endif %}", False),
        ("{{ raise_exception('no') }}{{ add_generation_prompt }}", False),
    ],
)
def test_it_is_known_whether_a_template_ignores_the_generation_prompt(
    text: str, ignores: bool
) -> None:
    """Then the header of a turn is a target, which is right only where there is none."""
    assert template(text).ignores_prompt is ignores


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 0.2)


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize("constant", ["10 ** (10 ** 7) > 1", "'%100000000d' | format(1)"])
def test_a_constant_is_left_to_the_rendering(constant: str) -> None:
    """Which is limited in time and size; the compiler, in the main process, is not to hang."""
    with pytest.raises(InvalidDocument, match=r"runs for more than|chat above"):
        rendered("{{ " + constant + " }}")


@pytest.mark.usefixtures("short_limit")
def test_the_compiler_has_a_limit_of_time_too() -> None:
    """There are constants that it needs."""
    with pytest.raises(InvalidRequest, match=r"t\.jinja takes more than 0\.2 s to compile"):
        template("{% autoescape 10 ** (10 ** 7) > 1 %}{% endautoescape %}")


@pytest.mark.parametrize("text", ["{{ ''.__class__ }}", "{{ '{0.__class__}'.format(1) }}"])
def test_what_is_inside_of_python_is_undefined(text: str) -> None:
    """Nothing is shown of it, and what follows it is an error."""
    assert rendered(text) == ""


def test_a_template_that_can_do_without_the_date_has_none() -> None:
    """As Llama 3.2, which then writes a date of its own."""
    text = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}2024{% endif %}"

    assert rendered(text) == "2024"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{{ raise_exception('no\n' ~ messages[0].role) }}",
            "refused by the chat template: no user",
        ),
        ("{{ messages[3].role }}", "the chat template fails: list object has no element 3"),
        ("{{ 1 / 0 }}", "the chat template fails: division by zero"),
        ("{{ 10 ** 5000 }}", "the chat template fails: Exceeds the limit (4300"),
        ("{% for n in range(10 ** 9) %}{% endfor %}", "the chat template fails: Range too big"),
        ("{% include 'other' %}", "the chat template fails: no loader for this environment"),
        (
            "{% for n in range(9999) %}{{ 'x' * 99999 }}{% endfor %}",
            "chat above 67,108,864 characters",
        ),
    ],
)
def test_what_a_chat_may_be_the_cause_of_is_its_problem(text: str, problem: str) -> None:
    """So other chats are ingested."""
    with pytest.raises(InvalidDocument) as caught:
        rendered(text)

    assert caught.value.what.startswith(problem)
    assert not caught.value.is_fatal
    assert "\n" not in caught.value.what


def test_a_thread_may_render_too() -> None:
    """Only the main one can be interrupted, but the others must not fail."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(rendered("{{ messages[0].role }}")))
    thread.start()
    thread.join(10)

    assert found == ["user"]
