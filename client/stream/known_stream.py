"""A stream whose corpora are known: its requests, and what they expect of a server. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from tokenfeed.stream.identity import stage_plane_fingerprint
from tokenfeed.stream.planes import NO_FINGERPRINT, REDACTED, TOKEN_COUNTS
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import Expected, StreamRequest

from .usable import corpora_of
from .wanted_planes import known_fingerprints, plane_fingerprint


class KnownStream:
    """A stream, and the descriptions of the datasets that it reads."""

    def __init__(self, request: StreamRequest, datasets: Sequence[pb.Dataset]) -> None:
        """request: with the planes of the stream.  datasets: of each source."""
        self._request = request
        self._datasets = {
            source.number: dataset
            for source, dataset in zip(request.spec.sources, datasets, strict=True)
        }
        spec, corpora = request.spec, corpora_of(request.spec, datasets)
        # A mixture may be one of its later stages alone.
        self._first_stage = spec.mixture.stages[0].index if spec.mixture else 0
        self._chain = spec.chain(corpora)
        # Not made again for each call: a stage may have hundreds of sources.
        self._of_stage = lru_cache(2)(partial(_of_stage, spec, self._chain))

    def part(self, first_row: int, end_row: int) -> tuple[StreamRequest, Expected]:
        """Return the request for the rows [first_row, end_row), or for those of them in the stage
        of the first one and with the same redactions in force, and what it expects.
        """
        part = self._request.part(first_row, end_row, self._of_stage)
        datasets = [self._datasets[source.number] for source in part.spec.sources]
        stage = part.spec.mixture.stages[0].index - self._first_stage if part.spec.mixture else 0
        return part, Expected(
            part.spec.redacted(self._chain[stage + 1]),
            part.spec.identity_version,
            tuple(dataset.digest for dataset in datasets),
            self._plane_fingerprints(part.spec) if part.spec.planes else (),
        )

    def _plane_fingerprints(self, spec: StreamSpec) -> tuple[tuple[int, bytes], ...]:
        """Return the fingerprint of each plane, by its kind.

        spec: of a part; of a mixture its stage, in which perhaps no source has the plane.
        """
        numbered = [(source.number, self._datasets[source.number]) for source in spec.sources]

        def fingerprint(kind: int) -> bytes:
            if kind in (TOKEN_COUNTS, REDACTED):
                return NO_FINGERPRINT
            if spec.mixture is None:
                ((_, dataset),) = numbered
                return plane_fingerprint(dataset, kind)
            return stage_plane_fingerprint(kind, known_fingerprints(kind, numbered))

        return tuple((kind, fingerprint(kind)) for kind in spec.planes)


def _of_stage(spec: StreamSpec, chain: Sequence[bytes], place: int) -> StreamSpec:
    return spec.of_stage(place, chain[place])
