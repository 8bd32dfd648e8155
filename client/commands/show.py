"""tokenfeed show: one batch, as token ids or as text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tokenfeed.commands.decoding import decoder
from tokenfeed.sampling import orders
from tokenfeed.stream.planes import DOCUMENT_STARTS
from tokenfeed.stream.position import Position
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.wire.request import StreamRequest
from tokenfeed.wire.row_block import RowBlock

from ..feed.mixture.recipe import long_argument
from ..local.choice import open_to_look
from ..runtime.arguments import first_position, text
from ..runtime.counters import Counters
from ..stream.row_stream import PREFETCH_BYTES
from . import WAIT_SECONDS

_TOKENS_SHOWN = 16

Pieces = Sequence[npt.NDArray[np.unsignedinteger]]
"""The tokens of a row without its padding, split where pieces of documents begin."""


def run_show(arguments: argparse.Namespace) -> None:
    """Print one batch, a row a line: its pieces with a bar between them, and how much padding."""
    in_words = _in_words(arguments.tokenizer)
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
    dataset = open_to_look(arguments.target, request, WAIT_SECONDS)
    rows = dataset.open_rows(request, prefetch_bytes=PREFETCH_BYTES, counters=Counters())
    rows.start()
    try:
        found = [row for part in rows.peek(arguments.batch_size) or () for row in _rows(part)]
        for sample, (pieces, padding) in enumerate(found, arguments.start_sample):
            more = f" + {padding} padding" if padding else ""
            print(f"sample {sample}: {in_words(pieces)}{more}")
    finally:
        dataset.close()
        rows.close()


def _rows(part: RowBlock) -> Iterator[tuple[Pieces, int]]:
    """Yield the pieces of each row, and its tokens of padding."""
    counts = part.token_counts
    starts = next((plane for plane in part.planes if plane.kind == DOCUMENT_STARTS), None)
    for index, row in enumerate(part.tokens):
        count = part.row_tokens if counts is None else int(counts[index])
        begins = () if starts is None else starts[index : index + 1].content.view("<u4")
        yield np.split(row[:count], begins), part.row_tokens - count


def _in_words(tokenizer: str | None) -> Callable[[Pieces], str]:
    """Return a function that prints the pieces of a row."""
    if tokenizer is None:
        return _first_ids
    decode = decoder(tokenizer)
    return lambda pieces: " | ".join(repr(decode(piece.tolist())) for piece in pieces)


def _first_ids(pieces: Pieces) -> str:
    shown, room = [], _TOKENS_SHOWN
    for piece in pieces:
        if room:
            shown.append(" ".join(map(str, piece[:room].tolist())))
            room -= min(room, len(piece))
    count = sum(map(len, pieces))
    return " | ".join(shown) + (f" ... ({count} tokens)" if count > _TOKENS_SHOWN else "")
