"""The rows and lines of a unit -> documents: text, pairs or rendered chats, each checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..units import Column, InvalidDocument, Lines, Problem, Rows
from .chat_targets import canonical, messages_of, rendered, tools_of
from .chat_template import ChatTemplate, Span, load_chat_template
from .recipe import MASK_ENDINGS, Recipe

IGNORED = -100
"""The label of what is no target."""
_ARRAY = "a JSON array, not an object; write one object per line"


class Document(NamedTuple):
    """A document; a tuple, since there may be many small ones.

    texts: one, or prompt and response; none if it is tokens already.  where: its place in the
    source.  id: in UTF-8, if ids are kept.  targets: of a chat: which characters are training
    targets, ascending.  messages: of a chat, as JSON.  tokens: int64[n].  learned: bool[n], which
    of them are targets; None for all.
    """

    texts: tuple[str, ...]
    where: str
    id: bytes | None = None
    targets: tuple[Span, ...] = ()
    messages: str | None = None
    tokens: npt.NDArray[np.int64] | None = None
    learned: npt.NDArray[np.bool_] | None = None

    @property
    def sha256(self) -> bytes:
        """Hash of its UTF-8; of prompt and response, each preceded by its length in bytes (uint64,
        big-endian); of the messages of a chat; or of tokens (uint32, little-endian).
        """
        if self.tokens is not None:
            return hashlib.sha256(self.tokens.astype("<u4").tobytes()).digest()
        if len(self.texts) == 1:
            text = self.texts[0] if self.messages is None else self.messages
            return hashlib.sha256(text.encode()).digest()
        texts = [text.encode() for text in self.texts]
        return hashlib.sha256(b"".join(len(t).to_bytes(8, "big") + t for t in texts)).digest()


def documents_of(
    content: Rows | Lines | None, recipe: Recipe, problems: list[Problem]
) -> Iterator[Document]:
    """Yield the valid documents of a unit, up to the first fatal problem; the others are added to
    problems.
    """
    if content is None:
        return
    columns = recipe.read_columns
    read = _of_rows(content, columns) if isinstance(content, Rows) else _of_lines(content, columns)
    for values, where in read:
        found = _document(values, where, recipe)
        if isinstance(found, Problem):
            problems.append(found)
            if found.is_fatal:  # so the ingest ends: others would only hold it up
                return
        else:
            yield found


def _document(
    values: Sequence[Any] | InvalidDocument, where: str, recipe: Recipe
) -> Document | Problem:
    """Return the document of the values of its columns, or its problem."""
    try:
        if isinstance(values, InvalidDocument):
            raise values
        own = values[-1].encode() if recipe.id_column is not None else None
        if recipe.are_tokens:
            return _tokens(values, where, own, recipe)
        if recipe.chat_template is None:
            return _text(values, where, own, recipe)
        return _chat(values, where, own, recipe, load_chat_template(recipe.chat_template))
    except InvalidDocument as error:
        return error.problem(where)


def _text(values: Sequence[Any], where: str, own_id: bytes | None, recipe: Recipe) -> Document:
    texts = tuple(values[: len(recipe.columns)])
    if not any(texts):
        raise InvalidDocument("empty document")
    return Document(texts, where, own_id)


def _tokens(values: Sequence[Any], where: str, own_id: bytes | None, recipe: Recipe) -> Document:
    """Return a document of tokens without its padding; labels of -100 are no targets."""
    count = len(recipe.columns)
    names = [*recipe.columns, recipe.padding_column]
    tokens, *labels, kept = map(_numbers, values[: count + 1], names)
    if tokens is None or not tokens.size:
        raise InvalidDocument("empty document")
    for name, found in zip(names[1:], [*labels, kept], strict=True):
        if found is not None and found.size != tokens.size:
            problem = f"column {name!r} does not have as many numbers as {recipe.columns[0]!r}"
            raise InvalidDocument(problem)
    learned: npt.NDArray[np.bool_] | None = None
    is_mask = False
    if labels:
        if labels[0] is None:
            raise InvalidDocument("null")
        is_mask = recipe.columns[1].endswith(MASK_ENDINGS)
        learned = np.not_equal(labels[0], 0 if is_mask else IGNORED)
        if is_mask and np.any((labels[0] != 0) & (labels[0] != 1)):
            raise InvalidDocument(f"column {recipe.columns[1]!r} has more than 0 and 1")
    if learned is not None and not is_mask and np.any(labels[0] != tokens, where=learned):
        problem = f"column {recipe.columns[1]!r} has labels that are other tokens than those of "
        raise InvalidDocument(f"{problem}{recipe.columns[0]!r}: are they shifted?", is_fatal=True)
    if kept is not None:
        tokens = tokens[kept != 0]
        learned = None if learned is None else learned[kept != 0]
    if not tokens.size:
        raise InvalidDocument("nothing but padding")
    if learned is not None and not learned.any():
        raise InvalidDocument("no target")
    return Document((), where, own_id, tokens=tokens, learned=learned)


def _numbers(value: Any, name: str) -> npt.NDArray[np.int64] | None:
    if value is None:
        return None
    try:
        found = np.array(value)
    except (ValueError, OverflowError):
        found = np.array("")
    if found.ndim == 1 and not found.size:
        return np.empty(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "ib":
        raise InvalidDocument(f"column {name!r} is not a list of integers")
    return found.astype(np.int64)


def _chat(
    values: Sequence[Any],
    where: str,
    own_id: bytes | None,
    recipe: Recipe,
    template: ChatTemplate,
) -> Document:
    (column,) = recipe.columns
    messages = messages_of(values[0], column)
    tools = None
    if recipe.tools_column is not None:
        tools = tools_of(values[1], recipe.tools_column)
    written = canonical(messages)
    text, targets = rendered(messages, tools, template, column)
    if not text:
        raise InvalidDocument("empty document")
    _require_utf8(written)
    _require_utf8(text)
    return Document((text,), where, own_id, targets, written)


def _of_rows(
    rows: Rows, columns: Sequence[Column]
) -> Iterator[tuple[list[Any] | InvalidDocument, str]]:
    """Yield the values of documents, or the problem of one, and where they are."""
    for number, values in enumerate(zip(*rows.columns, strict=True), rows.first_row):
        where = f"row {number:,}"
        try:
            yield list(map(_of_cell, values, columns)), where
        except UnicodeDecodeError:
            yield InvalidDocument("invalid UTF-8"), where
        except InvalidDocument as error:
            yield error, where


def _of_cell(value: memoryview | None, column: Column) -> Any:
    if value is None:
        return _null(column)
    text = str(value, "utf-8")
    is_json = column.kind in ("json", "numbers")
    return _parsed(text, column) if is_json else _line_of(text, column)


def _of_lines(
    lines: Lines, columns: Sequence[Column]
) -> Iterator[tuple[list[Any] | InvalidDocument, str]]:
    first = lines.first_byte
    for line in lines.content.split(b"\n"):
        text = line if first else line.removeprefix(b"\xef\xbb\xbf")
        if text.strip():
            where = f"byte {first:,}"
            try:
                yield _of_line(text, columns), where
            except InvalidDocument as error:
                yield error, where
        first += len(line) + 1


def _of_line(line: bytes, columns: Sequence[Column]) -> list[Any]:
    try:
        entry = json.loads(line.decode())
    except UnicodeDecodeError:
        raise InvalidDocument("invalid UTF-8") from None
    except (ValueError, RecursionError):
        if line.strip() == b"[":
            raise InvalidDocument(_ARRAY) from None
        raise InvalidDocument("truncated line or invalid JSON") from None
    if isinstance(entry, list) and entry and isinstance(entry[0], dict):
        raise InvalidDocument(_ARRAY)
    if not isinstance(entry, dict):
        raise InvalidDocument("not a JSON object")
    require_not_refused(columns[0], entry)
    # Nothing else in UTF-8 makes half of a surrogate pair.
    has_escapes = b"\\u" in line
    return [_of_entry(entry, column, has_escapes=has_escapes) for column in columns]


def no_column(name: str, names: Collection[str]) -> tuple[str, str]:
    """Return what is wrong where a column is missing, with what to pass, and which there are.

    name: of the column.  names: all columns that there are; eight are named.
    """
    # Another name was passed on purpose.
    cure = _cure(names) if name == "text" else ""
    known = ", ".join(each[:40] for each in islice(names, 8))
    return f"no column {name!r}{cure}", f"it has {known or 'none'}"


def _cure(names: Collection[str]) -> str:
    """Return what to pass for columns as these, behind an error; "" for unknown ones."""
    if tokens := next((each for each in names if each.endswith("input_ids")), None):
        return f"; for tokens pass --tokens-column {tokens}"
    if "messages" in names:
        return "; for chats pass --messages-column messages"
    response = next((each for each in ("response", "completion") if each in names), None)
    if "prompt" in names and response:
        return f"; for pairs pass --prompt-column prompt --response-column {response}"
    return ""


def require_not_refused(column: Column, names: Collection[str]) -> None:
    """Raise InvalidDocument, which is fatal, if there are labels of tokens, or tools of chats, that
    nothing was said about.

    column: of the tokens or messages.  names: all columns that there are.
    """
    if found := [name for name in column.refuses if name in names]:
        what, option = "says which tokens are targets", "--labels-column"
        if column.kind == "json":
            what, option = "has the tools of chats, which the template uses", "--tools-column"
        problem = f"column {found[0]!r} {what}; pass {option} {found[0]}, or {option} none"
        raise InvalidDocument(problem, is_fatal=True)


def _of_entry(entry: dict[str, Any], column: Column, *, has_escapes: bool) -> Any:
    name, value = column.name, entry.get(column.name)
    if has_escapes and isinstance(value, str) and column.kind in ("text", "id"):
        _require_utf8(value)
    if isinstance(value, str) and column.kind == "text":
        return value
    if name not in entry and not column.is_optional:
        raise InvalidDocument(*no_column(name, entry))
    if value is None:
        return _null(column)
    if column.kind in ("json", "numbers"):
        return _parsed(value, column) if isinstance(value, str) else value
    if column.kind == "text":
        raise InvalidDocument(f"column {name!r} is not text")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InvalidDocument(f"column {name!r} is not text or an integer")
    return _line_of(value, column)


def _null(column: Column) -> None:
    if not column.is_optional:
        raise InvalidDocument(f"null in column {column.name!r}" if column.kind == "id" else "null")


def _parsed(text: str, column: Column) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidDocument(f"column {column.name!r} is not JSON") from None


def _line_of(text: str, column: Column) -> str:
    """Return text; of an id, which is a line of a file, without a line break."""
    if column.kind == "id" and ("\n" in text or "\r" in text):
        raise InvalidDocument(f"line break in column {column.name!r}")
    return text


def _require_utf8(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidDocument("half of a surrogate pair") from None
