"""The three questions of Provenance, asked of a server in pages."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from tests.conftest import Serve, WriteTokens
from tokenfeed.sampling import orders
from tokenfeed.stream.stream import Stream
from tokenfeed.tools.provenance.target import Target


def test_scattered_samples_fit_the_requests_that_a_server_accepts(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """A part of a block of a mixture has hundreds of thousands of them."""
    server = serve("--data", write_tokens(np.zeros(400_001)))
    stream = Stream.of_dataset("train", orders.find("shuffled-1"), 0, 4)
    first = np.arange(60_000, 100_000, 2)
    samples = np.stack([first, first + 1], axis=1)

    with closing(Target(server.address)) as target:
        pages = list(target.coverage_pages(target.known(stream), samples))

    assert sum(page.row_count for page in pages) == first.size
