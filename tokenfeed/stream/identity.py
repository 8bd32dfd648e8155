"""Hashes that tell whether two streams have the same rows.

The fingerprint of a corpus is a hash of its tokens, above 2^30 bytes of a part of them. The
identity of a stage is a hash of all that its rows follow from: fingerprints, orders, seeds, shares,
context length, and the identity of the stage before it. Pieces are the parts of documents that an
order over documents puts into rows. No fingerprint and no identity decides which row a sample has.

Pure: this module says which bytes are hashed, and combines the hashes; the server reads the bytes.
Hashes are combined as lines of ASCII, so that any language can do it: docs/protocol.md,
Fingerprint, Identity and Planes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .stage import Source, Stage

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
    return fingerprint_of_rows(
        _corpus_hash("fingerprint", dtype, token_counts, block_digests), row_tokens
    )


def fingerprint_of_rows(found: bytes, row_tokens: int | None) -> bytes:
    """Return the fingerprint of files that were packed into rows, 32 bytes.

    found: the fingerprint of the same files as plain tokens.  row_tokens: tokens of each row; None
    if the files were not packed, which returns `found` as it is.
    """
    if row_tokens is None:
        return found
    return _hash("tokenfeed-rows-1", f"row_tokens={row_tokens}", f"fingerprint={found.hex()}")


def digest(dtype: str, token_counts: Iterable[int], block_digests: Iterable[bytes]) -> bytes:
    """Return the full digest of a corpus, 32 bytes. It never equals the fingerprint, also where
    both cover every byte.

    dtype, token_counts: as for `fingerprint`.  block_digests: SHA-256 of each block of
    `content_blocks` with complete=True, in order.
    """
    return _corpus_hash("digest", dtype, token_counts, block_digests)


def stage_identity(seed: int, stage: Stage, sources: Mapping[int, Source]) -> bytes:
    """Return the identity of the rows of a stage, without redactions, 32 bytes.

    seed: of the stream; hashed as 0 if the weights of the stage have the sum 1.  stage: its
    `previous` has to be set; sources of weight 0 are not hashed.  sources: by number, at least
    those with a weight above 0. The corpus of each has to be known; if its order reads documents,
    so has the hash of its pieces at the context length of the stage.
    """
    lines = [
        "tokenfeed-stage-4",
        f"previous={stage.previous.hex()}",
        f"stage={stage.index}",
        f"first_sample={stage.first_sample}",
        f"context_length={stage.context_length}",
        f"seed={0 if stage.is_plain else seed}",
        f"sources={len(stage.active)}",
    ]
    for number, weight, base in stage.active:
        source = sources[number]
        assert source.corpus is not None
        lines += [
            f"source={number}",
            f"fingerprint={source.corpus.fingerprint.hex()}",
            *(f"{name}={value}" for name, value in source.facts.items()),
            f"base={base}",
            f"weight={weight}",
        ]
        if source.reads_documents:
            pieces = source.corpus.pieces_at(stage.context_length)
            assert pieces, "the pieces at this context length are unknown"
            lines.append(f"pieces={pieces.hex()}")
    return _hash(*lines)


def redacted_identity(identity: bytes, redactions: Sequence[tuple[int, int, bytes]]) -> bytes:
    """Return the identity of redacted rows, 32 bytes.

    identity: of the same rows without redactions.  redactions: (first sample, number of the source,
    hash of the list) of each redaction in force, ascending, at least one.
    """
    lines = ["tokenfeed-redacted-4", f"stage={identity.hex()}", f"redactions={len(redactions)}"]
    for first_sample, source, list_hash in redactions:
        lines += [f"first_sample={first_sample}", f"source={source}", f"list={list_hash.hex()}"]
    return _hash(*lines)


def redaction_list_hash(fill: int, ranges: Sequence[tuple[int, int, int]]) -> bytes:
    """Return the hash of a list of token ranges, as a redaction names it, 32 bytes.

    fill: the token that replaces those in the ranges.  ranges: (index of the file, first token in
    the file, end token, exclusive), ascending; they neither overlap nor touch.
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

    It covers the length of every document with tokens, also of one without a piece: such a document
    moves the pieces behind it.
    context_length: T of the rows.  long_documents: "cut", "drop" or "truncate".  delimiter: the
    token that was searched for as the end of documents; None if none was.  document_counts: number
    of documents with tokens in each file.  lengths_sha256: SHA-256, hexadecimal, of the number of
    tokens of each of these documents, 8 bytes each, little-endian, in the order of the corpus.
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

    kind: field number of the plane in a Frame.  entry_counts: number of entries of each file, in
    order. An entry of a loss mask is the byte of a token, one of document starts is a start, 8
    bytes, little-endian.  block_digests: SHA-256 of each of `content_blocks` of all entries end to
    end, in order.
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
    """Return the fingerprint of a plane of a stage with several sources, 32 bytes. (A call for a
    stage with one source has the fingerprint of that source's plane instead.)

    kind: field number of the plane in a Frame.  fingerprints: (number of the source, fingerprint of
    its plane) of each source that has the plane, ascending by number.
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


def _hash(*lines: str) -> bytes:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode("ascii")).digest()
