"""Mutants of valid requests, and a check of the answers that they get.

The requests, of one dataset and of mixtures, are damaged field by field and byte by byte. An oracle
(oracle.py) returns the refusals that each of them deserves. A request that deserves none has to be
answered with the right tokens.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

from tests.support import reference
from tests.support.waiting import eventually
from tokenfeed.sampling import orders
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import frame

from .oracle import (
    BLOCK_MAX,
    MIXTURE,
    Complaint,
    Feed,
    Key,
    Server,
    Source,
    Tokens,
    complaints,
    describe_complaints,
    planes_of,
    position,
    rows_promised,
)

WORKERS = 8
DEADLINE_SECONDS = 20.0
SERVICE = "/tokenfeed.v1.TokenFeed"
REQUEST_BYTES_MAX = 1 << 16
READ_ROWS_MAX = 4096
READ_BYTES_MAX = 1 << 17
"""Longer answers are read up to their first frame."""
ROWS_COMPARED = 100
"""Rows of a frame that are compared with the files: all, or this many to twice as many of them."""

EXTREMES = (
    0, 1, 1 << 20, (1 << 20) + 1, 1 << 31, 1 << 32, (1 << 32) + 1, 1 << 53, 1 << 62,
    (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
NUMBERS = (
    "batch_size", "context_length", "seed", "first_sample", "first_row", "num_batches", "rank",
    "world_size", "identity_version", "end_sample",
)  # fmt: skip
HASHES = ("expected_identity", "expected_digest")
OTHERS = ("dataset", "order", "stage", "redactions", "long_documents", "planes", "declined_planes")
STAGE_FIELDS = ("index", "first_sample", "previous_identity", "mixture_identity", "sources")
LONG_DOCUMENTS = ("cut", "drop", "truncate", "nonsense")
SOURCE_FIELDS = (
    "number", "dataset", "order", "seed", "base", "weight", "expected_digest", "long_documents",
)  # fmt: skip
NAMES = (
    "", "nobody", "Train", "train ", "tr\x00ain", "träin", "列車", "🚂" * 30, "%s%n%x", "../..",
    "\n", "x" * 100, "y" * 10_000, "ß" * 20_000, "z" * 70_000, "random", "random-2", "RANDOM-1",
    "shuffled-1\x7f", "mixture-1", "mixture", "packed-1", "padded-1",
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
_LONG_OF = (("packed-1", "cut"), *(("padded-1", long) for long in LONG_DOCUMENTS[:3]))
KEYS: frozenset[Key] = frozenset((order, n, long) for n in LENGTHS[1:] for order, long in _LONG_OF)
"""Rows over documents, as many as a server opens. It refuses others."""


def open_feed(server: Server, files: Mapping[str, Sequence[Tokens]]) -> Feed:
    """Return a feed of the files of `write_files`, when its server has made its rows of KEYS."""
    feed = Feed(server, files, DOCUMENTS, KEYS)
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
    and the files of "docs" have an index of their documents.  Returns: their tokens.
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
    return files


def paths(folder: Path, name: str, shards: Sequence[Tokens]) -> list[Path]:
    suffix = {"wide": ".npy", "docs": ".ds"}.get(name, ".bin")
    return [folder / f"{name}{index}{suffix}" for index in range(len(shards))]


def data_arguments(folder: Path, files: Mapping[str, Sequence[Tokens]]) -> list[str]:
    """Return the options that serve them."""
    arguments = []
    for name, shards in files.items():
        first, *others = map(str, paths(folder, name, shards))
        arguments += ["--data", f"{name}={first}", *others]
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
        if kind == "fields":
            request = valid_request(feed, rng)
            for _ in range(rng.choice((0, 1, 1, 2, 3))):
                mutate_field(request, rng)
            yield Mutant(kind, "GetBatch", request.SerializeToString())
        elif kind == "bytes":
            message = valid_request(feed, rng).SerializeToString()
            for _ in range(rng.choice((1, 1, 2, 4))):
                message = mutate_bytes(message, rng)
            yield Mutant(kind, "GetBatch", message)
        else:
            message = describe_request(rng).SerializeToString()
            yield Mutant(
                kind, "Describe", message if rng.random() < 0.5 else mutate_bytes(message, rng)
            )


def valid_request(feed: Feed, rng: random.Random) -> pb.GetBatchRequest:
    batch_size, world_size = rng.choice((1, 2, 3, 8)), rng.choice((1, 1, 2, 7))
    request = pb.GetBatchRequest(
        batch_size=batch_size,
        context_length=rng.choice(LENGTHS),
        seed=valid_seed(rng),
        first_sample=rng.choice((0, rng.getrandbits(20), rng.getrandbits(62))),
        first_row=rng.randrange(batch_size),
        num_batches=rng.randrange(4),
        rank=rng.randrange(world_size),
        world_size=world_size if world_size > 1 or rng.random() < 0.5 else None,
    )
    if rng.random() < 0.25:
        request.order = MIXTURE
        request.stage.CopyFrom(valid_stage(feed, request, rng))
    else:
        add_source(request, feed, rng, request.context_length)
    for kind in sorted(planes_of(feed, request)) if rng.random() < 0.5 else ():
        is_expected = rng.random() < 0.5
        fingerprint = feed.plane_fingerprint(request, kind) if is_expected else b""
        request.planes.add(kind=kind, expected_fingerprint=fingerprint)
    if rng.random() < 0.5:
        request.expected_identity = feed.identity(request)
        request.identity_version = 2 if request.order == MIXTURE else 1
    if rng.random() < 0.3:
        request.end_sample = request.first_sample + rng.randrange(40)
    if rng.random() < 0.3:
        request.client_name = rng.choice(NAMES)
        request.declined_planes.extend(rng.choice(([51], [0, 51, 52], [(1 << 32) - 1])))
    return request


def valid_seed(rng: random.Random) -> int:
    return rng.choice((0, 7, rng.getrandbits(64)))


def add_source(source: Source, feed: Feed, rng: random.Random, context_length: int) -> None:
    """Name a dataset and its order, and perhaps the digest."""
    source.dataset = rng.choice([*feed.files, *feed.documents])
    source.order = rng.choice(("", *orders.OF_WINDOWS))
    keys = sorted(key for key in feed.keys if key[1] == context_length)
    if source.dataset in feed.documents and keys and rng.random() < 0.7:
        source.order, _, source.long_documents = rng.choice(keys)
    if rng.random() < 0.2:
        source.expected_digest = feed.digests[source.dataset]


def valid_stage(feed: Feed, request: pb.GetBatchRequest, rng: random.Random) -> pb.Stage:
    """Return a stage that the request may read; its sources may have the same dataset."""
    first = position(request).sample_of(request.first_row)
    stage = pb.Stage(
        index=rng.choice((0, 1, rng.getrandbits(32))),
        first_sample=rng.choice((0, first, rng.randrange(first + 1))),
        previous_identity=rng.randbytes(32),
    )
    if rng.random() < 0.5:
        stage.mixture_identity = reference.mixture_start(request.seed, request.context_length)
    number, base_left = rng.choice((0, 0, 3)), stage.first_sample
    for _ in range(rng.randrange(1, 6)):
        source = stage.sources.add(
            number=number,
            seed=valid_seed(rng),
            base=rng.choice((0, base_left, rng.randrange(base_left + 1))),
            weight=rng.choice((1, 2, 70, rng.randrange(1, 1 << 17))),
        )
        add_source(source, feed, rng, request.context_length)
        number += rng.choice((1, 1, 5, 1 << 28))
        base_left -= source.base
    return stage


def mutate_field(request: pb.GetBatchRequest, rng: random.Random) -> None:
    """Set one field to something extreme, or unset it."""
    if request.HasField("stage") and rng.random() < 0.6:
        mutate_stage(request, rng)
        return
    field = rng.choice((*NUMBERS, *NUMBERS, *HASHES, *OTHERS))
    if rng.random() < 0.15:
        request.ClearField(field)
    elif field in NUMBERS:
        number = any_number(rng)
        setattr(request, field, number % (1 << 32 if field == "identity_version" else 1 << 64))
    elif field in HASHES:
        setattr(request, field, any_hash(rng))
    elif field == "planes":
        request.planes.extend(
            pb.WantedPlane(
                kind=rng.choice((0, 1, 50, 51, 52, 53, 54, 99, 100, (1 << 32) - 1)),
                expected_fingerprint=rng.randbytes(rng.choice((0, 31, 32))),
            )
            for _ in range(rng.choice((1, 2, 500)))
        )
        if rng.random() < 0.2:
            del request.planes[:]
            for kind in rng.choice(((50,), (51,), (52,), (53,), (50, 51, 52, 53), (51, 50))):
                request.planes.add(kind=kind)
        if rng.random() < 0.2:
            del request.planes[1:]
            request.planes.extend([request.planes[0]] * rng.choice((1, 500, 10_000)))
    elif field == "declined_planes":
        request.declined_planes.extend(rng.choice(((), (51,), (1, 2, 3))))
    elif field == "stage":
        request.stage.CopyFrom(pb.Stage(index=any_number(rng)))
    elif field == "redactions":
        request.redactions.add(list_hash=rng.randbytes(rng.choice((0, 32))))
    elif field == "long_documents":
        request.long_documents = rng.choice(LONG_DOCUMENTS)
    else:
        setattr(request, field, rng.choice(NAMES))


def mutate_stage(request: pb.GetBatchRequest, rng: random.Random) -> None:
    """The same for a field of its stage, or of one of the sources."""
    stage = request.stage
    field = rng.choice((*STAGE_FIELDS, *SOURCE_FIELDS)) if stage.sources else "sources"
    if field in SOURCE_FIELDS:
        mutate_source(stage, field, rng)
    elif rng.random() < 0.15:
        stage.ClearField(field)
    elif field == "index":
        stage.index = any_number(rng)
    elif field == "first_sample":
        first = request.first_sample + request.rank * request.batch_size + request.first_row
        stage.first_sample = rng.choice((first, first + 1, any_number(rng))) % (1 << 64)
    elif field != "sources":
        setattr(stage, field, any_hash(rng))
    elif rng.random() < 0.5:
        mutated = rng.sample(stage.sources, len(stage.sources))
        del stage.sources[:]
        stage.sources.extend(mutated + mutated[: rng.randrange(2)])
    else:
        first_number = stage.sources[-1].number + 1 if stage.sources else 0
        step = rng.choice((-1, 0, 1, 1, 1))
        count = rng.choice((100, 1000, 2000))
        stage.sources.extend(
            pb.StageSource(number=(first_number + step * n) % (1 << 32), dataset="val", weight=1)
            for n in range(count)
        )


def mutate_source(stage: pb.Stage, field: str, rng: random.Random) -> None:
    """The same for a field of one of its sources."""
    source = rng.choice(stage.sources)
    if rng.random() < 0.15:
        source.ClearField(field)
    elif field == "number":
        source.number = rng.choice((any_number(rng), stage.sources[-1].number)) % (1 << 32)
    elif field in ("base", "weight"):
        limit = BLOCK_MAX if field == "weight" else stage.first_sample
        left = limit - sum(getattr(each, field) for each in stage.sources) + getattr(source, field)
        setattr(source, field, rng.choice((left, left + 1, any_number(rng))) % (1 << 64))
    elif field == "seed":
        source.seed = any_number(rng)
    elif field == "expected_digest":
        source.expected_digest = any_hash(rng)
    elif field == "long_documents":
        source.long_documents = rng.choice(LONG_DOCUMENTS)
    else:
        setattr(source, field, rng.choice((*NAMES, "train", "shuffled-1")))


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
    known = rng.choice((*range(1, 20), 100))
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

    parsed: whether it passed the first check.  order: that it asks for.  frames: that arrived.
    wrong: the error in the answer, or empty.
    """

    mutant: Mutant
    status: str
    parsed: bool
    order: str
    frames: int
    wrong: str = ""

    def __str__(self) -> str:
        return f"{self.wrong}: {self.mutant.method} {self.mutant.message[:300].hex()}"


