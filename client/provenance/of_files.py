"""Where rows of local files come from, and where tokens went: what a server tells by Provenance."""

from __future__ import annotations

from tokenfeed.stream.position import Position
from tokenfeed.v1 import provenance_pb2 as pb
from tokenfeed.v1 import tokenfeed_pb2 as request_pb
from tokenfeed.wire.request import Request, parse_stream

from ..source.file_target import parse_local_target
from ..source.files import Files

QUESTION_SECONDS = 15.0
"""How long a question is asked again while files cannot be read, or no server answers."""


class LocalProvenance:
    """Answers requests of Provenance from local files, which are opened for the first one."""

    def __init__(self, target: str) -> None:
        """Parse the target; does no I/O.  Raises: InvalidRequest if it is malformed."""
        parse_local_target(target)
        self._target = target
        self._opened: dict[tuple[str, ...], Files] = {}

    def locate(self, request: pb.LocateRequest) -> pb.LocateResponse:
        """Return where rows come from.  Raises: TokenfeedError."""
        return self._files(request.rows.stream).await_provenance().locate(request)

    def find(self, request: pb.FindRequest) -> pb.FindResponse:
        """Return which rows hold some tokens.  Raises: TokenfeedError."""
        return self._files(request.stream).await_provenance().find(request)

    def coverage(self, request: pb.CoverageRequest) -> pb.CoverageResponse:
        """Return which tokens samples hold.  Raises: TokenfeedError."""
        return self._files(request.stream).await_provenance().coverage(request)

    def close(self) -> None:
        """Close the files."""
        for files in self._opened.values():
            files.close()
        self._opened.clear()

    def _files(self, message: request_pb.Stream) -> Files:
        """Return the files of the datasets of a stream."""
        plain = request_pb.Stream()
        plain.CopyFrom(message)
        del plain.redactions[:]
        stream, _ = parse_stream(plain)
        names = tuple(source.dataset for source in stream.sources)
        if names not in self._opened:
            request = Request(stream, Position(stream.stage.first_sample, 1))
            self._opened[names] = Files(self._target, request, reconnect_seconds=QUESTION_SECONDS)
        return self._opened[names]
