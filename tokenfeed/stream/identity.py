"""The identity of a stream: a hash of everything that makes two streams the same stream.

Pure: it defines which bytes to hash and how to combine their hashes; the server reads them.
Every canonical form is lines of ASCII, so that any language can write it: docs/protocol.md,
Identity, Redactions, Planes.

The fingerprint protects a stream, but does not affect it: the tokens of a sample depend only on
order, seed, context length and the files' token counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .order import Order

VERSIONS_SERVED = (1, 2, 3)
"""Versions of the identity that a server can compare: of streams of one dataset, of stages of
mixtures, and of both with redactions.
"""
COMPLETE_BYTES_MAX = 1 << 30
"""A corpus of up to exactly this size is hashed in full: a change of any token changes the
fingerprint.
"""
BLOCK_BYTES = 1 << 20
SPREAD_BLOCKS = 4096
SPREAD_BLOCK_BYTES = 4096


def content_blocks(content_bytes: int, *, complete: bool = False) -> Iterator[tuple[int, int]]:
    """Yield the blocks of a corpus that are hashed, as (first_byte, end_byte) of the concatenated
    tokens of the files.

    Up to exactly 2^30 bytes, or if complete: the whole corpus in blocks of 2^20 bytes. Above: 4,096
    blocks of 4,096 bytes, spread evenly from the first byte to the last.
    """
    if complete or content_bytes <= COMPLETE_BYTES_MAX:
        for first in range(0, content_bytes, BLOCK_BYTES):
            yield first, min(first + BLOCK_BYTES, content_bytes)
    else:
        room = content_bytes - SPREAD_BLOCK_BYTES
        for index in range(SPREAD_BLOCKS):
            first = index * room // (SPREAD_BLOCKS - 1)
            yield first, first + SPREAD_BLOCK_BYTES


def fingerprint(
    dtype: str,
    token_counts: Iterable[int],
    block_digests: Iterable[bytes],
    row_tokens: int | None = None,
) -> bytes:
    """Return the quick fingerprint of a corpus, 32 bytes.

    dtype: of the stored tokens, such as "uint16".  token_counts: of each file, in order.
    block_digests: SHA-256 of each of `content_blocks`, in order.  row_tokens: tokens of each row of
    files that were packed into rows; None for others.
    """
    return of_rows(_corpus_hash("fingerprint", dtype, token_counts, block_digests), row_tokens)


def of_rows(found: bytes, row_tokens: int | None) -> bytes:
    """Return the fingerprint of files of rows.  found: that of the same files without rows.
    row_tokens: None if they are not taken for rows.
    """
    if row_tokens is None:
        return found
    return _hash("tokenfeed-rows-1", f"row_tokens={row_tokens}", f"fingerprint={found.hex()}")


def digest(dtype: str, token_counts: Iterable[int], block_digests: Iterable[bytes]) -> bytes:
    """Return the full digest of a corpus, 32 bytes: like `fingerprint`, but over
    `content_blocks(complete=True)`.
    """
    return _corpus_hash("digest", dtype, token_counts, block_digests)


class Corpus(NamedTuple):
    """What an identity covers of a corpus.

    fingerprint: 32 bytes.  pieces: `pieces_hash` for an order over documents, else b"".
    """

    fingerprint: bytes
    pieces: bytes = b""


def stream_identity(
    order: Order, seed: int, context_length: int, corpus_fingerprint: bytes, pieces: bytes = b""
) -> bytes:
    """Return the identity of a stream of one dataset, 32 bytes: version 1.

    seed: in [0, 2^64); hashed as 0 if the order ignores it.  corpus_fingerprint: 32 bytes.
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
    """One source in the identity of a stage.

    number: of the source, the same in all stages.  base: its samples before the stage.  weight:
    number of its samples in a block, at least 1.  The rest as for `stream_identity`.
    """

    number: int
    fingerprint: bytes
    order: str
    seed: int
    base: int
    weight: int
    pieces: bytes = b""


def mixture_identity(order: str, seed: int, context_length: int) -> bytes:
    """Return H(0) of the identity chain of a mixture, 32 bytes: before the first stage."""
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

    previous: H(index).  first_sample: of the stage, at a block border.  sources: those with a
    weight above 0, by ascending number.
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
    """Return the identity of redacted rows, 32 bytes: version 3.

    identity: of the same rows without redactions.  redactions: (first sample, number of the source,
    hash of the list) of each redaction in force, ascending, at least one.
    """
    lines = ["tokenfeed-identity-3", f"identity={identity.hex()}", f"redactions={len(redactions)}"]
    for first_sample, source, list_hash in redactions:
        lines += [f"first_sample={first_sample}", f"source={source}", f"list={list_hash.hex()}"]
    return _hash(*lines)


def redaction_list_hash(fill: int, ranges: Sequence[tuple[int, int, int]]) -> bytes:
    """Return the hash of a list of redactions, 32 bytes.

    fill: the token that replaces redacted ones.  ranges: (file, first token, end token), ascending;
    they neither overlap nor touch.
    """
    lines = ["tokenfeed-redactions-1", f"fill={fill}", f"ranges={len(ranges)}"]
    return _hash(*lines, *(f"range={file} {first} {end}" for file, first, end in ranges))


def pieces_hash(
    context_length: int,
    long_documents: str,
    delimiter: int | None,
    document_counts: Sequence[int],
    lengths_sha256: str,
) -> bytes:
    """Return the hash of how documents are cut into pieces, 32 bytes.

    It covers the lengths of all documents, also of those without a piece: with the same pieces at
    other places, rows have other tokens.
    long_documents: "cut", "drop" or "truncate".  delimiter: the token that ends a document; None
    if the format defines it.  document_counts: of each file, those that have tokens.
    lengths_sha256: of the tokens of each such document, 8 bytes each, little-endian, in the order
    of the corpus; hexadecimal.
    """
    return _hash(
        "tokenfeed-pieces-1",
        f"context_length={context_length}",
        f"long={long_documents}",
        f"delimiter={'none' if delimiter is None else delimiter}",
        f"files={len(document_counts)}",
        *(f"documents={count}" for count in document_counts),
        f"lengths={lengths_sha256}",
    )


def plane_fingerprint(
    kind: int, entry_counts: Iterable[int], block_digests: Iterable[bytes]
) -> bytes:
    """Return the fingerprint of a plane of a dataset, 32 bytes.

    kind: its field number in a frame.  entry_counts: of each file, in order.  block_digests:
    SHA-256 of each of `content_blocks` of its concatenated entries.
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

    fingerprints: (number of the source, fingerprint of its plane) of each source that has the
    plane, ascending.
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