def judge_all(feed: Feed, mutants: Sequence[Mutant]) -> list[Verdict]:
    """Send all of them, over a few connections at a time."""

    def judge_share(share: Sequence[Mutant]) -> list[Verdict]:
        with connected(feed.server) as channel:
            return [judge(feed, channel, mutant) for mutant in share]

    shares = [mutants[first::WORKERS] for first in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS) as workers:
        return [verdict for part in workers.map(judge_share, shares) for verdict in part]


def judge(feed: Feed, channel: grpc.Channel, mutant: Mutant) -> Verdict:
    kind = pb.GetBatchRequest if mutant.method == "GetBatch" else pb.DescribeRequest
    request, is_message = kind(), True
    try:
        request.ParseFromString(mutant.message)
    except DecodeError:
        is_message = False
    call = channel.unary_stream(f"{SERVICE}/{mutant.method}")(
        mutant.message, timeout=DEADLINE_SECONDS
    )
    frames: list[bytes] = []
    frame_limit = frames_to_read(request) if is_message and mutant.method == "GetBatch" else None
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
        elif mutant.method == "Describe":
            judge_described(feed, request, frames, (status, details, metadata))
        else:
            judge_batches(feed, request, frames, (status, details, metadata))
    except Exception as error:  # noqa: BLE001 - collected with its message
        wrong = repr(error)
    order = request.order if isinstance(request, pb.GetBatchRequest) else ""
    return Verdict(mutant, status, parsed, order, len(frames), wrong)


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


