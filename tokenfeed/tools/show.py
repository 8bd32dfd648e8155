"""tokenfeed show: one batch, as token ids or as text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tokenfeed.client.feed.mixture.recipe import dataset_stream
from tokenfeed.client.feed.options import PREFETCH_BYTES
from tokenfeed.client.runtime.arguments import first_position, text
from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.source.open_source import open_to_look
from tokenfeed.commands.decoding import decoder
from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK
from tokenfeed.stream.position import Position
from tokenfeed.wire.request import Request
from tokenfeed.wire.row_block import RowBlock

from . import WAIT_SECONDS

_TOKENS_SHOWN = 16

Run = tuple[npt.NDArray[np.unsignedinteger], bool]
"""Tokens in a row, and whether a loss mask makes them targets."""
Pieces = Sequence[Sequence[Run]]
"""The tokens of a row without its padding, split where pieces of documents begin, and each of them
where targets begin and end.
"""


def run_show(arguments: argparse.Namespace) -> None:
    """Print one batch, a row a line: its pieces with a bar between them, what a loss mask makes
    targets in brackets, and how much padding.
    """
    in_words = _in_words(arguments.tokenizer)
    stream = dataset_stream(
        text("dataset", arguments.dataset),
        arguments.order,
        arguments.seed,
        arguments.context_length,
        arguments.long,
        arguments.group_tokens,
    )
    request = Request(
        stream,
        first_position(0, arguments.start_sample, Position(0, arguments.batch_size)),
        num_batches=1,
    )
    dataset = open_to_look(arguments.target, request, WAIT_SECONDS, loss_mask=True)
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
    planes = {plane.kind: plane for plane in part.planes}
    starts, mask = planes.get(DOCUMENT_STARTS), planes.get(LOSS_MASK)
    for index, row in enumerate(part.tokens):
        count = part.row_tokens if counts is None else int(counts[index])
        begins = () if starts is None else starts[index : index + 1].content.view("<u4")
        targets = np.zeros(count, np.bool_)
        if mask is not None:
            bits = mask[index : index + 1].content
            targets = np.unpackbits(bits, count=count, bitorder="little").astype(np.bool_)
        pieces = zip(np.split(row[:count], begins), np.split(targets, begins), strict=True)
        yield [list(_runs(*piece)) for piece in pieces], part.row_tokens - count


def _runs(tokens: npt.NDArray[np.unsignedinteger], targets: npt.NDArray[np.bool_]) -> Iterator[Run]:
    ends = np.flatnonzero(targets[1:] != targets[:-1]) + 1
    for run, are_targets in zip(np.split(tokens, ends), np.split(targets, ends), strict=True):
        yield run, bool(are_targets.any())


def _in_words(tokenizer: str | None) -> Callable[[Pieces], str]:
    """Return a function that prints the pieces of a row."""
    if tokenizer is None:
        return _first_ids
    decode = decoder(tokenizer)

    def in_words(pieces: Pieces) -> str:
        return " | ".join(
            " ".join(_marked(repr(decode(run.tolist())), learned) for run, learned in piece)
            for piece in pieces
        )

    return in_words


def _marked(shown: str, are_targets: bool) -> str:
    return f"[{shown}]" if are_targets else shown


def _first_ids(pieces: Pieces) -> str:
    shown, room = [], _TOKENS_SHOWN
    for piece in pieces:
        runs = []
        for run, are_targets in piece:
            if room:
                runs.append(_marked(" ".join(map(str, run[:room].tolist())), are_targets))
                room -= min(room, len(run))
        shown += [" ".join(runs)] if runs else []
    count, targets = _counts(pieces)
    if count <= _TOKENS_SHOWN:
        return " | ".join(shown)
    of_targets = f", {targets} of them targets" if targets else ""
    return f"{' | '.join(shown)} ... ({count} tokens{of_targets})"


def _counts(pieces: Pieces) -> tuple[int, int]:
    """Return how many tokens pieces have, and how many of them are marked as targets."""
    runs = [(len(run), are_targets) for piece in pieces for run, are_targets in piece]
    return sum(count for count, _ in runs), sum(count for count, own in runs if own)
