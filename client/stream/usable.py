"""Which servers a stream can be read from, by what they say of themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tokenfeed.errors import ContractMismatch, LimitExceeded, StreamMismatch
from tokenfeed.stream.planes import KINDS
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import CONTRACT_REVISION, StreamRequest, require_size


def require_usable(
    address: str,
    described: pb.DescribeResponse,
    request: StreamRequest,
    client_name: str,
    reference: pb.Dataset | None,
) -> None:
    """Raise RequestError, naming the server, unless it speaks our contract, takes our requests, and
    has the corpus that the stream began with.

    described: what it says, of one dataset.  reference: None where the stream begins with this one.
    Compared by the fingerprint of the tokens, and by what else both know: digest, planes.
    """
    _require_contract(address, described, request.spec.identity_version)
    dataset = described.datasets[0]
    try:
        request.require_within(described.limits, dataset.token_bytes)
        require_size(request, described.limits, client_name)
    except LimitExceeded as error:
        raise LimitExceeded(error.subject, f"{error.problem} ({address})") from None
    for kind in request.spec.planes:
        if not plane_fingerprint(dataset, kind):
            raise StreamMismatch(address, f"has no plane {kind} ({KINDS[kind]}) of this dataset")
    if reference is None:
        return
    _require_same(address, "fingerprint", dataset.fingerprint, reference.fingerprint)
    if dataset.digest and reference.digest:
        _require_same(address, "digest", dataset.digest, reference.digest)
    for kind in request.spec.planes:
        # None where the reference is a fingerprint that the caller gave.
        if ours := plane_fingerprint(reference, kind):
            _require_same(address, f"plane {kind}", plane_fingerprint(dataset, kind), ours)


def plane_fingerprint(dataset: pb.Dataset, kind: int) -> bytes:
    """Return the fingerprint of a plane that a dataset has; b"" if it has none of that kind."""
    return next((plane.fingerprint for plane in dataset.planes if plane.kind == kind), b"")


def _require_same(address: str, name: str, theirs: bytes, ours: bytes) -> None:
    if theirs != ours:
        raise StreamMismatch(
            address, f"serves another corpus: {name} {theirs.hex()}, not {ours.hex()}"
        )


def _require_contract(address: str, described: pb.DescribeResponse, identity_version: int) -> None:
    """Raise ContractMismatch unless a server speaks the revision of the contract that we do, and
    can compare identities of that version.
    """
    spoken, versions = described.contract_revisions, described.identity_versions
    if CONTRACT_REVISION in spoken:
        if identity_version in versions:
            return
        known = ", ".join(map(str, versions)) or "none"
        raise ContractMismatch(
            address,
            f"compares identities of version {known}, and this stream has one of version "
            f"{identity_version}: upgrade the {_older(versions, identity_version)}",
        )
    theirs = f"revision {', '.join(map(str, spoken))}" if spoken else "one before revision 2"
    raise ContractMismatch(
        address,
        f"speaks another contract, {theirs}, and this client revision {CONTRACT_REVISION}: upgrade "
        f"the {_older(spoken, CONTRACT_REVISION)}",
    )


def _older(theirs: Iterable[int], ours: int) -> str:
    """Return who has to be upgraded, by what a server knows and what we need."""
    return "server" if max(theirs, default=0) < ours else "client"
