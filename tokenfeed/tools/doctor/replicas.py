"""Whether servers that shall stand in for each other have the same corpora, orders and time. Pure.

A feed compares them too, and leaves out a server that differs: a difference is noticed when the
others are away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tokenfeed.client.source.plane_selection import plane_name
from tokenfeed.errors import listed
from tokenfeed.v1 import tokenfeed_pb2 as pb

from .findings import Finding
from .rpc import Answer

CLOCK_SECONDS_MAX = 1.0
"""Greatest difference of clocks that is no problem: that of lines in two logs side by side. NTP
keeps machines within some milliseconds."""
_HASH_DIGITS = 16

Answers = Mapping[str, Answer]
"""By the names of the servers."""


def compare(answers: Answers) -> list[Finding]:
    """Return how servers differ from each other and from this machine."""
    return [*_orders(answers), *_datasets(answers), *_clocks(answers)]


def _orders(answers: Answers) -> list[Finding]:
    known = {name: set(answer.described.orders) for name, answer in answers.items()}
    every = set().union(*known.values())
    return [
        Finding(
            "orders-differ",
            name,
            f"the server does not know {', '.join(sorted(every - orders))}, and others do",
            f"its software is tokenfeed {answers[name].described.server_version}",
            "upgrade it: a feed with such an order cannot use it",
        )
        for name, orders in known.items()
        if every - orders
    ]


def _datasets(answers: Answers) -> list[Finding]:
    served = {
        server: {dataset.name: dataset for dataset in answer.described.datasets}
        for server, answer in answers.items()
    }
    names = sorted({name for datasets in served.values() for name in datasets})
    findings = []
    for name in names:
        having = {server: datasets[name] for server, datasets in served.items() if name in datasets}
        findings += [
            Finding(
                "dataset-missing",
                server,
                f"dataset {name!r} is not served there, but by {listed(list(having))}",
                f"it serves {listed(sorted(datasets)) or 'nothing'}",
                "give all replicas the same --data: a feed asks any of them",
            )
            for server, datasets in served.items()
            if name not in datasets
        ]
        findings += _corpora(name, having)
    return findings


def _corpora(name: str, having: Mapping[str, pb.Dataset]) -> list[Finding]:
    """Return which servers have another corpus under a name than most of them."""
    findings = _differing(
        name, "fingerprint", {server: dataset.fingerprint for server, dataset in having.items()}
    )
    if findings:
        return findings
    # Only servers that know their digest, or have made the plane, can be compared by it.
    findings = _differing(
        name,
        "digest",
        {server: dataset.digest for server, dataset in having.items() if dataset.digest},
    )
    kinds = sorted({plane.kind for dataset in having.values() for plane in dataset.planes})
    for kind in kinds:
        planes = {
            server: next((each for each in dataset.planes if each.kind == kind), None)
            for server, dataset in having.items()
        }
        hashes = {
            server: plane.fingerprint if plane else b"none"
            for server, plane in planes.items()
            if plane is None or plane.fingerprint
        }
        findings += _differing(name, plane_name(kind), hashes)
    return findings


def _differing(name: str, what: str, hashes: Mapping[str, bytes]) -> list[Finding]:
    """Return the servers whose hash is not that of most of them, or of the first one."""
    if len(set(hashes.values())) < 2:
        return []
    # Of equally frequent ones the first: Counter keeps the order.
    (common, count), *_ = Counter(hashes.values()).most_common(1)
    first = next(server for server, value in hashes.items() if value == common)
    most = f"{count} servers, such as {first}," if count > 1 else first
    return [
        Finding(
            "other-corpus",
            server,
            f"dataset {name!r} there is another corpus than at {first}",
            f"{what} {_digits(value)}; {most} {'have' if count > 1 else 'has'} {_digits(common)}",
            "serve the same files, options of documents and loss masks on all replicas; a feed "
            "uses only those like its first one",
        )
        for server, value in hashes.items()
        if value != common
    ]


def _digits(value: bytes) -> str:
    return "none" if value == b"none" else f"{value.hex()[:_HASH_DIGITS]}..."


def _clocks(answers: Answers) -> list[Finding]:
    seconds_of = {server: answer.clock_seconds for server, answer in answers.items()}
    off = {name: s for name, s in seconds_of.items() if abs(s) > CLOCK_SECONDS_MAX}
    is_ours = (
        len(off) > 1
        and len(off) == len(answers)
        and max(off.values()) - min(off.values()) < CLOCK_SECONDS_MAX
    )
    whose = "of this machine: the servers agree" if is_ours else "that is wrong"
    return [
        Finding(
            "clock-differs",
            name,
            f"its clock is {abs(seconds):,.1f} s {'ahead of' if seconds > 0 else 'behind'} this "
            "machine's",
            f"measured by its answers, beyond the time that they took; up to {CLOCK_SECONDS_MAX:g} "
            "s is no problem",
            f"set the clock {whose} (chronyc tracking, timedatectl): certificates are "
            "checked by it, and logs are read side by side",
        )
        for name, seconds in off.items()
    ]
