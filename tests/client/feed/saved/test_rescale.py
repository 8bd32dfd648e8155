"""At another context length a state resumes between two epochs, or names what would repeat."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from client.feed.saved.rescale import is_rescaled, rescaled
from tokenfeed.errors import SamplesExhausted, StreamMismatch
from tokenfeed.stream.parts import StreamParts

LONG = StreamParts("shuffled-1", 3, 2048, "ab" * 32)
SHORT = replace(LONG, context_length=1024)
IN_ORDER = replace(LONG, order="sequential-1", seed=0), replace(SHORT, order="sequential-1", seed=0)
ALLOWED = ("context_length",)


@given(epoch=st.integers(0, 10**6), before=st.integers(1, 10**12), now=st.integers(1, 10**12))
def test_the_end_of_an_epoch_is_the_beginning_of_the_next_one(
    epoch: int, before: int, now: int
) -> None:
    """Everything of it was seen once, and nothing of the next one."""
    if epoch * now <= 2**63:
        assert rescaled(epoch * before, LONG, SHORT, before, now, 3, ALLOWED) == epoch * now


@given(
    epoch=st.integers(0, 1000),
    tokens=st.integers(2, 10**9),
    lengths=st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
    data=st.data(),
)
def test_in_the_order_of_one_file_a_place_stays_at_its_token(
    epoch: int, tokens: int, lengths: tuple[int, int], data: st.DataObject
) -> None:
    """Rounded down, so that less than one window comes again, and nothing is left out."""
    before, now = ((tokens - 1) // length for length in lengths)
    assume(before and now)
    into = data.draw(st.integers(0, before - 1))
    saved, own = (replace(IN_ORDER[0], context_length=length) for length in lengths)

    found = rescaled(epoch * before + into, saved, own, before, now, 1, ALLOWED) - epoch * now

    assert 0 <= found <= now
    repeated = into * lengths[0] - found * lengths[1]
    assert 0 <= repeated < lengths[1]


def test_the_middle_of_a_shuffled_epoch_is_refused_with_what_would_come_twice_and_the_cures() -> (
    None
):
    """3 of 8 windows of epoch 2 were seen, so 3 of 8 of what follows were."""
    with pytest.raises(StreamMismatch) as caught:
        rescaled(2 * 8 + 3, LONG, SHORT, 8, 17, 3, ALLOWED)

    assert caught.value.subject == "context_length"
    assert "saved with 2048, 37.5 % into epoch 2" in caught.value.problem
    assert "37.5 % of the rest of that epoch was already seen" in caught.value.problem
    assert "start_sample=51 instead of the state to begin with epoch 3" in caught.value.problem
    assert "allow=('context_length', 'mid_epoch') to resume anyway" in caught.value.problem


def test_the_middle_of_a_shuffled_epoch_may_be_allowed_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """For a large epoch with little left of the run."""
    with caplog.at_level(logging.WARNING, "tokenfeed.client"):
        assert rescaled(2 * 8 + 3, LONG, SHORT, 8, 17, 3, (*ALLOWED, "mid_epoch")) == 2 * 17 + 6

    assert "saved=2048 now=1024 epoch=2 seen=37.5 % sample=40: it is another" in caplog.text
    assert "37.5 % of the rest of that epoch was already seen" in caplog.text


def test_in_the_order_of_several_files_it_is_refused_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each file has other windows then: at a fraction of all of them is another place."""
    with pytest.raises(StreamMismatch, match="each of the 3 files is cut into other windows"):
        rescaled(2 * 8 + 3, *IN_ORDER, 8, 17, 3, ALLOWED)
    with caplog.at_level(logging.WARNING, "tokenfeed.client"):
        assert rescaled(2 * 8 + 3, *IN_ORDER, 8, 17, 3, (*ALLOWED, "mid_epoch")) == 2 * 17 + 6
        assert rescaled(2 * 8, *IN_ORDER, 8, 17, 3, ALLOWED) == 2 * 17

    assert "epoch=2 seen=37.5 % sample=40: each of the 3 files" in caplog.text
    assert "epoch=2 seen=0 % sample=34: nothing repeats" in caplog.text


@pytest.mark.parametrize(("saved", "own"), [(LONG, IN_ORDER[1]), (IN_ORDER[0], SHORT)])
def test_corpus_order_on_one_side_alone_is_refused_all_the_same(
    saved: StreamParts, own: StreamParts
) -> None:
    """What was seen and what follows lie across each other."""
    with pytest.raises(StreamMismatch, match=r"37\.5 %"):
        rescaled(3, saved, own, 8, 17, 1, (*ALLOWED, "order"))


def test_how_far_an_epoch_of_another_corpus_was_is_not_guessed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its number of windows went with it."""
    own = replace(SHORT, fingerprint="cd" * 32)
    allow = (*ALLOWED, "fingerprint")

    with pytest.raises(StreamMismatch, match="seen part of the epoch is unknown") as caught:
        rescaled(19, LONG, own, None, 17, 3, allow)
    assert "('context_length', 'fingerprint', 'mid_epoch')" in caught.value.problem

    assert rescaled(19, LONG, own, None, 17, 3, (*allow, "mid_epoch")) == 19
    assert "an unknown part of the epoch may repeat or be skipped sample=19" in caplog.text


def test_a_place_that_would_reach_2_63_is_refused() -> None:
    """A corpus of one window then, and of many now."""
    with pytest.raises(SamplesExhausted, match=r"^state\.sample"):
        rescaled(2**62, LONG, SHORT, 1, 3, 3, ALLOWED)


@pytest.mark.parametrize(
    ("sample", "saved", "own"),
    [
        (0, LONG, SHORT),
        (7, LONG, LONG),
        (7, replace(LONG, order="random-1"), replace(SHORT, order="random-1")),
        (7, replace(LONG, order="random-1"), SHORT),
        (7, LONG, replace(SHORT, order="random-1")),
    ],
)
def test_a_sample_stays_what_it_is_where_there_is_nothing_to_convert(
    sample: int, saved: StreamParts, own: StreamParts
) -> None:
    """At the beginning, at the same context length, and for an order without epochs."""
    assert not is_rescaled(sample, saved, own)
    assert is_rescaled(7, LONG, SHORT)
