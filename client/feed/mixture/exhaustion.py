"""Where a mixture ends because a source has used up its epochs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.stream.stages import first_exhausted

_LOG = logging.getLogger("tokenfeed.client")


def exhausted(spec: StreamSpec, max_epochs: Mapping[str, int], rows: Sequence[int]) -> int:
    """Return the sample before which a mixture ends: the first of the block that a source cannot
    fill within its epochs; 2^63 if there is none. Logs it.  Raises: InvalidRequest if a source has
    not even enough for the first block.

    max_epochs: by the names of datasets.  rows: of an epoch of each source.
    """
    assert spec.mixture is not None
    names = [source.dataset for source in spec.sources]
    limits = [
        max_epochs[name] * count if name in max_epochs else None
        for name, count in zip(names, rows, strict=True)
    ]
    end = first_exhausted(spec.mixture.stages, limits)
    if end is None:
        return SAMPLE_END
    if end.sample == 0:
        stage, name = spec.mixture.stages[0], names[end.source]
        raise InvalidRequest(
            f"sources.{name}.max_epochs",
            f"is {max_epochs[name]}, which are {limits[end.source]} samples, but the first "
            f"block of {stage.block_size} samples needs {stage.weights[end.source]} of them; pass "
            "block= for smaller blocks, or a smaller weight",
        )
    _LOG.warning(
        "mixture ends when a source is exhausted source=%s max_epochs=%d sample=%d tokens=%d",
        names[end.source],
        max_epochs[names[end.source]],
        end.sample,
        end.sample * spec.context_length,
    )
    return end.sample
