"""The file of an index that is kept beside the tokens, or in a cache folder, and found again.

Its form: kept/container.py; its content: reading.py. It is believed only if its description is that
of today's documents and of the rows that are asked for, and its content has the hash that the
description records: of all of it up to 2^30 bytes, of blocks spread over more.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from tokenfeed.sampling.document_rows import DocumentStats, RowsKey
from tokenfeed.stream.identity import content_blocks

from ..kept import container
from ..kept.container import Damaged, find_file, read_description, read_range
from ..kept.mapped import NUMBER, HeldNumbers, KeptNumbers, MappedNumbers, Numbers
from .reading import FOOTER, IndexFacts, RowIndex

_VERSION = 2
MEMORY_BYTES_MAX = 1 << 20
"""More numbers than that are not read into memory."""


def what_of(key: RowsKey) -> str:
    """Return what an index holds, for messages."""
    long = "" if key.long_documents == "cut" else f", long documents {key.long_documents},"
    return f"rows of {key.order}{long} for context length {key.context_length}"


def suffix_of(key: RowsKey, borders_fingerprint: bytes) -> str:
    """Return the end of the name of the file. Servers with other delimiters keep other files."""
    what = f"{key.order}-{key.long_documents}-{key.context_length}"
    return f".tokenfeed-{what}-{borders_fingerprint.hex()[:8]}"


def made_from(
    key: RowsKey,
    token_counts: Numbers,
    *,
    fingerprint: bytes,
    borders_fingerprint: bytes,
    delimiter: int | None,
) -> dict[str, Any]:
    """Return what rows depend on.

    token_counts: int64[files].  fingerprint: of the tokens.  borders_fingerprint: of the plane of
    document starts.  delimiter: the token that ends a document; None if the format defines it.
    """
    return {
        "version": _VERSION,
        "order": key.order,
        "context_length": key.context_length,
        "long_documents": key.long_documents,
        "document_end_token": delimiter,
        "tokens": fingerprint.hex(),
        "document_starts": borders_fingerprint.hex(),
        "token_counts": token_counts.tolist(),
    }


def closing(
    facts: IndexFacts, made_from: dict[str, Any], read: Callable[[int, int], bytes]
) -> bytes:
    """Return what follows the numbers in their file.  read: as for `content_hash`.

    Raises: InvalidCorpus if the numbers cannot be read again.
    """
    description = made_from | {
        "pieces": facts.piece_counts.tolist(),
        "rows": facts.row_counts.tolist(),
        "pieces_hash": facts.pieces_hash.hex(),
        "stats": {name: int(count) for name, count in asdict(facts.stats).items()},
        "content": content_hash(read, NUMBER.itemsize * int(facts.first_numbers[-1])),
    }
    return container.closing(description, FOOTER)


def content_hash(read: Callable[[int, int], bytes], size_bytes: int) -> str:
    """Return the hash of the numbers, hexadecimal.

    read: returns their bytes from a first byte to an end.  size_bytes: of all of them.
    """
    sha256 = hashlib.sha256()
    for block in content_blocks(size_bytes):
        sha256.update(hashlib.sha256(read(*block)).digest())
    return sha256.hexdigest()


def find_kept(
    name: str, key: RowsKey, paths: Sequence[str], made_from: dict[str, Any]
) -> RowIndex | None:
    """Return the index in the first of these files that was made from the same; None if none was.

    name: of the dataset.  One that exists and cannot be used is logged.
    """
    return find_file(what_of(key), paths, partial(_checked, name, key, made_from))


def _checked(
    name: str, key: RowsKey, made_from: dict[str, Any], path: str, descriptor: int
) -> RowIndex:
    """Return the index in a file whose content is right, and close its descriptor.

    Raises: Damaged, OSError; ValueError and others if the description is not of its form.
    """
    token_counts = np.array(made_from["token_counts"], dtype=np.int64)
    description, content_bytes = read_description(descriptor, FOOTER, token_counts.size)
    facts = IndexFacts(
        key,
        token_counts,
        np.array(description.pop("pieces"), dtype=np.int64),
        np.array(description.pop("rows"), dtype=np.int64),
        bytes.fromhex(description.pop("pieces_hash")),
        DocumentStats(**description.pop("stats")),
    )
    content = description.pop("content")
    if description != made_from:
        raise Damaged("was made from other documents, or for other rows")
    _require_consistent(facts)
    if content_bytes != NUMBER.itemsize * int(facts.first_numbers[-1]):
        raise Damaged("is truncated")
    if content_hash(partial(read_range, descriptor), content_bytes) != content:
        raise Damaged("is damaged")
    numbers: KeptNumbers
    if content_bytes <= MEMORY_BYTES_MAX:
        held = np.frombuffer(read_range(descriptor, 0, content_bytes), NUMBER)
        numbers = HeldNumbers(what_of(key), name, held)
    else:
        numbers = MappedNumbers(what_of(key), name, descriptor, path, FOOTER)
    os.close(descriptor)
    return RowIndex(facts, numbers, path)


def _require_consistent(facts: IndexFacts) -> None:
    """Raise Damaged unless counts agree with each other."""
    pieces, rows = facts.piece_counts, facts.row_counts
    if not (
        pieces.shape == rows.shape == facts.token_counts.shape
        and (rows >= 0).all()
        and (pieces >= rows).all()
        and (pieces <= facts.token_counts).all()
        and (facts.has_row_starts or (pieces == rows).all())
        and (facts.stats.pieces, facts.stats.rows) == (int(pieces.sum()), int(rows.sum()))
        and _are_possible(facts.stats, facts)
        and len(facts.pieces_hash) == 32
    ):
        raise Damaged("is damaged")


def _are_possible(stats: DocumentStats, facts: IndexFacts) -> bool:
    """Return whether figures can be those of documents.  Their pieces and rows are right."""
    row_tokens = facts.key.context_length + 1
    tokens = int(facts.token_counts.sum())
    pieces_max = row_tokens // 2 if facts.has_row_starts else 1
    return (
        all(type(count) is int and count >= 0 for count in asdict(stats).values())
        and stats.single + stats.dropped + stats.truncated <= stats.documents <= tokens
        and stats.cropped <= tokens
        # Each piece has a token that is no target, and at least one that is.
        and stats.pieces <= stats.targets <= stats.rows * row_tokens - stats.pieces
        and min(stats.rows, 1) <= stats.row_pieces_max <= min(stats.pieces, pieces_max)
        and stats.pieces <= stats.rows * stats.row_pieces_max
    )
