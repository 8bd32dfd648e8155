"""The product against golden vectors from a second implementation, which shares no code with it.

tests/reference.py was written from docs/protocol.md with plain integers and loops; `python -m
tests.reference` prints tests/golden.json. These tests run on the lowest versions allowed, too.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from tests import reference
from tokenfeed import identity, orders
from tokenfeed.frame import checksum
from tokenfeed.plan import Plan, window_places
from tokenfeed.position import Position

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "golden.json").read_text()
)


def named(case: dict[str, Any]) -> str:
    return "-".join(str(case[key]) for key in ("order", "seed", "place_count") if key in case)


def test_the_golden_vectors_are_what_the_second_implementation_computes() -> None:
    """A vector that nobody can recompute proves nothing."""
    assert json.loads(json.dumps(reference.golden())) == GOLDEN


@pytest.mark.parametrize("case", GOLDEN["places"], ids=named)
def test_every_sample_has_its_published_place(case: dict[str, Any]) -> None:
    """A changed place is another stream: saved states would silently resume on other tokens."""
    samples = np.array(case["samples"], dtype=np.int64)

    places = orders.find(case["order"]).places(samples, case["seed"], case["place_count"])

    assert places.dtype == np.int64
    assert places.tolist() == case["places"]


@pytest.mark.parametrize("case", GOLDEN["windows"], ids=named)
def test_every_sample_has_its_published_window(case: dict[str, Any]) -> None:
    """Places become windows by arithmetic of their own, over files of unequal length."""
    counts = np.array(case["token_counts"], dtype=np.int64)
    order = orders.find(case["order"])
    plan = Plan(counts, case["context_length"], order, case["seed"])

    windows = plan.windows(np.array(case["samples"], dtype=np.int64))

    assert np.stack([windows.shard, windows.token_offset], axis=1).tolist() == case["windows"]
    places = window_places(counts, case["context_length"], order.HAS_EPOCHS)
    assert places.tolist() == case["place_counts"]


@pytest.mark.parametrize("case", GOLDEN["fingerprints"])
def test_a_corpus_has_its_published_fingerprint(case: dict[str, Any]) -> None:
    """Replicas compare each other by it, whoever wrote them."""
    contents = [bytes.fromhex(content) for content in case["contents"]]
    joined = b"".join(contents)
    blocks = identity.content_blocks(len(joined))
    digests = [hashlib.sha256(joined[first:end]).digest() for first, end in blocks]
    counts = [len(content) // case["token_bytes"] for content in contents]

    found = identity.fingerprint(case["dtype"], counts, digests)

    assert found.hex() == case["fingerprint"]


@pytest.mark.parametrize("case", GOLDEN["identities"], ids=named)
def test_a_stream_has_its_published_identity(case: dict[str, Any]) -> None:
    """A client derives it for itself, and refuses a server that comes to another one."""
    order = orders.find(case["order"])
    fingerprint = bytes.fromhex(case["fingerprint"])

    found = identity.stream_identity(order, case["seed"], case["context_length"], fingerprint)

    assert found.hex() == case["identity"]


@pytest.mark.parametrize("case", GOLDEN["blocks"], ids=lambda case: str(case["content_bytes"]))
def test_the_blocks_that_are_hashed_are_the_published_ones(case: dict[str, Any]) -> None:
    """Exactly 2^30 bytes are still hashed in full; one more and only blocks are."""
    blocks = list(identity.content_blocks(case["content_bytes"]))

    assert len(blocks) == case["count"]
    assert [list(block) for block in blocks[:3]] == case["first_three"]
    assert [list(block) for block in blocks[-2:]] == case["last_two"]


@pytest.mark.parametrize("case", GOLDEN["crc32c"])
def test_the_checksum_library_computes_crc_32c(case: dict[str, Any]) -> None:
    """Every language has it, if it is the same one."""
    assert google_crc32c.value(bytes.fromhex(case["data"])) == case["crc32c"]


@pytest.mark.parametrize("case", GOLDEN["checksums"])
def test_a_frame_has_its_published_checksum(case: dict[str, Any]) -> None:
    """It covers what was asked for as well as the tokens."""
    position = Position(case["first_sample"], case["batch_size"], case["rank"], case["world_size"])
    tokens = np.frombuffer(bytes.fromhex(case["tokens"]), dtype=np.uint8)

    found = checksum(
        bytes.fromhex(case["identity"]), position, case["first_row"], case["row_count"], tokens
    )

    assert found == case["checksum"]
