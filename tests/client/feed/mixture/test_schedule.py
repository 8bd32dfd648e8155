"""What a mixture was stays what it was, whatever is changed, saved and loaded after it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.feed.mixture.recipe import Mixture
from client.feed.mixture.schedule import Schedule
from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.stream.identity import Corpus
from tokenfeed.stream.parts import StreamParts
from tokenfeed.stream.stages import CHANGED

NAMES = ("web", "code", "math", "news")
T = 8

Weights = dict[str, int]
weights = st.one_of(
    st.sampled_from([{"web": 7, "code": 3}, {"code": 1, "math": 2}, {"web": 1}]),
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9), min_size=1),
)


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Stages far enough apart that each one has a block."""
    begins = sorted(draw(st.sets(st.integers(1, 12), max_size=3)))
    stages = [{"weights": draw(weights)}]
    stages += [{"first_sample": 60 * begin, "weights": draw(weights)} for begin in begins]
    return Mixture(stages=stages)


def definition_of(mixture: Mixture) -> Schedule:
    return mixture.schedule(T, "shuffled-1", 0)


def state_of(schedule: Schedule) -> StreamParts:
    corpora = [Corpus(source.dataset.encode().ljust(32)) for source in schedule.sources]
    return schedule.spec().parts(corpora)


def stages_before(schedule: Schedule, sample: int) -> list[tuple[int, Weights]]:
    """The stages that begin before a sample, and their weights."""
    begun = zip(schedule.effective(), schedule.stages, strict=True)
    return [
        (stage.first_sample, dict(planned.weights))
        for stage, planned in begun
        if stage.first_sample < sample
    ]


def numbers_before(schedule: Schedule, sample: int) -> dict[str, int]:
    """The numbers of the sources that are read before a sample."""
    used = {name for _, weights in stages_before(schedule, sample) for name in weights}
    return {each.dataset: each.number for each in schedule.sources if each.dataset in used}


def numbered_stages(schedule: Schedule) -> list[tuple[int, dict[int, int]]]:
    number = {source.dataset: source.number for source in schedule.sources}
    begun = zip(schedule.effective(), schedule.stages, strict=True)
    return [
        (stage.first_sample, {number[name]: weight for name, weight in planned.weights.items()})
        for stage, planned in begun
    ]


@given(
    mixtures(),
    st.lists(
        st.tuples(
            st.sampled_from(["read", "change", "restart", "other"]),
            st.integers(1, 90),
            weights,
            mixtures(),
            st.booleans(),
        ),
        max_size=12,
    ),
)
def test_no_sequence_of_changes_and_restarts_alters_the_past(
    mixture: Mixture, steps: list[tuple[str, int, Weights, Mixture, bool]]
) -> None:
    """A restart by the same definition continues with the same stages, with or without the
    permission; another definition continues with its own, or is refused.
    """
    definition, sample = definition_of(mixture), 0
    schedule = definition
    for action, distance, changed_weights, other, allow in steps:
        before, numbers = stages_before(schedule, sample), numbers_before(schedule, sample)
        if action == "read":
            sample += distance
            continue
        if action == "change":
            at = sample + distance - 1
            try:
                schedule, begin = schedule.changed(changed_weights, at, sample, or_later=allow)
            except InvalidRequest:
                continue
            again = schedule.changed(changed_weights, at, sample, or_later=allow)
            assert again == (schedule, begin)
            assert schedule._in_force(max(at, begin)) == changed_weights
        elif action == "restart":
            expected = numbered_stages(schedule)
            schedule, messages = definition.continued(state_of(schedule), sample, allow=allow)
            assert not messages
            assert numbered_stages(schedule) == expected
        else:
            new = definition_of(other)
            try:
                continued, _ = new.continued(state_of(schedule), sample, allow=allow)
                continued.spec()
            except StreamMismatch:
                assert not allow
                continue
            except InvalidRequest:
                continue
            definition, schedule = new, continued
            if allow and not any(stage.origin & CHANGED for stage in schedule.stages):
                end = schedule.effective()[-1].first_sample
                assert schedule._in_force(end) == definition.stages[-1].weights
        assert stages_before(schedule, sample) == before
        assert numbers.items() <= numbers_before(schedule, sample).items()


