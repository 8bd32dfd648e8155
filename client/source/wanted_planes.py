"""The planes that a feed reads: which of them, and what servers have to have in common. Pure.

The descriptions of the datasets decide it, once, when they are accepted: a request has a plane if
the feed wants it and a dataset has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

import numpy as np

from tokenfeed.errors import BadFrame, InvalidRequest, StreamMismatch, Unreachable
from tokenfeed.stream.identity import stage_plane_fingerprint
from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK, REDACTED, TOKEN_COUNTS
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import redacted_runs
from tokenfeed.wire.request import AnyRequest
from tokenfeed.wire.row_block import Plane, RowBlock

Wanted = TypeVar("Wanted", bound=AnyRequest)
LossMask = Literal["apply", "ignore"]
LOSS_MASKS: tuple[str, ...] = get_args(LossMask)

PLANE_NAMES = {
    DOCUMENT_STARTS: "document starts",
    LOSS_MASK: "loss mask",
    TOKEN_COUNTS: "token counts",
    REDACTED: "redacted tokens",
}
_NUMBER_BYTES = 4
"""Of a document start, and of a token count."""


@dataclass(frozen=True, slots=True)
class WantedPlanes:
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
        """Kinds of the wanted planes of datasets, ascending."""
        starts = self.document_starts or self.known_starts or self.pieces
        wanted = {DOCUMENT_STARTS: starts, LOSS_MASK: self.loss_mask}
        return tuple(kind for kind, is_wanted in wanted.items() if is_wanted)

    @property
    def masking(self) -> tuple[int, ...]:
        """Kinds of planes that mask targets, if rows have them; those of rows of pieces, and of
        redacted rows, always.
        """
        wanted = {
            DOCUMENT_STARTS: self.document_starts,
            LOSS_MASK: self.loss_mask,
            TOKEN_COUNTS: True,
            REDACTED: True,
        }
        return tuple(kind for kind, is_wanted in wanted.items() if is_wanted)

    def of_pieces(self, stream: Stream) -> WantedPlanes:
        """Return what is wanted of a stream: also where pieces begin, if its rows have pieces."""
        return replace(self, pieces=stream.reads_documents)

    @property
    def masks(self) -> WantedPlanes:
        """Those of the wanted planes that mask targets. Pieces are part of the identity."""
        return replace(self, known_starts=False, pieces=False)

    def chosen(self, datasets: Sequence[pb.Dataset]) -> tuple[int, ...]:
        """Return the kinds of planes to request of the datasets of a stream, ascending."""
        had = {
            kind: [bool(plane_fingerprint(dataset, kind)) for dataset in datasets]
            for kind in self.kinds
        }
        # A row of unknown documents would pass for one document.
        enough = {DOCUMENT_STARTS: any if self.pieces else all, LOSS_MASK: any}
        found = [kind for kind, by_dataset in had.items() if enough[kind](by_dataset)]
        return tuple(sorted((*found, TOKEN_COUNTS) if self.pieces else found))

    def knows_documents(self, datasets: Sequence[pb.Dataset]) -> bool:
        """Return whether the documents of all datasets are known, and requested."""
        return DOCUMENT_STARTS in self.kinds and all(
            plane_fingerprint(dataset, DOCUMENT_STARTS) for dataset in datasets
        )

    def request(self, request: Wanted, datasets: Sequence[pb.Dataset]) -> Wanted:
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
        return tuple(
            tuple(
                (kind, found) for kind in self.kinds if (found := plane_fingerprint(dataset, kind))
            )
            for dataset in datasets
        )

    def compared(self, datasets: Sequence[pb.Dataset]) -> str:
        """Return what ranks compare: the chosen planes that mask targets, in hexadecimal digits."""
        return b"".join(
            stage_plane_fingerprint(kind, known_fingerprints(kind, enumerate(datasets)))
            for kind in self.masks.chosen(datasets)
        ).hex()

    def require_ready(self, address: str, datasets: Sequence[pb.Dataset]) -> None:
        """Raise Unreachable while a server is still making a wanted plane: its fingerprint is
        empty.
        """
        for dataset in datasets:
            for plane in dataset.planes:
                if plane.kind in self.kinds and not plane.fingerprint:
                    name = f"{PLANE_NAMES[plane.kind]} of dataset {dataset.name!r}"
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
            name = f"{PLANE_NAMES[kind]} of dataset {reference.name!r}"
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


DEFAULT_PLANES = WantedPlanes()
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


def require_valid(rows: RowBlock, *, may_lack: bool) -> None:
    """Check the content of received planes: what reads them relies on it.

    may_lack: whether some rows may lack a plane: those of a source without it.  Raises: BadFrame.
    """
    row_tokens = rows.row_tokens
    # Token counts come before document starts: documents begin before padding.
    for plane in reversed(rows.planes):
        if plane.kind == DOCUMENT_STARTS:
            is_valid = _are_starts(plane, rows)
        elif plane.kind == REDACTED:
            is_valid = redacted_runs.are_valid(plane, row_tokens)
        elif plane.kind == TOKEN_COUNTS:
            is_valid = _has_bytes(plane, _NUMBER_BYTES, may_lack) and _are_counts(rows)
        else:
            is_valid = _has_bytes(plane, (row_tokens + 7) // 8, may_lack)
        if not is_valid:
            raise BadFrame(
                "frame", f"has {PLANE_NAMES[plane.kind]} that no row of {row_tokens} has"
            )


def _has_bytes(plane: Plane, row_bytes: int, may_lack: bool) -> bool:
    """Return whether each row has this many bytes; one that may lack it may have none."""
    wrong = plane.row_lengths != row_bytes
    return not (wrong & (plane.row_lengths != 0) if may_lack else wrong).any()


def _are_counts(rows: RowBlock) -> bool:
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
