"""The three questions of Provenance, asked of a server in pages."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from client.provenance.asking import covered, open_provenance
from tests.conftest import Serve, WriteTokens
from tokenfeed.sampling import orders
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.wire.request import Expected


def test_scattered_samples_fit_the_requests_that_a_server_accepts(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """A part of a block of a mixture has hundreds of thousands of them."""
    server = serve("--data", write_tokens(np.zeros(400_001)))
    spec = StreamSpec.of_dataset("train", orders.find("shuffled-1"), 0, 4)
    first = np.arange(60_000, 100_000, 2)
    samples = np.stack([first, first + 1], axis=1)

    with closing(open_provenance(server.address)) as provenance:
        pages = list(covered(provenance, spec, Expected(), samples))

    assert sum(page.row_count for page in pages) == first.size
