"""Examines one server, layer by layer, up to the rows of its datasets.

A layer that fails explains itself and ends the examination, since those above it cannot work.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from tokenfeed.errors import NotFound, TokenfeedError
from tokenfeed.v1 import tokenfeed_pb2 as pb

from ...transport.channel import Channel
from ...transport.credentials import Credentials
from .address import Server, resolve, shown, unresolved
from .findings import Diagnosed, Finding
from .network import Connection, connect
from .proxy import explained
from .report import Examined
from .rpc import Answer, ask, refused
from .speed import Load, Reader, load, slowness
from .tls import check_plaintext, check_tls

_DATASETS_MAX = 16
"""Datasets of a server that are shown, and of which a batch is read."""
_HASH_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for on the command line, and what the environment has."""

    credentials: Credentials
    environment: Mapping[str, str]
    dataset: str
    seconds: float
    timeout_seconds: float
    tokens_per_second: float


@dataclass(slots=True)
class Reached:
    """A server, what the report has of it, and its answer if all layers up to it work."""

    server: Server
    examined: Examined
    connection: Connection | None = None
    answer: Answer | None = None


def servers_of(target: str, asked: Asked) -> list[Server] | Reached:
    """Return the servers of a target; or, if its name is not known, what the report has of it."""
    try:
        return resolve(target, asked.timeout_seconds)
    except Diagnosed as diagnosed:
        unknown = unresolved(target)
        finding = explained(diagnosed.finding, unknown, asked.environment, asked.timeout_seconds)
        return Reached(unknown, Examined(target, findings=[finding]))


def examine(server: Server, asked: Asked) -> Reached:
    """Examine a server up to its answer to Describe."""
    reached = Reached(server, Examined(server.name))
    try:
        _examine(reached, asked)
    except Diagnosed as diagnosed:
        reached.examined.findings.append(diagnosed.finding)
    return reached


def _examine(reached: Reached, asked: Asked) -> None:
    server, examined = reached.server, reached.examined
    if not isinstance(server.places, str):
        addresses = [shown(place) for place in server.places]
        examined.add("address", ", ".join(addresses), addresses=addresses)
    try:
        connection = connect(server, asked.timeout_seconds)
    except Diagnosed as diagnosed:
        finding = explained(diagnosed.finding, server, asked.environment, asked.timeout_seconds)
        raise Diagnosed(finding) from None
    place = connection.place
    examined.add(
        "connects",
        f"{shown(place)} in {1000 * connection.seconds:.2f} ms",
        connect_seconds=connection.seconds,
    )
    if asked.credentials.tls_ca is None or isinstance(place, str):
        check_plaintext(server, place, asked.timeout_seconds)
        examined.add("speaks", "HTTP/2 in plaintext")
    else:
        certificate = check_tls(server, place, asked.credentials, asked.timeout_seconds)
        examined.add("speaks", f"TLS; {certificate or 'its certificate is accepted'}")
    try:
        channel = _channel(server, asked, 0)
    except TokenfeedError as error:
        raise Diagnosed(refused(server, asked.credentials, error)) from None
    with closing(channel):
        answer = ask(channel, server, asked.credentials, asked.timeout_seconds)
    reached.connection, reached.answer = connection, answer
    _show_answer(examined, answer)


def read(reached: Reached, asked: Asked) -> None:
    """Read a batch of each dataset of a server that answers, and measure the speed of one."""
    answer, connection = reached.answer, reached.connection
    if answer is None or connection is None:
        return
    server, examined = reached.server, reached.examined
    dataset = ""
    try:
        with closing(_channel(server, asked, 1)) as channel:
            for dataset in _readable(answer.described):
                reader = Reader(channel, answer.described, dataset)
                reader.start(batches=1)
                reader.wait(asked.timeout_seconds)
        dataset = asked.dataset or _largest(answer.described)
        if asked.dataset and all(dataset != each.name for each in answer.described.datasets):
            raise NotFound("--dataset", f"{dataset!r} is not served")
        if asked.seconds == 0 or dataset not in _readable(answer.described, None):
            return
        _measure(reached, answer, connection, dataset, asked)
    except TokenfeedError as error:
        examined.findings.append(refused(server, asked.credentials, error, dataset))


