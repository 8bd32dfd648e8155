"""The tokens of single rows, and of rows whose tokens were erased, that they were."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import BadFrame, Deleted
from tokenfeed.stream.spec import StreamSpec

from ..feed.options import PREFETCH_BYTES
from ..local.choice import open_to_look
from ..local.provenance import QUESTION_SECONDS
from ..runtime.counters import Counters
from .asking import stream_request

Tokens = npt.NDArray[np.unsignedinteger]


def read_rows(
    target: str, spec: StreamSpec, first_sample: int, end_sample: int
) -> Iterator[Tokens | None]:
    """Yield the tokens of the samples [first_sample, end_sample), in order: [T + 1], padding
    included; None for a row whose tokens were erased.

    spec: of one dataset, or of one stage of a mixture, with the redactions in force.
    Raises: TokenfeedError.
    """
    request = stream_request(spec, first_sample, end_sample)
    dataset = open_to_look(target, request, QUESTION_SECONDS)
    try:
        at, row_count = first_sample, end_sample - first_sample
        while at < end_sample:
            part = stream_request(spec, at, min(at + row_count, end_sample))
            rows = dataset.open_rows(part, prefetch_bytes=PREFETCH_BYTES, counters=Counters())
            rows.start()
            try:
                for _ in range(part.row_count):
                    blocks = rows.peek(1)
                    if not blocks:
                        raise BadFrame("GetBatch", f"has no row of sample {at}")
                    yield blocks[0].tokens[0]
                    rows.consume(1)
                    at += 1
            except Deleted:
                # Of several rows it does not say which.
                if row_count == 1:
                    yield None
                    at += 1
                row_count = 1
            finally:
                rows.close()
    finally:
        dataset.close()
