"""Checks by the description of datasets whether a stream can be read from a server, or from files.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from fractions import Fraction

from tokenfeed.errors import (
    BeingMade,
    ContractMismatch,
    InvalidRequest,
    ListMissing,
    NotFound,
    StreamMismatch,
)
from tokenfeed.sampling.plan import no_documents_fit, refusal_of_rows
from tokenfeed.stream.order import Order
from tokenfeed.stream.planes import LOSS_MASK
from tokenfeed.stream.stage import Corpus, Source
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import CONTRACT_REVISION, Request, require_size, require_within

from .plane_selection import PlaneSelection, plane_fingerprint

Descriptions = tuple[pb.Dataset, ...]
"""Descriptions of the datasets of a stream, in the order of its sources."""


def require_server(
    address: str,
    described: pb.DescribeResponse,
    request: Request,
    client_name: str,
    reference: Descriptions | None,
    planes: PlaneSelection,
) -> None:
    """Raise RequestError, naming the server, unless it speaks this contract, accepts the requests,
    and its datasets are usable; Unreachable while it is still making what they need.

    address: of the server.  described: its description, with the datasets of the sources.
    reference: as for `require_usable`.
    """
    require_contract(address, described)
    datasets = tuple(described.datasets)
    try:
        require_within(request, described.limits, max(each.token_bytes for each in datasets))
        require_size(planes.request(request, datasets), described.limits, client_name)
        require_usable(address, datasets, request.stream, reference, planes)
    except InvalidRequest as error:
        raise type(error)(error.subject, f"{error.problem} ({address})") from None


def require_usable(
    address: str,
    datasets: Descriptions,
    stream: Stream,
    reference: Descriptions | None,
    planes: PlaneSelection,
) -> None:
    """Raise RequestError, naming the address, unless datasets have rows of a stream, the corpus and
    the wanted planes that the stream began with, and all lists of its redactions; Unreachable while
    one of these is still being made.

    address: of their server, or what stands for files in errors.  reference: None if the stream
    begins with these datasets. A reference without a name is only a fingerprint that the user gave.
    Compares the fingerprints of tokens and planes, and digests if both sides know them.
    """
    _require_windows(stream, datasets)
    for dataset, ours in zip(datasets, reference or (), strict=False):
        _require_same_corpus(address, dataset, ours, stream)
    _require_lists(address, stream, datasets)
    _require_rows(address, stream, datasets)
    planes.require_ready(address, datasets)
    if reference is None or not reference[0].name:
        planes.require_documents(datasets)
        return
    for source, dataset, ours in zip(stream.sources, datasets, reference, strict=True):
        planes.require_same(address, dataset, ours)
        _require_same_pieces(address, source, dataset, ours)


def _require_lists(address: str, stream: Stream, datasets: Descriptions) -> None:
    """Raise ListMissing unless these datasets have all lists of redactions of a stream."""
    known = dict(zip(stream.numbers, datasets, strict=True))
    for redaction in stream.redactions:
        dataset = known[redaction.source]
        if redaction.list_hash not in dataset.redaction_lists:
            raise ListMissing(
                address,
                f"lacks redaction list {redaction.list_hash.hex()} of dataset {dataset.name!r}; "
                "copy its list file there",
            )


def _require_rows(address: str, stream: Stream, datasets: Descriptions) -> None:
    """Raise BeingMade unless the rows of all orders over documents are made; InvalidRequest if one
    has none.
    """
    problem, progress = "", dict[str, float]()
    for source, dataset in zip(stream.sources, datasets, strict=True):
        if not source.reads_documents:
            continue
        rows = order_rows(dataset, source.order.NAME)
        what = f"rows of {source.order.NAME} of dataset {dataset.name!r}"
        if not rows.pieces_hash:
            done = f"{100 * rows.progress:.1f} % so far"
            problem = problem or f"is not ready: the {what} are being made, {done}"
            progress[f"{address} {what} {source.long_documents}"] = rows.progress
        elif not rows.rows:
            of_dataset = f"of {dataset.name} " if len(datasets) > 1 else ""
            raise no_documents_fit(stream, source, of_dataset)
    if progress:
        raise BeingMade(address, problem, progress)


def _require_same_pieces(
    address: str, source: Source, dataset: pb.Dataset, reference: pb.Dataset
) -> None:
    if not source.reads_documents or not reference.rows:
        return
    theirs = order_rows(dataset, source.order.NAME).pieces_hash
    ours = order_rows(reference, source.order.NAME).pieces_hash
    if theirs != ours:
        raise StreamMismatch(
            address,
            f"cuts the documents of {reference.name!r} into other pieces: {theirs.hex()}, not "
            f"{ours.hex()}; pass it the same --document-end-token and indices",
        )


def _require_windows(stream: Stream, datasets: Descriptions) -> None:
    """Raise InvalidRequest unless each of several sources has a window. One dataset is refused by
    its server.
    """
    for source, dataset in zip(stream.sources, datasets, strict=True):
        if source.reads_documents or len(datasets) == 1:
            continue
        if stream.context_length >= dataset.longest_file_tokens:
            raise InvalidRequest(
                "context_length",
                f"{stream.context_length} is not in [1, {dataset.longest_file_tokens}): the "
                f"longest file of {dataset.name} has {dataset.longest_file_tokens} tokens",
            )


def _require_same_corpus(
    address: str, dataset: pb.Dataset, reference: pb.Dataset, stream: Stream
) -> None:
    of_source = f" of {dataset.name}" if len(stream.sources) > 1 else ""
    hashes = {"fingerprint": (dataset.fingerprint, reference.fingerprint)}
    if dataset.digest and reference.digest:
        hashes["digest"] = dataset.digest, reference.digest
    for name, (theirs, ours) in hashes.items():
        if theirs != ours:
            problem = f"has another corpus: {name}{of_source} {theirs.hex()}, not {ours.hex()}"
            cure = "serve the files there that this stream began with"
            raise StreamMismatch(address, f"{problem}; {cure}")


def no_rows(dataset: pb.Dataset, order: Order, context_length: int) -> InvalidRequest:
    """Return the error of an order of windows that has no row at a context length."""
    if order.BLOCK_TOKENS and dataset.row_tokens:
        return InvalidRequest("order", refusal_of_rows(order.NAME))
    problem = f"{context_length} is not below the {dataset.longest_file_tokens} tokens of the "
    problem += f"longest file of {dataset.name!r}; pass a shorter context_length"
    if dataset.row_tokens:
        problem = f"{context_length} is not {dataset.row_tokens - 1}: the files of "
        problem += f"{dataset.name!r} have rows of {dataset.row_tokens} tokens"
    return InvalidRequest("context_length", problem)


def place_of_dataset(stream: Stream, source: Source) -> int:
    """Return which of the datasets of a stream a source reads, by its name.  Raises: ValueError if
    none is.
    """
    names = [each.dataset for each in stream.sources]
    return len(names) - 1 - names[::-1].index(source.dataset)


def corpora_of(stream: Stream, datasets: Sequence[pb.Dataset]) -> dict[int, Corpus]:
    """Return what the identity of a stream covers of the dataset of each source, by its number.

    datasets: described at the context length of the last stage.
    """
    return {
        source.number: Corpus(dataset.fingerprint, _pieces(stream, source, dataset))
        for source, dataset in zip(stream.sources, datasets, strict=True)
    }


def _pieces(stream: Stream, source: Source, dataset: pb.Dataset) -> tuple[tuple[int, bytes], ...]:
    if not source.reads_documents:
        return ()
    before = dict(source.corpus.pieces) if source.corpus is not None else {}
    now = {stream.context_length: order_rows(dataset, source.order.NAME).pieces_hash}
    return tuple(sorted((before | now).items()))


def target_share(source: Source, dataset: pb.Dataset, context_length: int) -> Fraction:
    """Return the share of the positions of x that have a target, before any loss mask."""
    rows = order_rows(dataset, source.order.NAME)
    if not source.reads_documents or not rows.rows:
        return Fraction(1)
    return Fraction(rows.target_count, rows.rows * context_length)


def document_warnings(
    stream: Stream, datasets: Sequence[pb.Dataset], planes: PlaneSelection
) -> list[str]:
    """Return what is not learned of each source, because its documents are longer than a row; and
    of which sources with loss masks the rows begin and end within documents.

    planes: those that the feed requests; a loss mask that it ignores matters to no row.
    """
    found = []
    cut = [
        dataset.name
        for source, dataset in zip(stream.sources, datasets, strict=True)
        if not source.reads_documents
        and dataset.HasField("documents")
        and any(plane.kind == LOSS_MASK for plane in dataset.planes)
    ]
    if cut and planes.loss_mask:
        found.append(
            f"rows cut documents datasets={','.join(cut)}: they have loss masks, and a row of "
            "windows may have a response without its prompt; order='packed' keeps documents whole"
        )
    for source, dataset in zip(stream.sources, datasets, strict=True):
        if not source.reads_documents or source.long_documents == "cut":
            continue
        rows = order_rows(dataset, source.order.NAME)
        long_count = rows.dropped_documents + rows.truncated_documents
        if long_count:
            found.append(
                f"long documents {source.long_documents} dataset={dataset.name} "
                f"order={source.order.NAME} context_length={stream.context_length}: {long_count} "
                f"of {rows.documents} documents are longer than a row, and {rows.cropped_tokens} "
                f"of their tokens are no targets; long='cut' learns them all"
            )
    return found


def row_documents_max(stream: Stream, datasets: Sequence[pb.Dataset]) -> int | None:
    """Return the limit of documents in the x of a row, padding included; None if there is none."""
    if not all(source.reads_documents for source in stream.sources):
        return None
    return 1 + max(
        order_rows(dataset, source.order.NAME).row_pieces_max
        for source, dataset in zip(stream.sources, datasets, strict=True)
    )


def order_rows(dataset: pb.Dataset, order: str) -> pb.OrderRows:
    """Return what a description says of the rows of an order, which are counted per epoch if it has
    epochs.  order: its name.  Raises: NotFound.
    """
    for counted in dataset.rows:
        if counted.order == order:
            return counted
    raise NotFound("order", f"the servers of this feed do not know {order}; upgrade them")


def without_rows(datasets: Descriptions) -> Descriptions:
    """Return descriptions without the rows, which are of one context length."""
    found = deepcopy(datasets)
    for dataset in found:
        del dataset.rows[:]
    return found


def with_hashes(known: Descriptions | None, other: Descriptions) -> Descriptions:
    """Return the known descriptions, with digests and fingerprints of planes of others where they
    have none.
    """
    if known is None:
        return other
    return tuple(_with_hashes(old, new) for old, new in zip(known, other, strict=True))


def _with_hashes(known: pb.Dataset, other: pb.Dataset) -> pb.Dataset:
    learned = deepcopy(known)
    learned.digest = known.digest or other.digest
    for plane in learned.planes:
        plane.fingerprint = plane.fingerprint or plane_fingerprint(other, plane.kind)
    return known if learned == known else learned


def require_order(described: pb.DescribeResponse, order: str) -> None:
    """Raise NotFound unless a server knows an order."""
    if order not in described.orders:
        raise NotFound("order", f"the servers of this feed do not know {order}; upgrade them")


def require_contract(address: str, described: pb.DescribeResponse) -> None:
    """Raise ContractMismatch unless a server speaks this client's revision of the contract."""
    spoken = described.contract_revisions
    if CONTRACT_REVISION in spoken:
        return
    theirs = f"revision {', '.join(map(str, spoken))}" if spoken else "older than revision 2"
    older = "server" if max(spoken, default=0) < CONTRACT_REVISION else "client"
    raise ContractMismatch(
        address,
        f"speaks another contract, {theirs}, but this client speaks revision {CONTRACT_REVISION}; "
        f"upgrade the {older}",
    )
