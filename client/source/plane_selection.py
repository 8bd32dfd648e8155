"""The planes that a feed reads: which of them, and what servers have to have in common. Pure.

The descriptions of the datasets decide it, once, when they are accepted: a request has a plane if
the feed wants it and a dataset has it. PLANES has an entry for each kind of plane; what a kind does
to targets is in device/target_mask.py, what a batch shows of it in device/numpy_batch.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np

from tokenfeed.errors import BadFrame, InvalidRequest, StreamMismatch, Unreachable
from tokenfeed.stream.identity import stage_plane_fingerprint
from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK, REDACTED, TOKEN_COUNTS
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import redacted_runs
from tokenfeed.wire.request import AnyRequest
from tokenfeed.wire.row_block import Plane, RowBlock

OwnRequest = TypeVar("OwnRequest", bound=AnyRequest)
LossMask = Literal["apply", "ignore"]
LOSS_MASKS: tuple[str, ...] = get_args(LossMask)

_NUMBER_BYTES = 4
"""Of a document start, and of a token count."""


@dataclass(frozen=True, slots=True)
class PlaneSelection:
    """What a feed wants of its datasets.

    loss_mask: the mask of each dataset that has one; False declines it.  document_starts: those of
    each; all of them have to know their documents.  known_starts: the same, but none if a
    dataset does not know them.  pieces: the same for datasets whose rows are pieces of documents.
    """

    loss_mask: bool = True
    document_starts: bool = False
    known_starts: bool = False
    pieces: bool = False

    @property
    def kinds(self) -> tuple[int, ...]:
        """Kinds of the wanted planes, ascending."""
        return tuple(kind for kind, plane in PLANES.items() if plane.is_wanted(self))

    @property
    def masking(self) -> tuple[int, ...]:
        """Kinds of planes that mask targets, if rows have them."""
        return tuple(kind for kind, plane in PLANES.items() if plane.masks_targets(self))

    def of_pieces(self, stream: Stream) -> PlaneSelection:
        """Return what is wanted of a stream: also where pieces begin, if its rows have pieces."""
        return replace(self, pieces=stream.reads_documents)

    def chosen(self, datasets: Sequence[pb.Dataset]) -> tuple[int, ...]:
        """Return the kinds of planes to request of the datasets of a stream, ascending."""
        found = []
        for kind in self.kinds:
            enough = all if PLANES[kind].needs_all(self) else any
            had = (plane_fingerprint(dataset, kind) for dataset in datasets)
            if PLANES[kind].follows is not None or enough(had):
                found.append(kind)
        return tuple(found)

    def request(self, request: OwnRequest, datasets: Sequence[pb.Dataset]) -> OwnRequest:
        """Return the request of a stream of these datasets, with its planes. All calls of a stream
        with redactions request where they are, also those in which none is in force yet.
        """
        redacted = (REDACTED,) if request.stream.redactions else ()
        planes = tuple(sorted((*self.chosen(datasets), *redacted)))
        declined = () if self.loss_mask else (LOSS_MASK,)
        return replace(request, planes=planes, declined_planes=declined)

    def fingerprints(
        self, datasets: Sequence[pb.Dataset]
    ) -> tuple[tuple[tuple[int, bytes], ...], ...]:
        """Return for each dataset the kinds and fingerprints of its wanted planes."""
        kinds = self.kinds
        return tuple(
            tuple((kind, found) for kind in kinds if (found := plane_fingerprint(dataset, kind)))
            for dataset in datasets
        )

    def compared(self, datasets: Sequence[pb.Dataset]) -> str:
        """Return what ranks compare: the chosen planes that mask targets, in hexadecimal digits.
        Pieces are part of the identity.
        """
        masks = replace(self, known_starts=False, pieces=False)
        return b"".join(
            stage_plane_fingerprint(kind, known_fingerprints(kind, enumerate(datasets)))
            for kind in masks.chosen(datasets)
        ).hex()

    def require_ready(self, address: str, datasets: Sequence[pb.Dataset]) -> None:
        """Raise Unreachable while a server is still making a wanted plane: its fingerprint is
        empty.
        """
        for dataset in datasets:
            for plane in dataset.planes:
                if plane.kind in self.kinds and not plane.fingerprint:
                    name = f"{PLANES[plane.kind].name} of dataset {dataset.name!r}"
                    more = "its log says how far it is, or what failed"
                    problem = f"is not ready: it has not determined the {name} yet; {more}"
                    raise Unreachable(address, problem)

    def require_documents(self, datasets: Sequence[pb.Dataset]) -> None:
        """Raise InvalidRequest unless the wanted documents of each dataset are known."""
        for dataset in datasets if self.document_starts else ():
            if not plane_fingerprint(dataset, DOCUMENT_STARTS):
                raise InvalidRequest(
                    "mask_borders",
                    f"is set, but the documents of dataset {dataset.name!r} are not known; restore "
                    "lost indices, or pass --document-end-token to its server, or "
                    "?document-end-token= to local files",
                )

    def require_same(self, address: str, dataset: pb.Dataset, reference: pb.Dataset) -> None:
        """Raise StreamMismatch unless the wanted planes of a dataset are those of the reference."""
        for kind in self.kinds:
            theirs, ours = plane_fingerprint(dataset, kind), plane_fingerprint(reference, kind)
            if theirs == ours or _is_being_made(reference, kind):
                continue
            name = f"{PLANES[kind].name} of dataset {reference.name!r}"
            if not theirs:
                problem = f"lacks the {name}, with which this stream began"
            elif not ours:
                problem = f"has the {name}, without which this stream began"
            else:
                problem = f"has another {name}: fingerprint {theirs.hex()}, not {ours.hex()}"
                if kind == DOCUMENT_STARTS:
                    problem = problem.replace("another", "other", 1)
            raise StreamMismatch(
                address, f"{problem}; serve the files there that this stream began with"
            )


DEFAULT_PLANES = PlaneSelection()
"""What a feed wants unless it says otherwise: loss masks, where datasets have them."""


def plane_fingerprint(dataset: pb.Dataset, kind: int) -> bytes:
    """Return the fingerprint of a plane of a dataset; b"" if it has no such plane."""
    return next((plane.fingerprint for plane in dataset.planes if plane.kind == kind), b"")


def _is_being_made(dataset: pb.Dataset, kind: int) -> bool:
    return any(plane.kind == kind and not plane.fingerprint for plane in dataset.planes)


def known_fingerprints(
    kind: int, numbered: Iterable[tuple[int, pb.Dataset]]
) -> list[tuple[int, bytes]]:
    """Return number and fingerprint of each dataset that has a plane.

    numbered: numbers of sources, ascending, with their datasets.
    """
    return [
        (number, found)
        for number, dataset in numbered
        if (found := plane_fingerprint(dataset, kind))
    ]


def plane_name(kind: int) -> str:
    """Return what errors call a kind of plane."""
    return PLANES[kind].name if kind in PLANES else f"plane {kind}"


def require_valid(rows: RowBlock, *, may_lack: bool) -> None:
    """Check the content of received planes: what reads them relies on it.

    may_lack: whether some rows may lack a plane: those of a source without it.  Raises: BadFrame.
    """
    # Token counts come before document starts: documents begin before padding.
    for plane in reversed(rows.planes):
        kind = PLANES.get(plane.kind)
        if kind is None:
            problem = f"has {plane_name(plane.kind)}, whose content this client cannot check"
            raise BadFrame("frame", problem)
        row_bytes = None if kind.row_bytes is None else kind.row_bytes(rows.row_tokens)
        has_bytes = row_bytes is None or _has_bytes(plane, row_bytes, may_lack)
        if not (has_bytes and kind.is_valid(plane, rows)):
            raise BadFrame("frame", f"has {kind.name} that no row of {rows.row_tokens} has")


def _has_bytes(plane: Plane, row_bytes: int, may_lack: bool) -> bool:
    """Return whether each row has this many bytes; one that may lack it may have none."""
    wrong = plane.row_lengths != row_bytes
    return not (wrong & (plane.row_lengths != 0) if may_lack else wrong).any()


def _are_counts(_: Plane, rows: RowBlock) -> bool:
    """Return whether each row has 2 tokens or more, and at most as many as there are."""
    counts = rows.token_counts
    return counts is None or bool(((counts >= 2) & (counts <= rows.row_tokens)).all())


def _are_starts(plane: Plane, rows: RowBlock) -> bool:
    """Return whether each row has offsets in [1, tokens without padding), ascending."""
    if (plane.row_lengths % _NUMBER_BYTES).any():
        return False
    starts = plane.content.view("<u4").astype(np.int64)
    numbers = np.repeat(np.arange(plane.row_lengths.size), plane.row_lengths // _NUMBER_BYTES)
    # Ascending within each row, since each row has numbers of its own.
    ascending = np.diff(numbers * rows.row_tokens + starts) > 0
    counts = rows.token_counts
    ends = rows.row_tokens if counts is None else counts[numbers]
    return bool(((starts >= 1) & (starts < ends)).all() and ascending.all())


class PlaneKind(NamedTuple):
    """What the client does with a kind of plane.

    name: what errors call it.  is_wanted: says whether a feed wants it.  masks_targets: says
    whether it masks targets, where rows have it.  needs_all: says whether a stream requests it only
    if all of its datasets have it; else one is enough.
    follows: says whether the rows of a stage have it, of a kind that follows from the identity;
    None for a kind that datasets have, each with its fingerprint.
    row_bytes: returns the bytes of a row of T + 1 tokens; None if their number differs by row.
    is_valid: looks at the content of a received plane of some rows.
    """

    name: str
    is_wanted: Callable[[PlaneSelection], bool]
    masks_targets: Callable[[PlaneSelection], bool] = lambda _: True
    needs_all: Callable[[PlaneSelection], bool] = lambda _: False
    follows: Callable[[Stream], bool] | None = None
    row_bytes: Callable[[int], int] | None = None
    is_valid: Callable[[Plane, RowBlock], bool] = lambda plane, rows: True


PLANES: Mapping[int, PlaneKind] = {
    DOCUMENT_STARTS: PlaneKind(
        "document starts",
        is_wanted=lambda own: own.document_starts or own.known_starts or own.pieces,
        masks_targets=lambda own: own.document_starts,
        # A row of unknown documents would pass for one document.
        needs_all=lambda own: not own.pieces,
        is_valid=_are_starts,
    ),
    LOSS_MASK: PlaneKind(
        "loss mask",
        is_wanted=lambda own: own.loss_mask,
        masks_targets=lambda own: own.loss_mask,
        row_bytes=lambda row_tokens: (row_tokens + 7) // 8,
    ),
    TOKEN_COUNTS: PlaneKind(
        "token counts",
        is_wanted=lambda own: own.pieces,
        follows=lambda stage: stage.reads_documents,
        row_bytes=lambda _: _NUMBER_BYTES,
        is_valid=_are_counts,
    ),
    REDACTED: PlaneKind(
        "redacted tokens",
        is_wanted=lambda _: False,  # `request` says when
        follows=lambda _: True,
        is_valid=lambda plane, rows: redacted_runs.are_valid(plane, rows.row_tokens),
    ),
}
"""Kinds of planes, ascending."""
