"""Mutants of valid requests, and a check of the answers that they get.

The requests are damaged field by field and byte by byte. An oracle, written from the comments of
tokenfeed.proto, returns the refusals that each of them deserves. A request that deserves none has
to be answered with the right tokens.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import grpc
import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tokenfeed.sampling import orders
from tokenfeed.sampling.plan import Shape, plan
from tokenfeed.stream.identity import stream_identity
from tokenfeed.stream.position import Position
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import frame

WORKERS = 8
DEADLINE_SECONDS = 20.0
SERVICE = "/tokenfeed.v1.TokenFeed"
REQUEST_BYTES_MAX = 1 << 16
BATCH_BYTES_MAX = 1 << 30
READ_ROWS_MAX = 4096
READ_BYTES_MAX = 1 << 17
"""Longer answers are read up to their first frame."""

EXTREMES = (
    0, 1, 1 << 20, (1 << 20) + 1, 1 << 31, 1 << 32, (1 << 32) + 1, 1 << 53, 1 << 62,
    (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
NUMBERS = (
    "batch_size", "context_length", "seed", "first_sample", "first_row", "num_batches", "rank",
    "world_size", "identity_version", "end_sample",
)  # fmt: skip
LATER = ("stage", "redactions", "long_documents")
"""Fields of the contract that no server supports yet."""
HASHES = ("expected_identity", "expected_digest")
NAMES = (
    "", "nobody", "Train", "train ", "tr\x00ain", "träin", "列車", "🚂" * 30, "%s%n%x", "../..",
    "\n", "x" * 100, "y" * 10_000, "ß" * 20_000, "z" * 70_000, "random", "random-2", "RANDOM-1",
    "shuffled-1\x7f",
)  # fmt: skip

FORBIDDEN = (
    "/",
    "\\",
    ".py",
    ".bin",
    "Traceback",
    "Error(",
    "Exception",
    "0x",
    "Errno",
    "object at",
)
"""Text that would reveal a path or code, after the names that the caller sent are removed."""

Tokens = npt.NDArray[np.uint16]
Complaint = tuple[str, str]
"""The field that a refusal names, and its status."""


class Server(Protocol):
    """A server process.  address: "HOST:PORT".  stderr: the log so far."""

    process: subprocess.Popen[str]

    @property
    def address(self) -> str: ...

    @property
    def stderr(self) -> str: ...


@dataclass
class Feed:
    """A server, and the data to check its answers."""

    server: Server
    files: Mapping[str, Sequence[Tokens]]
    described: dict[str, pb.Dataset] = field(init=False)

    def __post_init__(self) -> None:
        """Request fingerprints and digests."""
        with connected(self.server) as channel:
            answer = channel.unary_unary(f"{SERVICE}/Describe")(b"", timeout=DEADLINE_SECONDS)
        datasets = pb.DescribeResponse.FromString(answer).datasets
        self.described = {data.name: data for data in datasets}

    def identity(self, request: pb.GetBatchRequest) -> bytes:
        order = orders.find(request.order)
        fingerprint = self.described[request.dataset].fingerprint
        return stream_identity(order, request.seed, request.context_length, fingerprint)

    def hash(self, field_name: str, request: pb.GetBatchRequest) -> bytes:
        """Return the right value of one of HASHES for a valid request."""
        if field_name == "expected_identity":
            return self.identity(request)
        return self.described[request.dataset].digest

    def rows(self, request: pb.GetBatchRequest, first_row: int, row_count: int) -> Tokens:
        """Return the rows of a valid request, from the files themselves."""
        files = self.files[request.dataset]
        counts = np.array([len(tokens) for tokens in files])
        samples = position(request).samples(first_row, row_count)
        spans = plan(spec_of(request), [Shape(counts)], samples)
        places = zip(spans.shard.tolist(), spans.token_offset.tolist(), strict=True)
        length = request.context_length + 1
        return np.stack([files[shard][first : first + length] for shard, first in places])


def write_files(folder: Path) -> dict[str, list[Tokens]]:
    """Write two datasets of random tokens; "train" has two files.  Returns: their tokens."""
    numbers = np.random.default_rng(1)
    files = {
        name: [numbers.integers(0, 50_000, size, dtype=np.uint16) for size in counts]
        for name, counts in {"train": (3000, 1000), "val": (2000,)}.items()
    }
    for name, shards in files.items():
        for index, tokens in enumerate(shards):
            tokens.tofile(folder / f"{name}{index}.bin")
    return files


def data_arguments(folder: Path, files: Mapping[str, Sequence[Tokens]]) -> list[str]:
    """Return the options that serve them."""
    arguments = []
    for name, shards in files.items():
        first, *others = [str(folder / f"{name}{index}.bin") for index in range(len(shards))]
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
            for _ in range(rng.choice((1, 1, 2, 3))):
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
        context_length=rng.choice((1, 2, 16, 63, 999)),
        seed=rng.choice((0, 7, rng.getrandbits(64))),
        dataset=rng.choice(sorted(feed.files)),
        order=rng.choice(("", *orders.ORDERS)),
        first_sample=rng.choice((0, rng.getrandbits(20), rng.getrandbits(62))),
        first_row=rng.randrange(batch_size),
        num_batches=rng.randrange(4),
        rank=rng.randrange(world_size),
        world_size=world_size if world_size > 1 or rng.random() < 0.5 else None,
    )
    if rng.random() < 0.5:
        request.expected_identity = feed.identity(request)
        request.identity_version = 1
    if rng.random() < 0.3:
        request.end_sample = request.first_sample + rng.randrange(40)
    if rng.random() < 0.3:
        request.client_name = rng.choice(NAMES)
        request.declined_planes.extend(rng.choice(([51], [0, 51, 52], [(1 << 32) - 1])))
    if rng.random() < 0.2:
        request.expected_digest = feed.described[request.dataset].digest
    return request


def mutate_field(request: pb.GetBatchRequest, rng: random.Random) -> None:
    """Set one field to something extreme, or unset it."""
    field = rng.choice(
        (*NUMBERS, *NUMBERS, "dataset", "order", *HASHES, *LATER, "planes", "declined_planes")
    )
    if rng.random() < 0.15:
        request.ClearField(field)
    elif field in NUMBERS:
        number = rng.choice((*EXTREMES, rng.getrandbits(rng.randrange(1, 65))))
        setattr(request, field, number % (1 << 32 if field == "identity_version" else 1 << 64))
    elif field in HASHES:
        setattr(request, field, rng.randbytes(rng.choice((1, 31, 32, 33, 64, 5000))))
    elif field == "planes":
        request.planes.extend(
            pb.WantedPlane(
                kind=rng.choice((0, 1, 50, 51, 99, 100, (1 << 32) - 1)),
                expected_fingerprint=rng.randbytes(rng.choice((0, 31, 32))),
            )
            for _ in range(rng.choice((1, 2, 500)))
        )
    elif field == "declined_planes":
        request.declined_planes.extend(rng.choice(((), (51,), (1, 2, 3))))
    elif field == "stage":
        request.stage.CopyFrom(pb.Stage(index=rng.choice(EXTREMES)))
    elif field == "redactions":
        request.redactions.add(list_hash=rng.randbytes(rng.choice((0, 32))))
    elif field == "long_documents":
        request.long_documents = rng.choice(("cut", "drop", "nonsense"))
    else:
        setattr(request, field, rng.choice(NAMES))


def describe_request(rng: random.Random) -> pb.DescribeRequest:
    length = rng.choice((None, *EXTREMES, 64, 1000, 3000))
    return pb.DescribeRequest(
        dataset=rng.choice(("", "train", "val", *NAMES)), context_length=length
    )


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


# The oracle: which refusals does a request deserve, by the words of tokenfeed.proto?


def complaints(feed: Feed, request: pb.GetBatchRequest) -> set[Complaint]:
    """Return the valid refusals of a request; empty if it has to be answered."""
    found: set[Complaint] = set()

    def require(condition: bool, field: str, status: str = "INVALID_ARGUMENT") -> None:
        if not condition:
            found.add((field, status))

    batch_size, context_length = request.batch_size, request.context_length
    world_size = request.world_size if request.HasField("world_size") else 1
    require(1 <= batch_size <= 1 << 20, "batch_size")
    require(1 <= world_size <= 1 << 32, "world_size")
    require(request.rank < world_size, "rank")
    require(request.first_row < batch_size, "first_row")
    require(not request.planes, "planes")
    for plane in request.planes:
        length = len(plane.expected_fingerprint)
        require(length in (0, 32), "expected_fingerprint")
    for name in HASHES:
        require(len(getattr(request, name)) in (0, 32), name)
    require(request.identity_version > 0 or not request.expected_identity, "identity_version")
    require(request.identity_version in (0, 1, 2), "identity_version")
    if request.expected_identity and request.identity_version == 2:
        require(False, "identity_version", "FAILED_PRECONDITION")
    require(not request.HasField("stage"), "stage")
    require(not request.long_documents, "long_documents")
    for redaction in request.redactions:
        require(len(redaction.list_hash) == 32, "list_hash")
        require(False, "redactions", "FAILED_PRECONDITION")
    require(is_understood(request), "request")
    require(request.order in ("", *orders.ORDERS), "order", "NOT_FOUND")
    require(request.dataset != "", "dataset")
    require(request.dataset in ("", *feed.files), "dataset", "NOT_FOUND")
    require(context_length >= 1, "context_length")
    if request.dataset in feed.files:
        longest = max(len(tokens) for tokens in feed.files[request.dataset])
        require(context_length < longest, "context_length")
    require(batch_size * (context_length + 1) * 2 <= BATCH_BYTES_MAX, "batch_size")
    require((context_length + 1) * 2 <= 1 << 30, "context_length")

    batches = request.num_batches if request.HasField("num_batches") else 1
    past_last = request.first_sample + ((batches - 1) * world_size + request.rank + 1) * batch_size
    require(request.first_sample < 1 << 63, "first_sample", "OUT_OF_RANGE")
    last = "num_batches" if request.HasField("num_batches") else "first_sample"
    if request.HasField("end_sample"):
        require(request.end_sample <= 1 << 63, "end_sample", "OUT_OF_RANGE")
    else:
        require(batches == 0 or past_last <= 1 << 63, last, "OUT_OF_RANGE")
    # Only an otherwise valid request has an identity and a corpus.
    is_sound = not found
    for name in HASHES:
        given = getattr(request, name)
        if given and not (is_sound and given == feed.hash(name, request)):
            found.add((name, "FAILED_PRECONDITION"))
    return found


def describe_complaints(feed: Feed, request: pb.DescribeRequest) -> set[Complaint]:
    found: set[Complaint] = set()
    if request.dataset not in ("", *feed.files):
        found.add(("dataset", "NOT_FOUND"))
    if request.HasField("context_length") and not 1 <= request.context_length < 1 << 63:
        found.add(("context_length", "INVALID_ARGUMENT"))
    if request.long_documents:
        found.add(("long_documents", "INVALID_ARGUMENT"))
    if not is_understood(request):
        found.add(("request", "INVALID_ARGUMENT"))
    return found


# The judge: sends mutants, and compares the answers with what they deserve.


@dataclass(frozen=True)
class Verdict:
    """The answer to a mutant.

    parsed: whether it passed the first check.  wrong: the error in the answer, or empty.
    """

    mutant: Mutant
    status: str
    parsed: bool
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
        return Verdict(mutant, status, parsed, repr(error))
    return Verdict(mutant, status, parsed)


Outcome = tuple[str, str, tuple[object, ...]]
"""Status, details and trailing metadata of a call."""


def judge_described(
    feed: Feed, request: pb.DescribeRequest, answers: list[bytes], ended: Outcome
) -> None:
    if deserved := describe_complaints(feed, request):
        assert_refusal(deserved, *ended, sent=(request.dataset,))
    else:
        assert ended[0] == "OK", ended
        names = [data.name for data in pb.DescribeResponse.FromString(answers[0]).datasets]
        assert names == ([request.dataset] if request.dataset else sorted(feed.files))


def judge_batches(
    feed: Feed, request: pb.GetBatchRequest, frames: list[bytes], ended: Outcome
) -> None:
    sent = (request.dataset, request.order)
    if deserved := complaints(feed, request):
        assert not frames, "frames before a refusal"
        assert_refusal(deserved, *ended, sent=sent)
        return
    next_row = request.first_row
    for message in frames:
        decoded = frame.decode(message)
        stream = frame.Stream(spec_of(request), position(request), feed.identity(request), {})
        rows = decoded.rows(stream, next_row).tokens
        np.testing.assert_array_equal(rows, feed.rows(request, next_row, len(rows)))
        assert decoded.tokens.size <= 1 << 20
        assert len(message) - decoded.tokens.size < 128
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
    for name in sent:
        details = details.replace(repr(name[:64]), "''") if name else details
    shown = [piece for piece in FORBIDDEN if piece in details]
    assert not shown, f"{details!r} shows {shown}"


def is_understood(message: Message) -> bool:
    """Return whether neither it nor a nested message has an unknown field below 100."""
    unknown = UnknownFieldSet(message)
    numbers = [unknown[index].field_number for index in range(len(unknown))]
    within: list[Message] = []
    if isinstance(message, pb.GetBatchRequest):
        within = [*message.planes, *message.redactions, message.stage, *message.stage.sources]
    return all(number >= 100 for number in numbers) and all(map(is_understood, within))


def rows_promised(request: pb.GetBatchRequest) -> int:
    """Return the number of rows of a valid request."""
    place = position(request)
    if not request.HasField("end_sample"):
        batches = request.num_batches if request.HasField("num_batches") else place.batches_left
        return max(0, batches * request.batch_size - request.first_row)
    batches = request.num_batches if request.HasField("num_batches") else 1 << 64
    first = request.first_sample + request.rank * request.batch_size
    whole, rest = divmod(max(0, request.end_sample - first), place.stride)
    rows = min(
        whole * request.batch_size + min(rest, request.batch_size), batches * request.batch_size
    )
    return max(0, rows - request.first_row)


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


def spec_of(request: pb.GetBatchRequest) -> StreamSpec:
    return StreamSpec.of_dataset(
        request.dataset, orders.find(request.order), request.seed, request.context_length
    )


def position(request: pb.GetBatchRequest) -> Position:
    world_size = request.world_size if request.HasField("world_size") else 1
    return Position(request.first_sample, request.batch_size, request.rank, world_size)


def connected(server: Server) -> grpc.Channel:
    """Return a channel with its own connection."""
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
    return grpc.insecure_channel(server.address, options)


def still_serves(feed: Feed) -> None:
    """Check that the same process serves the right tokens, and logged no unexpected error."""
    assert feed.server.process.poll() is None
    with connected(feed.server) as channel:
        for number in range(5):
            message = valid_request(feed, random.Random(number)).SerializeToString()
            verdict = judge(feed, channel, Mutant("valid", "GetBatch", message))
            assert not verdict.wrong, verdict
            assert verdict.status == "OK"
    log = feed.server.stderr
    assert "Traceback" not in log
    assert "call failed peer" not in log