def test_a_change_may_be_written_into_the_file_afterwards() -> None:
    """The state has the change, and the file has it too: it is one."""
    schedule, begin = definition_of(Mixture({"web": 7, "code": 3})).changed({"math": 2}, 37, 20)
    assert begin == 40
    for first_sample in (37, 40):
        written = [
            {"weights": {"web": 7, "code": 3}},
            {"first_sample": first_sample, "weights": {"math": 2}},
        ]
        definition = definition_of(Mixture(stages=written))
        found, messages = definition.continued(state_of(schedule), 100, allow=False)

        assert stages_before(found, 1000) == [(0, {"web": 7, "code": 3}), (40, {"math": 2})]
        assert not messages
        assert definition.changed({"math": 2}, first_sample, 20) == (definition, 40)


def test_an_earlier_change_that_begins_at_the_same_sample_is_replaced() -> None:
    """Also by what was in force before: then there is no change."""
    definition = definition_of(Mixture({"web": 7, "code": 3}))
    pending, _ = definition.changed({"code": 1, "math": 2}, 1, 0)

    replaced, begin = pending.changed({"web": 1}, 8, 8)
    withdrawn, since = pending.changed({"web": 7, "code": 3}, 8, 8)

    first = (0, {"web": 7, "code": 3})
    assert (begin, stages_before(replaced, 99)) == (10, [first, (10, {"web": 1})])
    assert (since, stages_before(withdrawn, 99)) == (0, [first])
    assert definition.changed({"web": 7, "code": 3}, 55, 55) == (definition, 0)


def test_changes_that_are_dropped_are_named() -> None:
    """By a definition that is appended, or leaves them no block."""
    schedule, _ = definition_of(Mixture({"web": 7, "code": 3})).changed({"math": 2}, 500, 20)
    message = "change of the mixture is dropped asked=500 weights=math 2"
    other = definition_of(Mixture({"web": 1, "code": 1}))
    full = [{"weights": {"web": 7, "code": 3}}, {"first_sample": 500, "weights": {"web": 1}}]

    _, appended = other.continued(state_of(schedule), 100, allow=True)
    found, in_the_way = definition_of(Mixture(stages=full)).continued(
        state_of(schedule), 100, allow=False
    )

    assert appended == (
        "resumed with other weights sample=100 saved=web 7, code 3 now=web 1, code 1",
        message,
    )
    assert in_the_way == (message,)
    assert stages_before(found, 999) == [(0, {"web": 7, "code": 3}), (500, {"web": 1})]


def test_renamed_sources_of_one_corpus_are_told_by_their_numbers() -> None:
    """And no two of them become one."""
    saved = definition_of(Mixture({"a": 4, "b": 3})).spec().parts([Corpus(bytes(32))] * 2)
    names = {"x": bytes(32).hex(), "y": bytes(32).hex()}

    found, _ = definition_of(Mixture({"x": 4, "y": 3})).continued(
        saved, 70, allow=False, fingerprints=names
    )

    assert [source.dataset for source in found.sources] == ["x", "y"]
    with pytest.raises(StreamMismatch, match="the weights x 4, b 3, but here x 3"):
        definition_of(Mixture({"x": 3})).continued(saved, 70, allow=False, fingerprints=names)


def test_what_leaves_an_appended_definition_no_room_is_said() -> None:
    """The stages of a file are too close together for the blocks of the state."""
    saved = state_of(definition_of(Mixture({"web": 60, "code": 40})))
    close = [
        {"weights": {"web": 60}},
        {"first_sample": 270, "weights": {"code": 1}},
        {"first_sample": 305, "weights": {"web": 1}},
    ]

    with pytest.raises(InvalidRequest, match="mixture: cannot begin at sample 200, since a later"):
        definition_of(Mixture(stages=close)).continued(saved, 150, allow=True)
