"""Frames that are written in place: the same bytes as the protobuf runtime would write."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.support.frames import encode
from tokenfeed.stream.planes import LOSS_MASK
from tokenfeed.stream.position import Position
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.draft import drafts
from tokenfeed.wire.frame import TOKEN_DTYPES, Frames
from tokenfeed.wire.row_block import Plane, RowBlock

T = 5
PLANES = {LOSS_MASK: bytes(range(32, 64))}
FRAMES = Frames(T + 1, Position(800, 4, 1, 2), bytes(range(32)), PLANES)


@pytest.mark.parametrize("token_bytes", [2, 4])
@pytest.mark.parametrize("has_plane", [False, True])
@pytest.mark.parametrize("row_count", [1, 3, 100])
def test_a_message_is_what_the_protobuf_runtime_writes(
    token_bytes: int, has_plane: bool, row_count: int
) -> None:
    """Byte for byte, also the fields of the header in their order."""
    dtype = TOKEN_DTYPES[token_bytes]
    tokens = np.random.default_rng(1).integers(1, 50_000, (row_count, T + 1)).astype(dtype)
    lengths = np.ones(row_count, dtype=np.uint32)
    plane = Plane(LOSS_MASK, lengths, np.arange(row_count, dtype=np.uint8))
    planes = (plane,) if has_plane else ()
    (message,) = encode(FRAMES, 6, RowBlock(tokens, planes))

    assert pb.Frame.FromString(message).SerializeToString() == message
    assert message.endswith(tokens.tobytes())


def test_the_tokens_of_a_draft_live_as_long_as_they_are_used() -> None:
    """They are memory of the message, which nothing else may keep."""
    tokens = drafts(FRAMES, 0, 10_000, TOKEN_DTYPES[2])[0].tokens
    gc.collect()
    others = [bytes(tokens.nbytes) for _ in range(100)]
    tokens[:] = 7

    assert not any(map(any, others))
    assert (tokens == 7).all()
