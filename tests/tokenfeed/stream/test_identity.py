"""Identity and fingerprint: what is in them, and what is not."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.stream import identity


def test_the_fingerprint_of_a_corpus_of_rows_is_the_published_one() -> None:
    """Another server, and the client that resumes, have to come to the same one."""
    blocks = [hashlib.sha256(bytes.fromhex("010002000300")).digest()]

    found = identity.fingerprint("uint16", [3], blocks, row_tokens=3)

    whole = "fbeaa8f715a6fc40480d49c8a4e419d8b4091701e20de1b120ac7aee6b228272"
    lines = f"tokenfeed-rows-1\nrow_tokens=3\nfingerprint={whole}\n"
    assert found == hashlib.sha256(lines.encode()).digest()
    assert found.hex() == "41acbed1c49bec7577e892ec8f8dbb7246aad7f131a6a00fea80cfe45195ca39"


def test_documents_cut_otherwise_have_another_hash_of_pieces() -> None:
    """Of the same corpus, with the same order, seed and context length."""
    lengths, others = "01" * 32, "02" * 32
    found = {
        identity.pieces_hash(128, "cut", None, [2, 1], lengths),
        identity.pieces_hash(127, "cut", None, [2, 1], lengths),
        identity.pieces_hash(128, "drop", None, [2, 1], lengths),
        identity.pieces_hash(128, "cut", 0, [2, 1], lengths),
        identity.pieces_hash(128, "cut", None, [1, 2], lengths),
        identity.pieces_hash(128, "cut", None, [2, 1], others),
    }

    assert len(found) == 6


def test_whatever_is_taken_out_makes_other_rows() -> None:
    """From when on, of which source, which tokens, and what stands there instead."""
    some = identity.redaction_list_hash(0, [(0, 1, 2)])
    lists = {
        some,
        identity.redaction_list_hash(1, [(0, 1, 2)]),
        identity.redaction_list_hash(0, [(1, 1, 2)]),
        identity.redaction_list_hash(0, [(0, 0, 2)]),
        identity.redaction_list_hash(0, [(0, 1, 3)]),
        identity.redaction_list_hash(0, [(0, 1, 2), (0, 3, 4)]),
    }
    rows = {
        bytes(32),
        identity.redacted_identity(bytes(32), [(5, 0, some)]),
        identity.redacted_identity(bytes([1] * 32), [(5, 0, some)]),
        identity.redacted_identity(bytes(32), [(6, 0, some)]),
        identity.redacted_identity(bytes(32), [(5, 1, some)]),
        identity.redacted_identity(bytes(32), [(5, 0, some), (6, 0, some)]),
        *(identity.redacted_identity(bytes(32), [(5, 0, found)]) for found in lists - {some}),
    }

    assert len(lists) == 6
    assert len(rows) == 6 + 5


def test_planes_of_other_kinds_files_or_sources_have_other_fingerprints() -> None:
    """The same bytes may be a mask of one file, or of two."""
    digests = [bytes(32)]
    planes = {
        identity.plane_fingerprint(51, [8], digests),
        identity.plane_fingerprint(50, [8], digests),
        identity.plane_fingerprint(51, [1], digests),
        identity.plane_fingerprint(51, [4, 4], digests),
        identity.plane_fingerprint(51, [8], [bytes([1] * 32)]),
        identity.stage_plane_fingerprint(51, [(0, bytes(32))]),
        identity.stage_plane_fingerprint(50, [(0, bytes(32))]),
        identity.stage_plane_fingerprint(51, [(1, bytes(32))]),
        identity.stage_plane_fingerprint(51, [(0, bytes(32)), (1, bytes(32))]),
    }

    assert len(planes) == 9


def test_the_same_bytes_as_other_tokens_or_in_other_files_are_another_corpus() -> None:
    """Windows would lie elsewhere although no byte differs."""
    digests = [bytes(32)]
    corpora = {
        identity.fingerprint("uint16", [100], digests),
        identity.fingerprint("uint32", [50], digests),
        identity.fingerprint("uint16", [60, 40], digests),
        identity.fingerprint("uint16", [40, 60], digests),
        identity.digest("uint16", [100], digests),
    }

    assert len(corpora) == 5


@given(st.integers(1, 2**30))
def test_up_to_one_gibibyte_every_byte_is_hashed_once(content_bytes: int) -> None:
    """One token changed anywhere changes the fingerprint."""
    blocks = list(identity.content_blocks(content_bytes))

    assert blocks[0][0] == 0
    assert blocks[-1][1] == content_bytes
    assert all(one[1] == two[0] for one, two in pairwise(blocks))


@pytest.mark.parametrize("content_bytes", [2**30 + 1, 10**12, 2**62])
def test_above_one_gibibyte_blocks_are_spread_from_the_first_byte_to_the_last(
    content_bytes: int,
) -> None:
    """Start-up reads 16 MiB of a terabyte, and still sees a changed beginning or end."""
    blocks = list(identity.content_blocks(content_bytes))

    gaps = {two[0] - one[0] for one, two in pairwise(blocks)}
    assert len(blocks) == 4096
    assert blocks[0][0] == 0
    assert blocks[-1][1] == content_bytes
    assert max(gaps) - min(gaps) <= 1


def test_a_digest_is_over_all_of_it_whatever_the_size() -> None:
    """`verify` proves what the quick fingerprint only makes likely."""
    blocks = list(identity.content_blocks(2**30 + 5, complete=True))

    assert len(blocks) == 1025
    assert blocks[-1] == (2**30, 2**30 + 5)
