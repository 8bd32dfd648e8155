"""Identity and fingerprint: what is in them, and what is not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed import identity, orders

RANDOM, SHUFFLED, SEQUENTIAL = (
    orders.find(name) for name in ("random-1", "shuffled-1", "sequential-1")
)


def test_order_seed_context_length_and_fingerprint_each_make_another_stream() -> None:
    """A saved state of one must not resume on another."""
    streams = {
        identity.stream_identity(RANDOM, 1, 128, bytes(32)),
        identity.stream_identity(SHUFFLED, 1, 128, bytes(32)),
        identity.stream_identity(RANDOM, 2, 128, bytes(32)),
        identity.stream_identity(RANDOM, 1, 129, bytes(32)),
        identity.stream_identity(RANDOM, 1, 128, bytes([1] * 32)),
    }

    assert len(streams) == 5


def test_the_seed_of_an_order_that_ignores_it_is_no_difference() -> None:
    """Else two sequential runs would refuse each other for nothing."""
    one, two = (identity.stream_identity(SEQUENTIAL, seed, 128, bytes(32)) for seed in (1, 2))

    assert one == two


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
