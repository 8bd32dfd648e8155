"""What makes two streams the same stream, and its hash.

Pure: says which bytes to read and what to do with their hashes; reading them is the corpus' work.
Every canonical form is lines of ASCII, so that any language can write it: docs/protocol.md,
Identity, Redactions, Planes.

The fingerprint guards a stream, it does not steer it: which tokens a sample has depends on order,
seed, context length and the files' token counts alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .order import Order

VERSIONS_SERVED = (1,)
"""Versions of the identity that a server can compare: streams of one dataset, without redactions.
Those of mixtures (2) and of redactions (3) are published, and not served yet.
"""
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
    order: Order, seed: int, context_length: int, corpus_fingerprint: bytes, pieces: bytes = b""
) -> bytes:
    """Return the identity of a stream of one dataset, 32 bytes: version 1.

    seed: in [0, 2^64); an order that ignores it has it as 0.  corpus_fingerprint: 32 bytes.
    pieces: `pieces_hash` for an order over documents, else b"".
    """
    return _hash(
        "tokenfeed-identity-1",
        f"order={order.NAME}",
        f"seed={seed if order.USES_SEED else 0}",
        f"context_length={context_length}",
        f"fingerprint={corpus_fingerprint.hex()}",
        *_if_known("pieces", pieces),
    )


@dataclass(frozen=True, slots=True)
class SourceParts:
    """What the identity of a stage says of one source of it.

    number: which it keeps in all stages.  base: samples that it gave before the stage.  weight: of
    its samples in a block, at least 1.  The rest as for `stream_identity`.
    """

    number: int
    fingerprint: bytes
    order: str
    seed: int
    base: int
    weight: int
    pieces: bytes = b""


def mixture_identity(order: str, seed: int, context_length: int) -> bytes:
    """Return H(0) of the chain of identities of a mixture, 32 bytes: nothing is mixed yet."""
    return _hash(
        "tokenfeed-identity-2",
        f"order={order}",
        f"seed={seed}",
        f"context_length={context_length}",
    )


def stage_identity(
    previous: bytes, index: int, first_sample: int, sources: Sequence[SourceParts]
) -> bytes:
    """Return H(index + 1), the identity of the rows of a stage, 32 bytes: version 2.

    previous: H(index).  first_sample: with which the stage begins, at a block border.  sources:
    those with a weight above 0, by ascending number.
    """
    lines = [
        "tokenfeed-stage-1",
        f"previous={previous.hex()}",
        f"stage={index}",
        f"first_sample={first_sample}",
        f"sources={len(sources)}",
    ]
    for source in sources:
        lines += [
            f"source={source.number}",
            f"fingerprint={source.fingerprint.hex()}",
            f"order={source.order}",
            f"seed={source.seed}",
            f"base={source.base}",
            f"weight={source.weight}",
            *_if_known("pieces", source.pieces),
        ]
    return _hash(*lines)


def redacted_identity(identity: bytes, redactions: Sequence[tuple[int, int, bytes]]) -> bytes:
    """Return the identity of rows from which something was taken out, 32 bytes: version 3.

    identity: of the same rows without that.  redactions: (first sample, number of the source, hash
    of the list) of each that is in force, ascending, at least one.
    """
    lines = ["tokenfeed-identity-3", f"identity={identity.hex()}", f"redactions={len(redactions)}"]
    for first_sample, source, list_hash in redactions:
        lines += [f"first_sample={first_sample}", f"source={source}", f"list={list_hash.hex()}"]
    return _hash(*lines)


def redaction_list_hash(fill: int, ranges: Sequence[tuple[int, int, int]]) -> bytes:
    """Return the hash of a list of what is taken out, 32 bytes.

    fill: the token that stands there instead.  ranges: (file, first token, end token), ascending;
    they neither overlap nor touch.
    """
    lines = ["tokenfeed-redactions-1", f"fill={fill}", f"ranges={len(ranges)}"]
    return _hash(*lines, *(f"range={file} {first} {end}" for file, first, end in ranges))


def pieces_hash(
    context_length: int,
    long_documents: str,
    delimiter: int | None,
    lengths: Sequence[Sequence[int]],
) -> bytes:
    """Return the hash of how documents are cut into pieces, 32 bytes.

    long_documents: "cut", "drop" or "truncate".  delimiter: the token that ends a document; None
    where the format says it.  lengths: of each file, tokens of its pieces, in order.
    """
    content = b"".join(length.to_bytes(4, "little") for file in lengths for length in file)
    return _hash(
        "tokenfeed-pieces-1",
        f"context_length={context_length}",
        f"long={long_documents}",
        f"delimiter={'none' if delimiter is None else delimiter}",
        f"files={len(lengths)}",
        *(f"pieces={len(file)}" for file in lengths),
        f"lengths={hashlib.sha256(content).hexdigest()}",
    )


def plane_fingerprint(
    kind: int, entry_counts: Iterable[int], block_digests: Iterable[bytes]
) -> bytes:
    """Return the fingerprint of a plane of a dataset, 32 bytes.

    kind: its field number in a frame.  entry_counts: of each file, in order.  block_digests:
    SHA-256 of each of `content_blocks` of its entries laid end to end.
    """
    counts = list(entry_counts)
    return _hash(
        "tokenfeed-plane-1",
        f"plane={kind}",
        f"files={len(counts)}",
        *(f"entries={count}" for count in counts),
        f"content={hashlib.sha256(b''.join(block_digests)).hexdigest()}",
    )


def stage_plane_fingerprint(kind: int, fingerprints: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the fingerprint of a plane of a stage of a mixture, 32 bytes.

    fingerprints: (number of the source, its plane's fingerprint) of each source that has it,
    ascending.
    """
    lines = ["tokenfeed-stage-plane-1", f"plane={kind}", f"sources={len(fingerprints)}"]
    for number, fingerprint in fingerprints:
        lines += [f"source={number}", f"fingerprint={fingerprint.hex()}"]
    return _hash(*lines)


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


def _if_known(name: str, value: bytes) -> tuple[str, ...]:
    return (f"{name}={value.hex()}",) if value else ()


def _hash(*lines: str) -> bytes:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode("ascii")).digest()
