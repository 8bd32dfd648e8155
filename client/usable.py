"""Which servers a stream can be read from, by what they say of themselves. Pure."""

from __future__ import annotations

from tokenfeed.errors import OtherContract, OverLimit, StreamMismatch
from tokenfeed.request import CONTRACT_REVISION, StreamRequest, require_size
from tokenfeed.v1 import tokenfeed_pb2 as pb


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
    Compared by the fingerprints of tokens and planes, and by the digest where both have one.
    """
    _require_contract(address, described)
    dataset = described.datasets[0]
    try:
        request.require_within(described.limits, dataset.token_bytes)
        require_size(request, described.limits, client_name)
    except OverLimit as error:
        raise OverLimit(error.subject, f"{error.problem} ({address})") from None
    if reference is None:
        return
    for name, theirs, ours in (
        ("fingerprint", dataset.fingerprint, reference.fingerprint),
        ("digest", dataset.digest or reference.digest, reference.digest or dataset.digest),
        *(
            (f"plane {kind}", plane_fingerprint(dataset, kind), plane_fingerprint(reference, kind))
            for kind in request.spec.planes
        ),
    ):
        if theirs != ours:
            raise StreamMismatch(
                address, f"serves another corpus: {name} {theirs.hex()}, not {ours.hex()}"
            )


def plane_fingerprint(dataset: pb.Dataset, kind: int) -> bytes:
    """Return the fingerprint of a plane that a dataset has; b"" if it has none of that kind."""
    return next((plane.fingerprint for plane in dataset.planes if plane.kind == kind), b"")


def _require_contract(address: str, described: pb.DescribeResponse) -> None:
    """Raise OtherContract unless a server speaks the revision of the contract that we do."""
    spoken = described.contract_revisions
    if CONTRACT_REVISION in spoken:
        return
    theirs = f"revision {', '.join(map(str, spoken))}" if spoken else "one before revision 2"
    who = "server" if max(spoken, default=0) < CONTRACT_REVISION else "client"
    raise OtherContract(
        address,
        f"speaks another contract, {theirs}, and this client revision {CONTRACT_REVISION}: upgrade "
        f"the {who}",
    )
