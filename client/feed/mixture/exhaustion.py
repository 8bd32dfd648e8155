"""Where a mixture ends because a source has used up its epochs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.stream.stages import first_exhausted

_LOG = logging.getLogger("tokenfeed.client")


def require_epochs(spec: StreamSpec, max_epochs: Sequence[int | None]) -> None:
    """Raise InvalidRequest if a source has max_epochs, but an order without epochs."""
    for source, epochs in zip(spec.sources, max_epochs, strict=True):
        if epochs is not None and not source.order.HAS_EPOCHS:
            problem = f"is {epochs}, but {source.order.NAME} is endless and has no epochs"
            raise InvalidRequest(f"sources.{source.dataset}.max_epochs", problem)


def exhausted(spec: StreamSpec, max_epochs: Sequence[int | None], rows: Sequence[int]) -> int:
    """Return the sample before which a mixture ends: the first of the block that a source cannot
    fill within its epochs; 2^63 if there is none. Logs it.  Raises: InvalidRequest if a source has
    no window, or not even enough for the first block.

    max_epochs, rows (of an epoch): of each source.
    """
    assert spec.mixture is not None
    for source, count in zip(spec.sources, rows, strict=True):
        if count == 0:
            problem = f"{spec.context_length} is not below the longest file of {source.dataset}"
            raise InvalidRequest("context_length", problem)
    limits = [
        None if epochs is None else epochs * count
        for count, epochs in zip(rows, max_epochs, strict=True)
    ]
    end = first_exhausted(spec.mixture.stages, limits)
    if end is None:
        return SAMPLE_END
    if end.sample == 0:
        stage, name = spec.mixture.stages[0], spec.sources[end.source].dataset
        raise InvalidRequest(
            f"sources.{name}.max_epochs",
            f"is {max_epochs[end.source]}, which are {limits[end.source]} samples, but the first "
            f"block of {stage.block_size} samples needs {stage.weights[end.source]} of them; pass "
            "block= for smaller blocks, or a smaller weight",
        )
    _LOG.warning(
        "mixture ends when a source is exhausted source=%s max_epochs=%d sample=%d tokens=%d",
        spec.sources[end.source].dataset,
        max_epochs[end.source],
        end.sample,
        end.sample * spec.context_length,
    )
    return end.sample