def _measure(
    reached: Reached, answer: Answer, connection: Connection, dataset: str, asked: Asked
) -> None:
    """Measure how fast rows of a dataset arrive; on two connections too, if that is too slow."""
    alone = _load(reached.server, answer, connection, dataset, asked, 1)
    reached.examined.add(
        "speed",
        f"{alone.tokens_per_second / 1e6:.1f} million tokens/s of {dataset} "
        f"({alone.mbit_per_second:.0f} Mbit/s), first rows after {1000 * alone.first_seconds:.0f} "
        "ms",
        tokens_per_second=alone.tokens_per_second,
        mbit_per_second=alone.mbit_per_second,
        first_rows_seconds=alone.first_seconds,
    )
    if alone.tokens_per_second < asked.tokens_per_second:
        together = _load(reached.server, answer, connection, dataset, asked, 2)
        finding = slowness(
            reached.server.name, alone, together, connection.seconds, asked.tokens_per_second
        )
        reached.examined.findings.append(finding)


def _load(
    server: Server,
    answer: Answer,
    connection: Connection,
    dataset: str,
    asked: Asked,
    reader_count: int,
) -> Load:
    # Each on a connection of its own.
    channels = [_channel(server, asked, 2 + number) for number in range(reader_count + 1)]
    try:
        return load(
            [Reader(channel, answer.described, dataset) for channel in channels[1:]],
            channels[0],
            connection.place,
            seconds=asked.seconds,
            timeout_seconds=asked.timeout_seconds,
        )
    finally:
        for channel in channels:
            channel.close()


def _show_answer(examined: Examined, answer: Answer) -> None:
    described, clock = answer.described, answer.clock_seconds
    clock_text = "unknown (an older server)" if clock is None else f"{round(clock, 2) + 0.0:+.2f} s"
    examined.add(
        "answers",
        f"tokenfeed {described.server_version or 'of an unknown version'} in "
        f"{1000 * answer.seconds:.1f} ms; its clock: {clock_text}",
        server_version=described.server_version,
        answer_seconds=answer.seconds,
        clock_seconds=clock,
    )
    for dataset in described.datasets[:_DATASETS_MAX]:
        examined.add(
            "dataset",
            f"{dataset.name}: {dataset.token_count:,} tokens, fingerprint "
            f"{dataset.fingerprint.hex()[:_HASH_DIGITS]}...",
        )
    if (left := len(described.datasets) - _DATASETS_MAX) > 0:
        examined.add("dataset", f"and {left} more")
    examined.facts["datasets"] = {
        dataset.name: dataset.fingerprint.hex() for dataset in described.datasets
    }


def _channel(server: Server, asked: Asked, generation: int) -> Channel:
    return Channel(server.target, generation, asked.credentials, server.authority)


def _readable(described: pb.DescribeResponse, limit: int | None = _DATASETS_MAX) -> list[str]:
    """Return the names of the datasets that have a row of one token."""
    datasets = described.datasets[:limit]
    return [dataset.name for dataset in datasets if dataset.longest_file_tokens > 1]


def _largest(described: pb.DescribeResponse) -> str:
    sizes = [(dataset.token_count, dataset.name) for dataset in described.datasets]
    return max(sizes, default=(0, ""))[1]


def stuck(server: str, limit_seconds: float) -> Finding:
    """Return the finding of an examination that did not end by its timeouts."""
    return Finding(
        "no-answer",
        server,
        "the examination of this server does not end",
        f"it has taken {limit_seconds:g} s, although each step has a timeout",
        "check this machine's name service, and its files with certificates and tokens",
    )
