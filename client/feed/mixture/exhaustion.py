"""Where a mixture ends because a source has used up its epochs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.stream.stages import first_exhausted

_LOG = logging.getLogger("tokenfeed.client")


def exhausted(
    spec: StreamSpec,
    max_epochs: Mapping[str, int],
    rows: Sequence[int],
    sample: int = 0,
) -> int:
    """Return the sample before which a mixture ends: the first of the block that a source cannot
    fill within its epochs; 2^63 if there is none. Logs it.  Raises: like `limits_of`.

    max_epochs: by the names of datasets.  rows: of an epoch of each source.  sample: the position;
    stages that end before it do not count.
    """
    assert spec.mixture is not None
    limits = limits_of(spec, max_epochs, rows, sample)
    end = first_exhausted(spec.mixture.stages, limits, sample)
    if end is None:
        return SAMPLE_END
    name = spec.sources[end.source].dataset
    _LOG.warning(
        "mixture ends when a source is exhausted source=%s max_epochs=%d sample=%d tokens=%d",
        name,
        max_epochs[name],
        end.sample,
        end.sample * spec.context_length,
    )
    return end.sample


def limits_of(
    spec: StreamSpec, max_epochs: Mapping[str, int], rows: Sequence[int], sample: int = 0
) -> list[int | None]:
    """Return the samples that each source of a mixture may contribute; None is endless.

    max_epochs: by the names of datasets.  rows: of an epoch of each source.  sample: the position.
    Raises: InvalidRequest at sample 0 if a source has not even enough for the first block.
    """
    assert spec.mixture is not None
    names = [source.dataset for source in spec.sources]
    limits = [
        max_epochs[name] * count if name in max_epochs else None
        for name, count in zip(names, rows, strict=True)
    ]
    first = spec.mixture.stages[0]
    for name, limit, weight in zip(names, limits, first.weights, strict=True):
        if sample == 0 and limit is not None and limit < weight:
            raise InvalidRequest(
                f"sources.{name}.max_epochs",
                f"is {max_epochs[name]}, which are {limit} samples, but the first block of "
                f"{first.block_size} samples needs {weight} of them; pass block= for smaller "
                "blocks, or a smaller weight",
            )
    return limits