def judge_batches(
    feed: Feed, request: pb.GetBatchRequest, frames: list[bytes], ended: Outcome
) -> None:
    sources: list[Source] = [request, *request.stage.sources]
    sent = {
        text for source in sources for text in (source.dataset, source.order, source.long_documents)
    }
    if deserved := complaints(feed, request):
        assert not frames, "frames before a refusal"
        assert_refusal(deserved, *ended, sent=sent)
        return
    next_row = request.first_row
    for message in frames:
        decoded = frame.decode(message)
        # Of the specification a frame has only the length of its rows.
        kinds = sorted(plane.kind for plane in request.planes)
        spec = StreamSpec.of_dataset("", orders.find(""), 0, request.context_length, kinds)
        planes = {kind: feed.plane_fingerprint(request, kind) for kind in kinds}
        stream = frame.Stream(spec, position(request), feed.identity(request), planes)
        rows = decoded.rows(stream, next_row)
        assert decoded.token_bytes == feed.token_bytes(request)
        compared = range(0, len(rows), max(1, len(rows) // ROWS_COMPARED))
        expected = feed.rows(request, [next_row + row for row in compared])
        np.testing.assert_array_equal(rows.tokens[compared], expected)
        assert [plane.kind for plane in rows.planes] == kinds
        for plane in rows.planes:
            for row in compared:
                found = plane[row : row + 1].content.tobytes()
                assert found == feed.plane_row(request, plane.kind, next_row + row)
        assert decoded.tokens.size <= 1 << 20
        # Each plane has a fingerprint, and says how many bytes each row has.
        planes_bytes = sum(64 + 2 * len(rows) + plane.content.size for plane in rows.planes)
        assert len(message) - decoded.tokens.size < 128 + planes_bytes
        next_row += len(rows)
    if frames_to_read(request) is not None and rows_promised(request):
        assert frames, f"no frame: {ended}"
        assert ended[0] == "cancelled by us", ended
    else:
        assert next_row - request.first_row == rows_promised(request), "not the rows promised"
        if request.HasField("num_batches") or request.HasField("end_sample"):
            assert ended[0] == "OK", ended
        else:
            assert_refusal({("first_sample", "OUT_OF_RANGE")}, *ended, sent=sent)


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


def frames_to_read(request: pb.GetBatchRequest) -> int | None:
    """Return the number of frames after which to cancel a long call; None to read all of it."""
    try:
        rows = rows_promised(request)
    except Exception:  # noqa: BLE001 - the position is invalid and will be refused
        return 1
    is_short = rows <= READ_ROWS_MAX and rows * (request.context_length + 1) * 2 <= READ_BYTES_MAX
    return None if is_short else 1


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
