"""Requests as messages of the contract, from plain fields."""

from __future__ import annotations

from typing import Any

from tokenfeed.v1 import tokenfeed_pb2 as pb

Weighted = tuple[pb.Source, int]
"""A source, and its weight."""

_OF_SOURCE = ("dataset", "order", "seed", "long_documents", "expected_digest")


def batches(**fields: Any) -> pb.GetBatchRequest:
    """A request for rows of a stream over one dataset.

    fields: those of GetBatchRequest, of its source, `context_length` and `redactions`; None is left
    out.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    return pb.GetBatchRequest(stream=_stream_in(given), **given)


def rows(samples: list[int], **fields: Any) -> pb.GetRowsRequest:
    """The same, for single rows; fields: as of `batches`."""
    given = {name: value for name, value in fields.items() if value is not None}
    return pb.GetRowsRequest(stream=_stream_in(given), samples=samples, **given)


def _stream_in(fields: dict[str, Any]) -> pb.Stream:
    """Take what is of the stream out of fields."""
    source = {name: fields.pop(name) for name in _OF_SOURCE if name in fields}
    return pb.Stream(
        sources=[pb.Source(**source)],
        stage=pb.Stage(context_length=fields.pop("context_length", 0)),
        redactions=fields.pop("redactions", ()),
    )


def mixed(
    *sources: Weighted, seed: int = 0, redactions: list[pb.Redaction] | None = None, **stage: Any
) -> pb.Stream:
    """A stream of several sources, each with its weight.

    stage: fields of Stage but for the shares.
    """
    shares = [pb.Share(source=source.number, weight=weight) for source, weight in sources]
    return pb.Stream(
        seed=seed,
        sources=[source for source, _ in sources],
        stage=pb.Stage(shares=shares, **stage),
        redactions=redactions or (),
    )
