"""What a stream is, as a value: what exists is valid."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from tests.support import reference
from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.stream.identity import Corpus
from tokenfeed.stream.redactions import Redaction
from tokenfeed.stream.spec import Mixture, Source, StreamSpec
from tokenfeed.stream.stages import Stage

RANDOM, SEQUENTIAL = orders.find("random-1"), orders.find("sequential-1")
PACKED = orders.find("packed-1")


def spec_of(**fields: Any) -> StreamSpec:
    values = {"dataset": "", "order": RANDOM, "seed": 7, "context_length": 2} | fields
    return StreamSpec.of_dataset(**values)


@pytest.mark.parametrize(
    ("fields", "subject"),
    [
        ({"context_length": 0}, "context_length"),
        ({"context_length": -1}, "context_length"),
        ({"context_length": 2**64}, "context_length"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"planes": [49]}, "planes"),
        ({"planes": [100]}, "planes"),
        ({"planes": [51, 51]}, "planes"),
    ],
)
def test_a_field_out_of_range_is_named(fields: dict[str, Any], subject: str) -> None:
    """The user reads the name of the argument and its limit."""
    with pytest.raises(InvalidRequest, match=rf"^{subject}: \[?-?[0-9]+") as caught:
        spec_of(**fields)

    assert caught.value.subject == subject


@pytest.mark.parametrize(
    ("order", "limit"), [(RANDOM, "tokens of the longest file"), (PACKED, "16777215")]
)
def test_the_limit_of_a_context_length_is_that_of_the_order(order: Any, limit: str) -> None:
    """Rows over documents may be longer than any file."""
    with pytest.raises(InvalidRequest) as caught:
        spec_of(context_length=0, order=order)

    assert str(caught.value) == f"context_length: 0 is not in [1, {limit})"


@pytest.mark.parametrize(
    "fields",
    [{"context_length": 1}, {"context_length": 2**64 - 1}, {"seed": 0}, {"seed": 2**64 - 1}],
)
def test_the_ends_of_each_range_are_in_it(fields: dict[str, int]) -> None:
    """Any seed of 64 bits is one, and how long a row may be is for the corpus to say."""
    spec = spec_of(**fields)

    assert (spec.context_length, spec.source.seed) == (
        fields.get("context_length", 2),
        fields.get("seed", 7),
    )
    assert spec.row_tokens == spec.context_length + 1


def test_planes_that_are_wanted_in_any_order_are_one_stream() -> None:
    """The checksum takes them in ascending order, so that two who want the same have the same."""
    assert spec_of(planes=[52, 50, 51]) == spec_of(planes=(50, 51, 52))
    assert spec_of(planes=[52, 50, 51]).planes == (50, 51, 52)


ONE, OTHER = Source("a", RANDOM, 0), Source("b", SEQUENTIAL, 0, number=1)
HALVES = Mixture(7, (Stage(0, 0, (1, 1), (0, 0)),))


@pytest.mark.parametrize(
    ("sources", "mixture", "problem"),
    [
        ((), None, "sources: have to be one, or those of a mixture"),
        ((), HALVES, "sources: have to be one, or those of a mixture"),
        ((ONE, OTHER), None, "sources: have to be one, or those of a mixture"),
        ((OTHER, ONE), HALVES, "stage.sources: number 0 follows 1; numbers must ascend"),
        ((ONE, ONE), HALVES, "stage.sources: number 0 follows 0; numbers must ascend"),
        ((ONE,), HALVES, "sources: are 1, but stage 0 has 2 weights and 2 bases"),
    ],
)
def test_sources_that_make_no_stream_are_refused(
    sources: tuple[Source, ...], mixture: Mixture | None, problem: str
) -> None:
    """Its first source alone would be another stream under the same name."""
    with pytest.raises(InvalidRequest, match=problem):
        StreamSpec(2, sources, mixture)


def test_the_identity_of_a_mixture_is_the_published_one_of_version_2() -> None:
    """Of each of its stages, and of one alone, as a request has it."""
    later = Stage(1, 10, (0, 3), (5, 5))
    spec = StreamSpec(2, (ONE, OTHER), Mixture(7, (*HALVES.stages, later)))
    fingerprints = [bytes(range(32)), bytes(32)]
    first = reference.mixture_start(7, 2)
    one = reference.Source(0, fingerprints[0], "random-1", 0, 0, 1)
    other = reference.Source(1, fingerprints[1], "sequential-1", 0, 0, 1)
    second = reference.stage_identity(first, 0, 0, [one, other])
    third = reference.stage_identity(second, 1, 10, [other._replace(base=5, weight=3)])

    assert spec.identity_version == 2
    corpora = [Corpus(fingerprint) for fingerprint in fingerprints]
    assert spec.chain(corpora) == [first, second, third]
    assert spec.identity(corpora) == third
    alone = spec.of_stage(1, second)
    assert alone.sources == (OTHER,)
    assert alone.identity(corpora[1:]) == third


def test_a_stage_alone_keeps_the_redactions_of_its_sources_whatever_their_numbers() -> None:
    """A source has its number in all stages, and another place among those of one stage."""
    later = Stage(1, 10, (0, 3), (5, 5))
    redactions = (Redaction(4, 0, bytes(32)), Redaction(12, 1, bytes(32)))
    spec = StreamSpec(2, (ONE, OTHER), Mixture(7, (*HALVES.stages, later)), (), redactions)

    alone = spec.of_stage(1)
    assert alone.redactions == redactions[1:]
    assert alone.of_stage(0) == alone


def test_a_part_ends_at_the_next_stage_or_where_another_redaction_begins() -> None:
    """Clients, and who asks where rows come from, cut a stream at the same samples."""
    later = Stage(1, 10, (0, 3), (5, 5))
    redactions = (Redaction(4, 0, bytes(32)), Redaction(12, 1, bytes(32)))
    spec = StreamSpec(2, (ONE, OTHER), Mixture(7, (*HALVES.stages, later)), (), redactions)

    found = [spec.part_at(sample) for sample in (0, 3, 4, 9, 10, 12)]

    assert [end for _, end in found] == [4, 4, 10, 10, 12, None]
    in_force = [part.redactions for part, _ in found]
    assert in_force == [(), (), redactions[:1], redactions[:1], (), redactions[1:]]
    assert [part.sources for part, _ in found] == [(ONE, OTHER)] * 4 + [(OTHER,)] * 2
    assert spec_of().part_at(5) == (spec_of(), None)


def test_its_identity_is_the_published_one_of_version_1() -> None:
    """Saved states and requests carry it."""
    fingerprint = bytes(range(32))

    for order, seed in ((RANDOM, 7), (SEQUENTIAL, 7), (SEQUENTIAL, 0)):
        spec = spec_of(order=order, seed=seed)
        assert spec.identity_version == 1
        found = spec.identity([Corpus(fingerprint)])
        assert found == reference.identity(order.NAME, seed, 2, fingerprint)


def test_the_dataset_s_name_and_the_planes_are_no_part_of_the_identity() -> None:
    """A dataset may be served under another name elsewhere, and a mask may come later."""
    found = {
        spec_of(**fields).identity([Corpus(bytes(32))])
        for fields in ({}, {"dataset": "elsewhere"}, {"planes": [51]})
    }

    assert len(found) == 1


def test_a_seed_that_is_not_used_counts_as_0() -> None:
    """In the identity, and in a source of a mixture."""
    assert Source("", RANDOM, 7).seed_used == 7
    assert Source("", SEQUENTIAL, 7).seed_used == 0


def test_a_spec_is_a_value() -> None:
    """It is compared, used as a key, and never changed."""
    spec = spec_of()

    assert spec == spec_of()
    assert len({spec, spec_of(), spec_of(seed=8)}) == 2
    with pytest.raises(FrozenInstanceError):
        spec.context_length = 3  # type: ignore[misc]
