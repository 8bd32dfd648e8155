"""The options of the command line that say what a document is -> the recipe of a job."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence

from tokenfeed.commands.decoding import BYTES, END_OF_BYTES
from tokenfeed.errors import InvalidRequest

from .tokenize.chat_template import ChatTemplateFile, load_chat_template
from .tokenize.recipe import Recipe
from .tokenize.tokenizer import TokenizerFile, load_tokenizer

_OF_TEXT = ("--text-column", "--prompt-column", "--response-column")
_LOG = logging.getLogger("tokenfeed.server")


def template_of(
    arguments: argparse.Namespace, tokenizer_file: TokenizerFile
) -> ChatTemplateFile | None:
    """Return the chat template, which is compiled once as a check; None without chats.

    tokenizer_file: the tokenizer that should know the tokens of the template.
    Raises: InvalidRequest.
    """
    if arguments.messages_column is None:
        chat_options = "--chat-template", "--tools-column", "--special-token", "--template-variable"
        for option in chat_options:
            if getattr(arguments, _field(option)):
                raise InvalidRequest(option, "needs --messages-column: it is for chats")
        return None
    _require_alone("--messages-column", (*_OF_TEXT, "--tokens-column"), arguments)
    path = arguments.chat_template
    if path is None and os.path.isdir(arguments.tokenizer):
        path = arguments.tokenizer
    if path is None:
        raise InvalidRequest("--chat-template", "is missing: --messages-column needs it")
    file = ChatTemplateFile.read(
        path,
        arguments.special_token,
        arguments.template_variable,
        has_tools=arguments.tools_column not in (None, "none"),
    )
    template = load_chat_template(file)
    if not template.marks_targets and template.ignores_prompt:
        _LOG.warning(
            "%s writes no generation prompt: all that it writes for a turn of the assistant is a "
            "training target, a header too (docs/ingest.md, Chats)",
            file.name,
        )
    if tokenizer_file.name != BYTES:
        tokenizer = load_tokenizer(tokenizer_file)
        unknown = [text for text in template.token_texts if tokenizer.token_id(text) is None]
        if unknown:
            counts = map(len, tokenizer.encode_each(unknown))
            _LOG.warning(
                "%s writes what is no token of %s, so it becomes several: %s; use the tokenizer of "
                "the model that the template is for, or add these tokens to it",
                file.name,
                tokenizer_file.name,
                ", ".join(f"{text} ({count})" for text, count in zip(unknown, counts, strict=True)),
            )
    return file


def recipe_of(
    arguments: argparse.Namespace,
    tokenizer_file: TokenizerFile,
    template_file: ChatTemplateFile | None,
    *,
    has_text: bool,
) -> Recipe:
    """Return the recipe of the command line.

    has_text: whether there is plain text among the sources.  Raises: InvalidRequest.
    """
    if not 0 <= arguments.val_fraction < 1:
        raise InvalidRequest("--val-fraction", f"{arguments.val_fraction} is not in [0, 1)")
    ids: dict[str, int | None] = {}
    for option in ("--prepend-token", "--append-token"):
        text = getattr(arguments, _field(option))
        ids[option] = None if text is None else load_tokenizer(tokenizer_file).token_id(text)
        if text is not None and ids[option] is None:
            problem = f"{text!r} is not a token of {tokenizer_file.name}"
            if tokenizer_file.name == BYTES:
                problem += f", which adds only {END_OF_BYTES}"
            raise InvalidRequest(option, problem)
    columns = _columns(arguments)
    if has_text:
        for option in (
            "--prompt-column", "--messages-column", "--tokens-column", "--id-column",
        ):  # fmt: skip
            if getattr(arguments, _field(option)) is not None:
                raise InvalidRequest(option, "cannot be used with plain text, which has no columns")
    return Recipe(
        tokenizer_file,
        columns,
        ids["--prepend-token"],
        ids["--append-token"],
        arguments.val_fraction,
        template_file,
        None if arguments.tools_column == "none" else arguments.tools_column,
        arguments.id_column,
        arguments.tokens_column is not None,
        arguments.tokens_column is not None and arguments.labels_column is None,
        template_file is not None
        and arguments.tools_column is None
        and load_chat_template(template_file).uses_tools,
    )


def _columns(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the columns of text: one, or prompt and response; or the one of messages.

    Raises: InvalidRequest.
    """
    if arguments.messages_column is not None:
        return (arguments.messages_column,)
    if arguments.tokens_column is not None:
        _require_alone("--tokens-column", _OF_TEXT, arguments)
        labels = arguments.labels_column
        return (arguments.tokens_column, *([labels] if labels not in (None, "none") else ()))
    if arguments.labels_column is not None:
        raise InvalidRequest("--labels-column", "needs --tokens-column: it is for tokens")
    prompt, response = arguments.prompt_column, arguments.response_column
    if prompt is None and response is None:
        return (arguments.text_column or "text",)
    if prompt == response:
        raise InvalidRequest(
            "--response-column", f"{response!r} is also --prompt-column; pass two columns"
        )
    if prompt is None or response is None:
        absent = "--prompt-column" if prompt is None else "--response-column"
        raise InvalidRequest(absent, "is missing: pairs need both columns")
    if arguments.text_column is not None:
        raise InvalidRequest(
            "--text-column", "cannot be combined with --prompt-column; omit one of them"
        )
    if arguments.append_token is None:
        raise InvalidRequest(
            "--append-token", "is missing: --prompt-column needs a token that ends each response"
        )
    return prompt, response


def _require_alone(option: str, others: Sequence[str], arguments: argparse.Namespace) -> None:
    """Raise InvalidRequest if one of the other options is given together with this one."""
    for other in others:
        if getattr(arguments, _field(other)) is not None:
            raise InvalidRequest(option, f"cannot be combined with {other}; omit one of them")


def _field(option: str) -> str:
    return option[2:].replace("-", "_")
