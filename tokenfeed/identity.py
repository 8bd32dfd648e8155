"""What makes two streams the same stream, and its hash.

Pure: says which bytes to read and what to do with their hashes; reading them is the corpus' work.
Every canonical form is lines of ASCII, so that any language can write it: docs/protocol.md,
Identity.

The fingerprint guards a stream, it does not steer it: which tokens a sample has depends on order,
seed, context length and the files' token counts alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from .orders import Order

IDENTITY_VERSION = 1
COMPLETE_BYTES_MAX = 1 << 30
"""A corpus up to exactly this size is hashed in full: one token changed anywhere changes the
fingerprint.
"""
BLOCK_BYTES = 1 << 20
SPREAD_BLOCKS = 4096
SPREAD_BLOCK_BYTES = 4096


def content_blocks(content_bytes: int, *, complete: bool = False) -> Iterator[tuple[int, int]]:
    """Yield which blocks of a corpus are hashed, as (first_byte, end_byte) of the files' tokens
    laid end to end.

    All of it in blocks of 2^20 bytes up to exactly 2^30 bytes (or where complete); above, 4,096
    blocks of 4,096 bytes spread evenly from the first byte to the last.
    """
    if complete or content_bytes <= COMPLETE_BYTES_MAX:
        for first in range(0, content_bytes, BLOCK_BYTES):
            yield first, min(first + BLOCK_BYTES, content_bytes)
    else:
        room = content_bytes - SPREAD_BLOCK_BYTES
        for index in range(SPREAD_BLOCKS):
            first = index * room // (SPREAD_BLOCKS - 1)
            yield first, first + SPREAD_BLOCK_BYTES


def fingerprint(dtype: str, token_counts: Iterable[int], block_digests: Iterable[bytes]) -> bytes:
    """Return the quick fingerprint of a corpus, 32 bytes.

    dtype: of the stored tokens, "uint16".  token_counts: of each file, in order.
    block_digests: SHA-256 of each of `content_blocks`, in order.
    """
    return _corpus_hash("fingerprint", dtype, token_counts, block_digests)


def digest(dtype: str, token_counts: Iterable[int], block_digests: Iterable[bytes]) -> bytes:
    """Return the full digest of a corpus, 32 bytes: as `fingerprint`, but over all of
    `content_blocks(complete=True)`.
    """
    return _corpus_hash("digest", dtype, token_counts, block_digests)


def stream_identity(
    order: Order, seed: int, context_length: int, corpus_fingerprint: bytes
) -> bytes:
    """Return the identity of a stream, 32 bytes.

    seed: in [0, 2^64); an order that ignores it has it as 0.  corpus_fingerprint: 32 bytes.
    """
    return _hash(
        f"tokenfeed-identity-{IDENTITY_VERSION}",
        f"order={order.NAME}",
        f"seed={seed if order.USES_SEED else 0}",
        f"context_length={context_length}",
        f"fingerprint={corpus_fingerprint.hex()}",
    )


def _corpus_hash(
    kind: str, dtype: str, token_counts: Iterable[int], block_digests: Iterable[bytes]
) -> bytes:
    counts: Sequence[int] = list(token_counts)
    content = hashlib.sha256(b"".join(block_digests)).hexdigest()
    return _hash(
        f"tokenfeed-{kind}-1",
        f"dtype={dtype}",
        f"files={len(counts)}",
        *(f"tokens={count}" for count in counts),
        f"content={content}",
    )


def _hash(*lines: str) -> bytes:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode("ascii")).digest()
