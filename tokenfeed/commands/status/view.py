"""What is shown of a status, and in which order: for the page of a server and for `tokenfeed top`.

Pure: a status goes in; printable, bounded text and numbers come out. A figure or a column that is
added here is on the page and in the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...v1 import status_pb2 as pb
from . import words
from .attention import Judgement, StreamJudgement, health, judge
from .states import Level

_FINGERPRINT_SHOWN = 12


class Column(NamedTuple):
    """A column of a table.

    heading: names it.  meaning: explains it.  rank: says what goes first where there is no room for
    all columns, the highest one.  kind: says how its cells look: "number", "drawn", "code", "name";
    "state" and "status" have a mark if their row is a problem.  below: a page sets its cells below
    those of the column before it, behind this text; None makes it a column of its own.
    """

    heading: str
    meaning: str
    rank: int
    kind: str = ""
    below: str | None = None


class Cell(NamedTuple):
    """A cell of a table, or the value of a figure.

    text: is shown.  title: says it in full, to those who point at it.  share: is drawn beside it,
    in [0, 1].  line: is drawn, beside it: the bytes of each of the last seconds.
    """

    text: str
    title: str = ""
    share: float | None = None
    line: Sequence[int] | None = None


class Row(NamedTuple):
    """A row of a table.  level: says how bad it is.  kind: names the state of a client."""

    level: Level
    cells: Sequence[Cell]
    kind: str = ""


class Table(NamedTuple):
    """A table.

    name: says what its rows are.  title: stands above it.  omitted: counts the rows that are not
    listed.  empty: stands in its place if it has no row; "" leaves out the title too.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    omitted: int = 0
    empty: str = ""


class Figure(NamedTuple):
    """A number of the server.  name, word: name it above the number, and in a line.  of: says what
    it is a part of.  since: says since when it counts, where there is room.
    """

    name: str
    word: str
    value: Cell
    of: str = ""
    since: str = ""


class View(NamedTuple):
    """What is shown, from top to bottom.  level, health: say whether the server serves."""

    version: str
    level: Level
    health: str
    age: str
    started: str
    now: str
    judgement: Judgement
    figures: Sequence[Figure]
    tables: Sequence[Table]


DATASET_COLUMNS = (
    Column("Dataset", "its name", 0),
    Column("State", "whether it is served, and what is being made of it", 1, "status"),
    Column("Rows/s", "rows sent, averaged over 10 s", 4, "number"),
    Column("Bytes/s", "bytes of their tokens, averaged over 10 s", 2, "number"),
    Column("Last minute", "these bytes, second by second", 5, "drawn"),
    Column("Tokens", "tokens of all files", 6, "number"),
    Column("Size", "bytes of its tokens as they are served", 3, "number"),
    Column("In memory", "share of its pages in memory, of a sample of them", 3, "number"),
    Column("Files", "number of its files", 7, "number"),
    Column("Format", "file format, and type of the tokens in it", 7),
    Column("Fingerprint", "hash of its content, shortened; point at it for all of it", 8, "code"),
)
CLIENT_COLUMNS = (
    Column("State", "what the client does; those with a problem come first", 0, "state"),
    Column("Client", "the name that the client gave itself", 0, "name"),
    Column("Address", "where it called from", 8, below=""),
    Column("Rank", "data-parallel rank, of the world size", 1, "number"),
    Column("Reads", "dataset, or those of a mixture", 5),
    Column("Order", "order, context length T, batch size B", 7, below=""),
    Column("Trainer at", "sample that its trainer got next when it last asked", 3, "number"),
    Column("Sent to", "sample up to which it was sent rows", 4, "number", below="sent to "),
    Column("Tokens/s", "tokens sent, averaged over 10 s", 1, "number"),
    Column("Waits for us", "share of 10 s in which the server made a frame for it", 2, "number"),
    Column("We wait", "share in which a frame was ready that it had not taken", 2, "number"),
    Column(
        "Idle",
        "time since a frame was last sent to it, or since it asked again after a pause",
        1,
        "number",
    ),
    Column("Age", "time since its first call", 6, "number"),
)
_OBJECT_COLUMNS = (
    Column("For", "what the bytes were read for", 0),
    Column("Requests", "how many, since the start", 0, "number"),
    Column("Bytes", "how many came, since the start", 0, "number"),
)
_REFUSAL_COLUMNS = (
    Column("Status", "gRPC status that the client got", 0),
    Column("Reason", "kind of error", 0),
    Column("Calls", "how many, since the start", 0, "number"),
)
_OBJECTS_READ_FOR = {"row": "rows", "block": "blocks of files", "index": "indices and lists"}


