"""The tables of the status page. Every text from outside passes through `_text`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tokenfeed.commands.status import words
from tokenfeed.commands.status.attention import StreamJudgement
from tokenfeed.commands.status.states import Level
from tokenfeed.v1 import status_pb2 as pb

from .drawing import bar, rate_line

MARKS = {Level.PROBLEM: "✖", Level.WARNING: "▲", Level.NOTICE: ""}
"""The colors alone would not be enough."""
CLASSES = {Level.PROBLEM: "problem", Level.WARNING: "warning", Level.NOTICE: "notice"}
_FINGERPRINT_SHOWN = 12

Column = tuple[str, str, str]
"""Heading; class of its cells; what it means."""

DATASET_COLUMNS: Sequence[Column] = (
    ("Dataset", "", "its name"),
    ("State", "", "whether it is served, and what is being made of it"),
    ("Rows/s", "number", "rows sent, averaged over 10 s"),
    ("Bytes/s", "number", "bytes of their tokens, averaged over 10 s"),
    ("Last minute", "drawn", "these bytes, second by second"),
    ("Tokens", "number", "tokens of all files"),
    ("Size", "number", "bytes of its tokens as they are served"),
    ("In memory", "number", "share of its pages that are in memory, of a sample of them"),
    ("Files", "number", "number of its files"),
    ("Format", "", "file format, and type of the tokens in it"),
    ("Fingerprint", "code", "hash of its content, shortened; point at it for all of it"),
)
STREAM_COLUMNS: Sequence[Column] = (
    ("State", "state", "what the client does; those with a problem come first"),
    ("Client", "name", "the name that the client gave itself, and its address"),
    ("Rank", "number", "data-parallel rank, of the world size"),
    ("Reads", "", "dataset, or those of a mixture; order, context length T, batch size B"),
    ("Sample", "number", "what its trainer got next when it last asked; and what was sent"),
    ("Tokens/s", "number", "tokens sent, averaged over 10 s"),
    ("Waits for us", "number", "share of the last 10 s in which the server made a frame for it"),
    ("We wait for it", "number", "share in which a frame was ready that it had not taken"),
    ("Idle", "number", "time since a frame was last sent to it"),
    ("Age", "number", "time since its first call"),
)
REFUSAL_COLUMNS: Sequence[Column] = (
    ("Status", "", "gRPC status that the client got"),
    ("Reason", "", "kind of error"),
    ("Calls", "number", "how many, since the start"),
)


def table(name: str, columns: Sequence[Column], rows: Iterable[str]) -> str:
    """Return a table that scrolls by itself where it is too wide.  name: what it shows."""
    heads = "".join(
        f'<th scope="col"{_class(kind)} title="{escape(what)}">{escape(heading)}</th>'
        for heading, kind, what in columns
    )
    return (
        f'<div class="table" role="region" aria-label="{escape(name)}" tabindex="0">'
        f'<table class="{escape(name)}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def dataset_row(dataset: pb.DatasetStatus) -> str:
    """Return the row of a dataset."""
    level = Level.PROBLEM if dataset.lost else Level.NOTICE
    memory = "unknown"
    if dataset.HasField("resident_share"):
        resident = dataset.resident_share
        memory = f"{bar(('used', resident))} {words.share(resident)}"
    fingerprint = dataset.fingerprint.hex()
    state = escape(words.state_of(dataset))
    cells = (
        _text(dataset.name),
        f"<strong>{MARKS[level]} {state}</strong>" if dataset.lost else state,
        words.amount(dataset.rows_per_second),
        f"{words.size(dataset.token_bytes_per_second)}/s",
        rate_line(dataset.second_bytes),
        f'<span title="{dataset.token_count:,}">{words.amount(dataset.token_count)}</span>',
        words.size(dataset.size_bytes),
        memory,
        f"{dataset.file_count:,}",
        f"{_text(dataset.format)}, {_text(dataset.dtype)}",
        f'<span title="{fingerprint}">{fingerprint[:_FINGERPRINT_SHOWN]}</span>',
    )
    return _row(level, DATASET_COLUMNS, cells)


def stream_row(seen: StreamJudgement) -> str:
    """Return the row of a stream."""
    stream, state = seen.status, seen.state
    address = escape(words.address(stream.address))
    trainer_sample, next_sample, *progress = words.progress_of(stream)
    cells = (
        f"{MARKS[state.level]} {state.label}",
        f"{_text(stream.client_name) or 'no name'}<small>{address}</small>",
        f"{stream.rank:,} of {stream.world_size:,}",
        f"{escape(words.data_of(stream))}<small>{escape(words.settings_of(stream))}</small>",
        f"{trainer_sample}<small>sent to {next_sample}</small>",
        *progress,
    )
    return _row(state.level, STREAM_COLUMNS, cells, state.name.lower())


def refusal_row(refusals: pb.Refusals) -> str:
    """Return the row of calls that were refused."""
    cells = _text(refusals.status), _text(refusals.reason), f"{refusals.count:,}"
    return _row(Level.NOTICE, REFUSAL_COLUMNS, cells)


def _row(level: Level, columns: Sequence[Column], cells: Sequence[str], kind: str = "") -> str:
    """Return a row.  cells: HTML.  kind: another class of it, which marks what is wrong."""
    marked = "".join(
        f"<td{_class(column[1])}>{cell}</td>" for column, cell in zip(columns, cells, strict=True)
    )
    return f'<tr class="{CLASSES[level]}{" " * bool(kind)}{kind}">{marked}</tr>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _text(text: str, most: int = words.NAME_SHOWN) -> str:
    """Return text from outside as HTML: bounded, and without effect."""
    return escape(words.printable(text, most))
