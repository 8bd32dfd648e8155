"""Mutants of valid requests, and a check of the answers that they get.

The requests, of one dataset and of mixtures, of batches and of single rows, are damaged field by
field and byte by byte. An oracle (oracle.py) returns the refusals that each of them deserves. A
request that deserves none has to be answered with the right rows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

from tests.support import reference
from tests.support.redacting import redact
from tests.support.waiting import eventually
from tokenfeed.sampling import orders
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import frame
from tokenfeed.wire.request import SampleList

from .oracle import (
    BLOCK_MAX,
    Complaint,
    Feed,
    Key,
    Request,
    Server,
    Tokens,
    complaints,
    describe_complaints,
    first_sample_of,
    parts_of,
    position,
    rows_promised,
    samples_of,
    shares_of,
)

WORKERS = 8
DEADLINE_SECONDS = 20.0
SERVICE = "/tokenfeed.v1.TokenFeed"
REQUEST_BYTES_MAX = 1 << 16
READ_ROWS_MAX = 4096
READ_BYTES_MAX = 1 << 18
"""Longer answers are read up to their first frame, which has half of it at most."""
ROWS_PLANNED = 10_000
ROWS_COMPARED = 100
"""Rows of a frame that are compared with the files: all, or this many to twice as many of them."""

EXTREMES = (
    0, 1, 1 << 20, (1 << 20) + 1, 1 << 31, 1 << 32, (1 << 32) + 1, 1 << 53, 1 << 62,
    (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
KINDS = (0, 1, 50, 50, 51, 51, 52, 52, 53, 53, 54, 99, 100, (1 << 32) - 1)
LONG_DOCUMENTS = ("cut", "drop", "truncate", "nonsense")
NAMES = (
    "", "nobody", "Train", "train ", "tr\x00ain", "träin", "列車", "🚂" * 30, "%s%n%x", "../..",
    "\n", "x" * 100, "y" * 10_000, "ß" * 20_000, "z" * 70_000, "random", "random-2", "RANDOM-1",
    "shuffled-1\x7f", "mixture-1", "mixture", "packed-1", "padded-1", "train", "docs", "shuffled-1",
    *LONG_DOCUMENTS,
)  # fmt: skip

NAME_SHOWN_BYTES = 64
FORBIDDEN = (
    "/",
    "\\",
    ".py",
    ".bin",
    ".npy",
    "Traceback",
    "Error(",
    "Exception",
    "0x",
    "Errno",
    "object at",
)
"""Text that would reveal a path or code, after the names that the caller sent are removed."""


DOCUMENTS = {
    "docs": [
        [2, 1, 300, 64, 65, 17, 18, 3, 0, 40, *range(1, 30), *range(2, 30)],
        [1, 5, 1000, 2, 2, 16, 33, *range(2, 15)],
    ]
}
"""Lengths of the documents of files that have an index of them."""
LENGTHS = (1, 2, 16, 63, 999)
MANY_ROWS = 1500
"""Rows of 64 tokens that take two frames."""
_LONG_OF = (("packed-1", "cut"), *(("padded-1", long) for long in LONG_DOCUMENTS[:3]))
KEYS: frozenset[Key] = frozenset((order, n, long) for n in LENGTHS[1:] for order, long in _LONG_OF)
"""Rows over documents, as many as a server opens. It refuses others."""
MASKS = {"val": [[token % 7 < 4 for token in range(2000)]]}
FILL = 7
RANGES = [(0, 3, 90), (1, 5, 6), (0, 100, 700), (1, 1006, 1100)]
REDACTIONS = {"docs": [reference.RedactionList(FILL, RANGES[:end]) for end in (2, 4)]}
"""The second list of a dataset has the ranges of the first one, and more."""


def open_feed(server: Server, files: Mapping[str, Sequence[Tokens]]) -> Feed:
    """Return a feed of the files of `write_files`, when its server has made its rows of KEYS."""
    feed = Feed(server, files, DOCUMENTS, MASKS, REDACTIONS, KEYS)
    with connected(server) as channel:
        describe = channel.unary_unary(f"{SERVICE}/Describe")
        for order, length, long in sorted(KEYS):
            request = pb.DescribeRequest(
                dataset="docs", order=order, context_length=length, long_documents=long
            )
            assert eventually(lambda request=request: is_made(describe, request), seconds=20)
    return feed


def is_made(describe: grpc.UnaryUnaryMultiCallable[bytes, bytes], request: Message) -> bool:
    answer = describe(request.SerializeToString(), timeout=DEADLINE_SECONDS)
    return bool(pb.DescribeResponse.FromString(answer).datasets[0].rows[-1].pieces_hash)


def write_files(folder: Path) -> dict[str, list[Tokens]]:
    """Write four datasets of random tokens: "train" has two files, "wide" has tokens of four bytes,
    "val" has a loss mask, and the files of "docs" have an index of their documents, and lists of
    redacted tokens.  Returns: their tokens.
    """
    numbers = np.random.default_rng(1)
    files: dict[str, list[Tokens]] = {
        "train": [numbers.integers(0, 50_000, count, dtype=np.uint16) for count in (3000, 1000)],
        "val": [numbers.integers(0, 50_000, 2000, dtype=np.uint16)],
        "wide": [numbers.integers(0, 150_000, 1500, dtype=np.uint32)],
    }
    for name, lengths in DOCUMENTS.items():
        files[name] = [numbers.integers(0, 50_000, sum(one), dtype=np.uint16) for one in lengths]
    for name, shards in files.items():
        for path, tokens in zip(paths(folder, name, shards), shards, strict=True):
            if path.suffix == ".npy":
                np.save(path, tokens)
            else:
                tokens.tofile(path)
    for name, lengths in DOCUMENTS.items():
        for path, one in zip(paths(folder, name, files[name]), lengths, strict=True):
            np.cumsum(one).astype("<u8").tofile(f"{path}.index")
    for name, masks in MASKS.items():
        for path, mask in zip(mask_paths(folder, name), masks, strict=True):
            np.array(mask, np.uint8).tofile(path)
    for name, lists in REDACTIONS.items():
        for one in lists:
            listed = redact(paths(folder, name, files[name]), *one.ranges, fill=FILL)
            assert listed == reference.list_hash(*one).hex()
    return files


def paths(folder: Path, name: str, shards: Sequence[Tokens]) -> list[Path]:
    suffix = {"wide": ".npy", "docs": ".ds"}.get(name, ".bin")
    return [folder / f"{name}{index}{suffix}" for index in range(len(shards))]


def mask_paths(folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}{index}.loss" for index in range(len(MASKS[name]))]


def data_arguments(folder: Path, files: Mapping[str, Sequence[Tokens]]) -> list[str]:
    """Return the options that serve them."""
    arguments = []
    for name, shards in files.items():
        first, *others = map(str, paths(folder, name, shards))
        arguments += ["--data", f"{name}={first}", *others]
    for name in MASKS:
        first, *others = map(str, mask_paths(folder, name))
        arguments += ["--loss-mask", f"{name}={first}", *others]
    return arguments


# Mutants.


@dataclass(frozen=True)
class Mutant:
    """A message for a method.  kind: how it was made."""

    kind: str
    method: str
    message: bytes


def make_mutants(feed: Feed, count: int, seed: int) -> Iterator[Mutant]:
    """Yield mutants of valid requests, always the same ones for a seed."""
    for index in range(count):
        rng = random.Random(f"{seed}-{index}")
        kind = rng.choices(("fields", "bytes", "describe"), (45, 45, 10))[0]
        if kind == "describe":
            message = describe_request(rng).SerializeToString()
            yield Mutant(
                kind, "Describe", message if rng.random() < 0.5 else mutate_bytes(message, rng)
            )
            continue
        is_list = rng.random() < 0.25
        request = valid_rows_request(feed, rng) if is_list else valid_request(feed, rng)
        if kind == "fields":
            for _ in range(rng.choice((0, 1, 1, 2, 3))):
                mutate_field(request, rng)
            message = request.SerializeToString()
        else:
            message = request.SerializeToString()
            for _ in range(rng.choice((1, 1, 2, 4))):
                message = mutate_bytes(message, rng)
        yield Mutant(kind, "GetRows" if is_list else "GetBatch", message)


def valid_request(feed: Feed, rng: random.Random) -> pb.GetBatchRequest:
    batch_size, world_size = rng.choice((1, 2, 3, 8)), rng.choice((1, 1, 2, 7))
    if rng.random() < 0.03:
        batch_size = MANY_ROWS
    request = pb.GetBatchRequest(
        batch_size=batch_size,
        first_sample=rng.choice((0, rng.getrandbits(20), rng.getrandbits(62))),
        first_row=rng.randrange(batch_size),
        num_batches=rng.randrange(4),
        rank=rng.randrange(world_size),
        world_size=world_size if world_size > 1 or rng.random() < 0.5 else None,
    )
    if rng.random() < 0.3:
        request.end_sample = request.first_sample + rng.randrange(40)
    add_stream(request, feed, rng)
    return request


def valid_rows_request(feed: Feed, rng: random.Random) -> pb.GetRowsRequest:
    """Return a request for rows near each other, or anywhere."""
    bits, first = rng.choice((5, 20, 63)), rng.getrandbits(rng.choice((1, 20, 62)))
    count = MANY_ROWS if rng.random() < 0.1 else rng.randrange(1, 30)
    samples = [min(first + rng.getrandbits(bits), (1 << 63) - 1) for _ in range(count)]
    request = pb.GetRowsRequest(samples=samples)
    add_stream(request, feed, rng)
    return request


def add_stream(request: Request, feed: Feed, rng: random.Random) -> None:
    """Add a stream to a request for some rows, and what is asked of it."""
    request.stream.CopyFrom(valid_stream(feed, rng, first_sample_of(request)))
    stream, kinds = request.stream, feed.kinds(request.stream)
    count = rng.choice((0, 0, len(kinds), rng.randrange(len(kinds) + 1)))
    wanted = rng.sample(sorted(kinds), count)
    if stream.redactions and 53 not in wanted:
        wanted.append(53)
    for kind in wanted:
        is_expected = rng.random() < 0.5
        fingerprint = feed.plane_fingerprint(stream, kind) if is_expected else b""
        request.planes.add(kind=kind, expected_fingerprint=fingerprint)
    if 51 in kinds and 51 not in wanted:
        request.declined_planes.append(51)
    if rng.random() < 0.5:
        request.expected_identity = feed.identity(stream)
    if rng.random() < 0.3:
        request.client_name = rng.choice(NAMES)
        request.declined_planes.extend(rng.choice(([51], [0, 51, 52], [(1 << 32) - 1])))


def valid_stream(feed: Feed, rng: random.Random, first: int) -> pb.Stream:
    """Return a stream over one dataset, or a mixture, whose sources may have the same dataset.

    first: the sample from which on it may be read.
    """
    stream = pb.Stream(seed=any_seed(rng), stage=pb.Stage(context_length=rng.choice(LENGTHS)))
    stage, number = stream.stage, 0
    if rng.random() < 0.5:
        stage.index = rng.choice((0, 1, rng.getrandbits(32)))
        stage.first_sample = rng.choice((0, first, rng.randrange(first + 1)))
        number = rng.choice((0, 0, 3))
        if stage.index or rng.random() < 0.5:
            stage.previous_identity = rng.randbytes(32) if stage.index else bytes(32)
        for _ in range(rng.choice((1, 1, 2, 3, 5))):
            add_source(stream, feed, rng, number)
            stage.shares.add(
                source=number,
                weight=rng.choice((1, 2, 70, rng.randrange(1, 1 << 17))),
                base=rng.choice((0, rng.getrandbits(20), rng.getrandbits(62))),
            )
            number += rng.choice((1, 1, 5, 1 << 28))
    else:
        add_source(stream, feed, rng, 0)
    own = [each for each in stream.sources if feed.lists[each.dataset]]
    listed = {
        (rng.choice((0, first, rng.randrange(first + 1))), source.number, hashed)
        for source in own * rng.randrange(2)
        for hashed in rng.sample([*feed.lists[source.dataset]], rng.randrange(3))
    }
    for begin, number, hashed in sorted(listed):
        stream.redactions.add(first_sample=begin, source=number, list_hash=hashed)
    return stream


def add_source(stream: pb.Stream, feed: Feed, rng: random.Random, number: int) -> None:
    """Name a dataset and its order, and perhaps the digest."""
    source = stream.sources.add(number=number, seed=any_seed(rng))
    source.dataset = rng.choice([*feed.files, *feed.documents])
    # The order of blocks refuses most context lengths; tests/end_to_end/corpora/test_blocks.py.
    names = [name for name, order in orders.OF_WINDOWS.items() if not order.BLOCK_TOKENS]
    source.order = rng.choice(("", *names))
    keys = sorted(key for key in feed.keys if key[1] == stream.stage.context_length)
    if source.dataset in feed.documents and keys and rng.random() < 0.7:
        source.order, _, source.long_documents = rng.choice(keys)
    if rng.random() < 0.2:
        source.expected_digest = feed.digests[source.dataset]


def any_seed(rng: random.Random) -> int:
    return rng.choice((0, 7, rng.getrandbits(64)))


def mutate_field(request: Request, rng: random.Random) -> None:
    """Set a field of the request, or of a message within it, to something extreme, or unset it."""
    if rng.random() < 0.02:
        add_sources(request.stream, rng)
        return
    kinds: dict[str, list[Message]] = {}
    for part in all_parts(request):
        kinds.setdefault(part.DESCRIPTOR.name, []).append(part)
    message: Message = request
    if rng.random() < 0.7:
        message = rng.choice(kinds[rng.choice(sorted(kinds))])
    field = rng.choice(message.DESCRIPTOR.fields)
    if rng.random() < (0.4 if field.is_repeated else 0.15):
        message.ClearField(field.name)
    elif rng.random() < 0.1:
        merge_foreign_field(message, rng)
    elif field.is_repeated:
        mutate_list(getattr(message, field.name), field, rng, request)
    elif field.message_type is not None:
        getattr(message, field.name).Clear()
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, any_value(field, rng, request))


def all_parts(message: Message) -> Iterator[Message]:
    """Yield a message, and all messages within it."""
    yield message
    for part in parts_of(message):
        yield from all_parts(part)


def any_value(field: Any, rng: random.Random, request: Request) -> object:
    """Return a value for a field: often the limit of it, or a number that occurs elsewhere."""
    if field.type == field.TYPE_STRING:
        return rng.choice(NAMES)
    if field.type == field.TYPE_BYTES:
        return any_hash(rng)
    if field.type == field.TYPE_BOOL:
        return rng.random() < 0.5
    number = any_number(rng)
    if field.name == "weight" and rng.random() < 0.4:
        weights = [share.weight for share in shares_of(request.stream.stage)]
        number = BLOCK_MAX - sum(weights) + rng.choice(weights) + rng.randrange(2)
    elif field.name in ("kind", "declined_planes"):
        number = rng.choice(KINDS)
    elif field.name == "first_sample" and rng.random() < 0.6:
        number = first_sample_of(request) + rng.randrange(2)
    elif rng.random() < 0.5:
        others = [value for part in all_parts(request) for value in numbers_in(part)]
        number = rng.choice([0, *others]) + rng.choice((-1, 0, 0, 1))
    return number % (1 << 32 if field.type == field.TYPE_UINT32 else 1 << 64)


def numbers_in(message: Message) -> Iterator[int]:
    for _, value in message.ListFields():
        if type(value) is int:
            yield value


def mutate_list(values: Any, field: Any, rng: random.Random, request: Request) -> None:
    """Shuffle what a repeated field has, repeat some of it, drop some, or add to it."""
    kind, count = rng.randrange(4), len(values)
    if field.message_type is None and kind < 2:
        values.extend(any_value(field, rng, request) for _ in range(rng.choice((1, 2, 500))))
        return
    if field.message_type is not None and kind == 0:
        values.add(**({"kind": rng.choice(KINDS)} if field.name == "planes" else {}))
        return
    kept = rng.sample(list(values), count)
    if kind == 1:
        kept = kept[: rng.randrange(count + 1)]
    elif kind == 2:
        kept += kept[: rng.randrange(2)] * rng.choice((1, 1, 500, 10_000))
    del values[:]
    values.extend(kept)


def add_sources(stream: pb.Stream, rng: random.Random) -> None:
    """Add many sources, which may all be valid."""
    for share in () if stream.stage.shares else shares_of(stream.stage):
        stream.stage.shares.add().CopyFrom(share)
    first = stream.sources[-1].number + 1 if stream.sources else 0
    step = rng.choice((-1, 0, 1, 1, 1))
    for n in range(rng.choice((100, 1000, 2000))):
        number = (first + step * n) % (1 << 32)
        stream.sources.add(number=number, dataset="train")
        stream.stage.shares.add(source=number, weight=1)


def merge_foreign_field(message: Message, rng: random.Random) -> None:
    """Add a field of any number and type to a message, unless that cannot be read."""
    number = rng.choice((*range(1, 20), 50, 99, 100, 101, 19_000))
    try:
        message.MergeFromString(field_of_any_type(number, rng))
    except DecodeError:
        return


def any_number(rng: random.Random) -> int:
    return rng.choice((*EXTREMES, rng.getrandbits(rng.randrange(1, 65))))


def any_hash(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 31, 32, 33, 64, 5000)))


def describe_request(rng: random.Random) -> pb.DescribeRequest:
    length = rng.choice((None, *EXTREMES, 64, 1000, 3000, *LENGTHS))
    request = pb.DescribeRequest(
        dataset=rng.choice(("", "train", "val", *["docs"] * 6, *NAMES)), context_length=length
    )
    if rng.random() < 0.3:
        request.order = rng.choice(("packed-1", "padded-1", "shuffled-1", *NAMES))
    if rng.random() < 0.1:
        request.long_documents = rng.choice(LONG_DOCUMENTS)
    return request


def mutate_bytes(message: bytes, rng: random.Random) -> bytes:
    """Damage an encoded message, or insert a field that its schema does not have."""
    first, end = sorted((rng.randrange(len(message) + 1), rng.randrange(len(message) + 1)))
    kind = rng.randrange(10)
    if kind == 0 and message:  # a flipped bit
        place = rng.randrange(len(message))
        return (
            message[:place] + bytes([message[place] ^ 1 << rng.randrange(8)]) + message[place + 1 :]
        )
    if kind == 1 and message:  # another byte
        place = rng.randrange(len(message))
        return message[:place] + rng.randbytes(1) + message[place + 1 :]
    if kind == 2:  # cut short
        return message[:end]
    if kind == 3:  # a piece missing
        return message[:first] + message[end:]
    if kind == 4:  # a piece inserted
        return message[:first] + rng.randbytes(rng.choice((1, 2, 10, 300))) + message[first:]
    if kind == 5:  # a piece repeated: often whole fields, of which the last one counts
        return message[:end] + message[first:end] + message[end:]
    if kind == 6:  # all of it again, or most
        return message + message[rng.choice((0, first)) :]
    known = rng.choice((*range(1, 13), 100))
    unknown = rng.choice((0, 20, 50, 99, 101, 19_000, (1 << 29) - 1))
    field = field_of_any_type(known if kind == 7 else unknown, rng)
    if kind == 9:
        field = groups(unknown, rng.choice((1, 3, 90, 200, 5000)), closed=rng.random() < 0.7)
    return message + field if rng.random() < 0.7 else field + message


def field_of_any_type(number: int, rng: random.Random) -> bytes:
    """Return a field of any wire type, whatever the schema says. Types 6 and 7 do not exist."""
    wire_type = rng.randrange(8)
    tag = varint(number << 3 | wire_type)
    if wire_type == 0:
        overlong = bytes([0x80] * rng.randrange(12) + [rng.randrange(128)])
        return tag + rng.choice((varint(rng.choice(EXTREMES)), overlong))
    if wire_type == 1:
        return tag + rng.randbytes(8)
    if wire_type == 2:
        content = rng.randbytes(rng.choice((0, 1, 32, 200)))
        return (
            tag
            + varint(rng.choice((len(content), len(content), len(content) + 1, 1 << 31, 1 << 63)))
            + content
        )
    if wire_type == 3:
        return groups(number, 1, closed=rng.random() < 0.5)
    return tag + (rng.randbytes(4) if wire_type == 5 else b"")


def groups(number: int, depth: int, *, closed: bool) -> bytes:
    return varint(number << 3 | 3) * depth + (varint(number << 3 | 4) * depth if closed else b"")


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


# The judge: sends mutants, and compares the answers with what they deserve.


@dataclass(frozen=True)
class Verdict:
    """The answer to a mutant.

    parsed: whether it passed the first check.  words: what kinds of rows arrived, if any.  wrong:
    the error in the answer, or empty.
    """

    mutant: Mutant
    status: str
    parsed: bool
    words: frozenset[str]
    wrong: str = ""

    def __str__(self) -> str:
        return f"{self.wrong}: {self.mutant.method} {self.mutant.message[:300].hex()}"


WORDS = frozenset({"windows", "documents", "mixtures", "redacted", "masked", "listed"})


def words_of(request: Request) -> frozenset[str]:
    """Return which of WORDS are true of the rows of a valid request."""
    stream = request.stream
    is_over = {source.order in reference.DOCUMENT_ORDERS for source in stream.sources}
    facts = {
        "windows": False in is_over,
        "documents": True in is_over,
        "mixtures": len(stream.sources) > 1,
        "redacted": bool(stream.redactions),
        "masked": 51 in [plane.kind for plane in request.planes],
        "listed": isinstance(request, pb.GetRowsRequest),
    }
    return frozenset(word for word, is_true in facts.items() if is_true)


REQUESTS = {
    "GetBatch": pb.GetBatchRequest,
    "GetRows": pb.GetRowsRequest,
    "Describe": pb.DescribeRequest,
}


def judge_all(feed: Feed, mutants: Sequence[Mutant]) -> list[Verdict]:
    """Send all of them, over a few connections at a time."""

    def judge_share(share: Sequence[Mutant]) -> list[Verdict]:
        with connected(feed.server) as channel:
            return [judge(feed, channel, mutant) for mutant in share]

    shares = [mutants[first::WORKERS] for first in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS) as workers:
        return [verdict for part in workers.map(judge_share, shares) for verdict in part]


def judge(feed: Feed, channel: grpc.Channel, mutant: Mutant) -> Verdict:
    request, is_message = REQUESTS[mutant.method](), True
    try:
        request.ParseFromString(mutant.message)
    except DecodeError:
        is_message = False
    call = channel.unary_stream(f"{SERVICE}/{mutant.method}")(
        mutant.message, timeout=DEADLINE_SECONDS
    )
    frames: list[bytes] = []
    is_of_rows = not isinstance(request, pb.DescribeRequest)
    frame_limit = frames_to_read(request) if is_message and is_of_rows else None
    status, details, metadata = outcome(call, frames, frame_limit)
    parsed = len(mutant.message) <= REQUEST_BYTES_MAX and not details.startswith(
        "request: is not a valid"
    )
    wrong = ""
    try:
        if len(mutant.message) > REQUEST_BYTES_MAX:
            assert status == "RESOURCE_EXHAUSTED", f"{status}: {details}"
        elif not is_message:
            assert_refusal({("request", "INVALID_ARGUMENT")}, status, details, metadata)
        elif isinstance(request, pb.DescribeRequest):
            judge_described(feed, request, frames, (status, details, metadata))
        else:
            judge_rows(feed, request, frames, (status, details, metadata))
    except Exception as error:  # noqa: BLE001 - collected with its message
        wrong = repr(error)
    words = words_of(request) if frames and is_of_rows else frozenset[str]()
    return Verdict(mutant, status, parsed, words, wrong)


Outcome = tuple[str, str, tuple[object, ...]]
"""Status, details and trailing metadata of a call."""


def judge_described(
    feed: Feed, request: pb.DescribeRequest, answers: list[bytes], ended: Outcome
) -> None:
    if deserved := describe_complaints(feed, request):
        assert_refusal(
            deserved, *ended, sent=(request.dataset, request.order, request.long_documents)
        )
    else:
        assert ended[0] == "OK", ended
        described = pb.DescribeResponse.FromString(answers[0]).datasets
        if request.order:
            rows = feed.document_rows(request, request.context_length)
            counted = described[0].rows[-1]
            assert (counted.order, counted.rows) == (request.order, len(rows))
            assert counted.pieces_hash == feed.pieces_hash(request, request.context_length)
        names = [data.name for data in described]
        assert names == ([request.dataset] if request.dataset else sorted(feed.files))


def judge_rows(feed: Feed, request: Request, messages: list[bytes], ended: Outcome) -> None:
    stream = request.stream
    sent = {
        text
        for source in stream.sources
        for text in (source.dataset, source.order, source.long_documents)
    }
    if deserved := complaints(feed, request):
        assert not messages, "frames before a refusal"
        assert_refusal(deserved, *ended, sent=sent)
        return
    kinds = sorted(plane.kind for plane in request.planes)
    frames = frame.Frames(
        stream.stage.context_length + 1,
        SampleList(np.array(request.samples))
        if isinstance(request, pb.GetRowsRequest)
        else position(request),
        feed.identity(stream),
        {kind: feed.plane_fingerprint(stream, kind) for kind in kinds},
    )
    begin = 0 if isinstance(request, pb.GetRowsRequest) else request.first_row
    next_row = begin
    for message in messages:
        decoded = frame.decode(message)
        rows = decoded.rows(frames, next_row)
        assert decoded.token_bytes == feed.token_bytes(stream)
        assert [plane.kind for plane in rows.planes] == kinds
        compared = range(0, len(rows), max(1, len(rows) // ROWS_COMPARED))
        samples = samples_of(request, [next_row + row for row in compared])
        for row, sample in zip(compared, samples, strict=True):
            assert feed.is_defined(stream, sample), f"a row of sample {sample}, which has none"
            expected = feed.row(stream, sample)
            np.testing.assert_array_equal(rows.tokens[row], expected.tokens)
            for plane in rows.planes:
                assert plane[row : row + 1].content.tobytes() == expected.planes[plane.kind]
        assert decoded.tokens.size <= 1 << 20
        # Each plane has a fingerprint, and says how many bytes each row has.
        planes_bytes = sum(64 + 2 * len(rows) + plane.content.size for plane in rows.planes)
        assert len(message) - decoded.tokens.size < 128 + planes_bytes
        next_row += len(rows)
    if ended[:1] == ("OUT_OF_RANGE",) and ended[1].startswith("base: "):
        assert not all_defined(feed, request), ended
    elif frames_to_read(request) is not None and rows_promised(request):
        assert messages, f"no frame: {ended}"
        assert ended[0] == "cancelled by us", ended
    else:
        assert next_row - begin == rows_promised(request), "not the rows promised"
        if has_end(request):
            assert ended[0] == "OK", ended
        else:
            assert_refusal({("first_sample", "OUT_OF_RANGE")}, *ended, sent=sent)


def all_defined(feed: Feed, request: Request) -> bool:
    """Return whether the contract defines all rows of a valid request; of a long one, all that a
    server may have planned.
    """
    begin = 0 if isinstance(request, pb.GetRowsRequest) else request.first_row
    rows = range(begin, begin + min(rows_promised(request), ROWS_PLANNED))
    return all(feed.is_defined(request.stream, one) for one in samples_of(request, rows))


def has_end(request: Request) -> bool:
    """Return whether it ends below sample 2^63."""
    is_list = isinstance(request, pb.GetRowsRequest)
    return is_list or request.HasField("num_batches") or request.HasField("end_sample")


def assert_refusal(
    deserved: set[Complaint],
    status: str,
    details: str,
    metadata: tuple[object, ...],
    sent: Iterable[str] = (),
) -> None:
    """Check that a refusal is one of those deserved, is a sentence, and reveals nothing else."""
    subject, colon, problem = details.partition(": ")
    assert colon, f"{status} {details!r} names no field"
    assert (subject, status) in deserved, (
        f"{status} {details!r}, but deserved is {sorted(deserved)}"
    )
    assert len(problem.split()) >= 3, f"{details!r} is not a sentence"
    assert re.fullmatch(r"[^\r\n]*[\w)'\"\]]\.?", problem), (
        f"{details!r} does not end like a sentence"
    )
    assert not metadata, f"{metadata} says more than the refusal"
    for name in filter(None, sent):
        cut = name.encode()[:NAME_SHOWN_BYTES].decode(errors="ignore")
        details = details.replace(repr(cut), "''")
    shown = [piece for piece in FORBIDDEN if piece in details]
    assert not shown, f"{details!r} shows {shown}"


def frames_to_read(request: Request) -> int | None:
    """Return the number of frames after which to cancel a long call; None to read all of it."""
    try:
        rows = rows_promised(request)
    except Exception:  # noqa: BLE001 - the position is invalid and will be refused
        return 1
    row_bytes = (request.stream.stage.context_length + 1) * 2
    return None if rows <= READ_ROWS_MAX and rows * row_bytes <= READ_BYTES_MAX else 1


def outcome(
    call: grpc.CallIterator[bytes], frames: list[bytes], frame_limit: int | None = None
) -> Outcome:
    """Read a call to its end, or cancel it after frame_limit frames."""
    try:
        for message in call:
            frames.append(message)
            if len(frames) == frame_limit:
                call.cancel()
                return "cancelled by us", "", ()
    except grpc.RpcError as error:
        return error.code().name, error.details() or "", tuple(error.trailing_metadata() or ())
    return "OK", "", tuple(call.trailing_metadata() or ())


def connected(server: Server) -> grpc.Channel:
    """Return a channel with its own connection."""
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
    return grpc.insecure_channel(server.address, options)


def still_serves(feed: Feed) -> None:
    """Check that the same process serves the right tokens, and logged no unexpected error."""
    assert feed.server.process.poll() is None
    with connected(feed.server) as channel:
        for number in range(5):
            request = valid_request(feed, random.Random(number))
            request.ClearField("client_name")  # some names are longer than a request may be
            verdict = judge(feed, channel, Mutant("valid", "GetBatch", request.SerializeToString()))
            assert not verdict.wrong, verdict
            assert verdict.status == "OK"
    log = feed.server.stderr
    assert "Traceback" not in log
    assert "call failed peer" not in log
