"""The tokens of single rows, and of rows whose tokens were erased, that they were."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tokenfeed.client.feed.options import PREFETCH_BYTES
from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.source.open_source import open_to_look
from tokenfeed.errors import BadFrame, Deleted

from .runs import Segment
from .target import QUESTION_SECONDS, request_of

Tokens = npt.NDArray[np.unsignedinteger]


def read_rows(target: str, segment: Segment) -> Iterator[Tokens | None]:
    """Yield the tokens of the samples of a segment, in order: [T + 1], padding included; None for a
    row whose tokens were erased.

    Raises: TokenfeedError.
    """
    dataset = open_to_look(target, request_of(segment), QUESTION_SECONDS)
    try:
        stream, at, end_sample = segment
        row_count = end_sample - at
        while at < end_sample:
            part = request_of(Segment(stream, at, min(at + row_count, end_sample)))
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
