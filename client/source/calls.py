"""The calls of a stream whose datasets are known: what each asks for, and expects. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tokenfeed.stream.identity import stage_plane_fingerprint
from tokenfeed.stream.planes import NO_FINGERPRINT
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import AnyRequest, Expected

from .plane_selection import PLANES, known_fingerprints, plane_fingerprint
from .server_check import corpora_of


class StageCall(NamedTuple):
    """A call for rows of one stage.

    request: of that stage.  expected: what a server compares.  planes: kinds that all rows of the
    stream have; those that the call does not request are empty in its rows.
    """

    request: AnyRequest
    expected: Expected
    planes: tuple[int, ...]


class Calls:
    """The calls of a stream."""

    def __init__(self, request: AnyRequest, datasets: Sequence[pb.Dataset]) -> None:
        """request: with the planes of the stream.  datasets: of each source."""
        stream = request.stream
        known = stream.known(corpora_of(stream, datasets))
        self.request = replace(request, stream=known)
        """Of all rows, over the known stream."""
        self._datasets = dict(zip(stream.numbers, datasets, strict=True))

    def part(self, first_row: int, end_row: int) -> StageCall:
        """Return the call for some rows, as of `Request.part`."""
        part = self.request.part(first_row, end_row)
        stream = part.stream
        sample = part.position.sample_of(part.first_row)
        planes = tuple((kind, found) for kind in part.planes if (found := self._plane(part, kind)))
        expected = Expected(
            stream.identity(sample),
            tuple(self._datasets[number].digest for number in stream.numbers),
            planes,
        )
        request = replace(part, planes=tuple(kind for kind, _ in planes))
        return StageCall(request, expected, self.request.planes)

    def _plane(self, part: AnyRequest, kind: int) -> bytes:
        """Return the fingerprint of a plane of a stage; b"" if its rows do not have it."""
        follows = PLANES[kind].follows
        if follows is not None:
            return NO_FINGERPRINT if follows(part.stream) else b""
        numbered = [(number, self._datasets[number]) for number in part.stream.numbers]
        if len(numbered) == 1:
            return plane_fingerprint(numbered[0][1], kind)
        found = known_fingerprints(kind, numbered)
        return stage_plane_fingerprint(kind, found) if found else b""
