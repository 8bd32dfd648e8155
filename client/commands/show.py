"""tokenfeed show: one batch, as token ids or as text."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tokenfeed.commands.decoding import decoder
from tokenfeed.sampling import orders
from tokenfeed.stream.position import Position
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.wire.request import StreamRequest

from ..feed.mixture.recipe import long_argument
from ..local.choice import open_target
from ..runtime.arguments import first_position, text
from ..runtime.counters import Counters
from ..stream.row_stream import PREFETCH_BYTES
from ..stream.wanted_planes import WantedPlanes
from ..transport.timeouts import Timeouts
from . import WAIT_SECONDS

_TOKENS_SHOWN = 16


def run_show(arguments: argparse.Namespace) -> None:
    """Print one batch."""
    decode = _decoder(arguments.tokenizer)
    spec = StreamSpec.of_dataset(
        text("dataset", arguments.dataset),
        orders.latest(arguments.order),
        arguments.seed,
        arguments.context_length,
        long_documents=long_argument(arguments.order, arguments.long),
    )
    request = StreamRequest(
        spec,
        first_position(0, arguments.start_sample, Position(0, arguments.batch_size)),
        num_batches=1,
    )
    dataset = open_target(
        arguments.target,
        request,
        timeouts=Timeouts(reconnect_seconds=WAIT_SECONDS),
        planes=WantedPlanes(loss_mask=False),
    )
    rows = dataset.open_rows(request, prefetch_bytes=PREFETCH_BYTES, counters=Counters())
    rows.start()
    try:
        found = [row for part in rows.peek(arguments.batch_size) or () for row in part.tokens]
        for sample, row in enumerate(found, arguments.start_sample):
            print(f"sample {sample}: {decode(row)}")
    finally:
        dataset.close()
        rows.close()


def _decoder(tokenizer: str | None) -> Callable[[npt.NDArray[np.unsignedinteger]], str]:
    if tokenizer is None:
        return lambda row: (
            " ".join(map(str, row[:_TOKENS_SHOWN].tolist()))
            + (f" ... ({len(row)} tokens)" if len(row) > _TOKENS_SHOWN else "")
        )
    decode = decoder(tokenizer)
    return lambda row: repr(decode(row.tolist()))