def view_of(status: pb.GetStatusResponse) -> View:
    """Return what is shown of a status."""
    judgement = judge(status)
    level, word = health(status)
    datasets = sorted(status.datasets, key=lambda each: not each.lost)
    return View(
        words.printable(status.server_version),
        level,
        word,
        words.age(status),
        words.time(status.started_ms),
        words.time(status.now_ms),
        judgement,
        [*_figures(status)],
        (
            Table("datasets", "Datasets", DATASET_COLUMNS, [*map(_dataset, datasets)]),
            Table(
                "clients",
                "Clients",
                CLIENT_COLUMNS,
                [*map(_client, judgement.streams)],
                status.streams_omitted,
                "No client has read yet.",
            ),
            Table(
                "objects",
                "Requests to object stores since the start",
                _OBJECT_COLUMNS,
                [*map(_objects, status.object_requests)],
            ),
            Table(
                "refusals",
                "Calls refused since the start",
                _REFUSAL_COLUMNS,
                [*map(_refusals, status.refusals)],
            ),
        ),
    )


def _figures(status: pb.GetStatusResponse) -> list[Figure]:
    used, limit = status.anonymous_bytes, status.memory_limit_bytes
    sends = Cell(f"{words.size(status.bytes_per_second)}/s", line=status.second_bytes)
    is_open = Cell(
        f"{status.streams_open:,}", share=status.streams_open / max(1, status.streams_max)
    )
    memory = Cell(words.size(used), share=used / limit if limit else 0.0)
    refused = Cell(f"{sum(each.count for each in status.refusals):,}")
    cut_off = Cell(f"{status.evictions:,}")
    figures = [
        Figure("Sends", "sends", sends),
        Figure("Open streams", "streams", is_open, f"of about {status.streams_max:,}"),
        Figure("Memory, without files", "memory", memory, f"of {words.size(limit)}"),
        Figure("Threads", "threads", Cell(f"{status.threads:,}")),
        Figure("Calls refused", "refused", refused, since="since the start"),
        Figure("Clients cut off", "cut off", cut_off, since="since the start"),
    ]
    if status.object_requests:
        came = Cell(words.size(sum(each.bytes for each in status.object_requests)))
        count = sum(each.requests for each in status.object_requests)
        figures.append(Figure("From object stores", "objects", came, f"in {count:,} requests"))
    if status.HasField("object_cache"):
        cache = status.object_cache
        filled = cache.cached_blocks / max(1, cache.blocks)
        hits = cache.hits / max(1, cache.hits + cache.misses)
        size = Cell(words.size(cache.cached_blocks << 20), share=filled)
        of = f"of {words.size(cache.blocks << 20)}, for {words.share(hits)} of the rows"
        figures.append(Figure("In the object cache", "cached", size, of))
    return figures


def _dataset(dataset: pb.DatasetStatus) -> Row:
    is_known = dataset.HasField("resident_share")
    resident = dataset.resident_share
    fingerprint = dataset.fingerprint.hex()
    return Row(
        Level.PROBLEM if dataset.lost else Level.NOTICE,
        (
            Cell(words.printable(dataset.name)),
            Cell(words.state_of(dataset)),
            Cell(words.amount(dataset.rows_per_second)),
            Cell(f"{words.size(dataset.token_bytes_per_second)}/s"),
            Cell("", line=dataset.second_bytes),
            Cell(words.amount(dataset.token_count), f"{dataset.token_count:,}"),
            Cell(words.size(dataset.size_bytes)),
            Cell(words.share(resident), share=resident) if is_known else Cell("unknown"),
            Cell(f"{dataset.file_count:,}"),
            Cell(f"{words.printable(dataset.format)}, {words.printable(dataset.dtype)}"),
            Cell(fingerprint[:_FINGERPRINT_SHOWN], fingerprint),
        ),
    )


def _client(seen: StreamJudgement) -> Row:
    stream, state = seen.status, seen.state
    texts = (
        state.label,
        words.printable(stream.client_name) or "no name",
        words.address(stream.address),
        f"{stream.rank:,} of {stream.world_size:,}",
        words.data_of(stream),
        words.settings_of(stream),
        f"{stream.trainer_sample:,}" if stream.HasField("trainer_sample") else "unknown",
        f"{stream.next_sample:,}",
        words.amount(stream.tokens_per_second),
        words.share(stream.waits_for_server),
        words.share(stream.waits_for_client),
        words.duration(stream.idle_seconds),
        words.duration(stream.age_seconds),
    )
    return Row(state.level, [*map(Cell, texts)], state.name.lower())


def _objects(requests: pb.ObjectRequests) -> Row:
    reason = words.printable(requests.reason)
    texts = _OBJECTS_READ_FOR.get(reason, reason), f"{requests.requests:,}"
    return Row(Level.NOTICE, [*map(Cell, texts), Cell(words.size(requests.bytes))])


def _refusals(refusals: pb.Refusals) -> Row:
    texts = words.printable(refusals.status), words.printable(refusals.reason)
    return Row(Level.NOTICE, [*map(Cell, texts), Cell(f"{refusals.count:,}")])
