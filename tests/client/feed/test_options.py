"""The arguments of feeds: one list, which type checkers, `help` and the checks read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from client import NumpyBatches, RemoteBatches, validation_feeds
from tokenfeed.client.batches.arrays import NumpyOptions
from tokenfeed.client.batches.remote import RemoteOptions
from tokenfeed.client.batches.validation import ValidationOptions
from tokenfeed.client.feed.options import FeedOptions, SharedOptions, checked, options_of

TAKERS = [
    (RemoteBatches, RemoteOptions),
    (NumpyBatches, NumpyOptions),
    (validation_feeds, ValidationOptions),
]


@pytest.mark.parametrize(("taker", "kind"), TAKERS, ids=lambda each: each.__name__)
def test_the_signature_has_each_argument_with_its_type_and_default(
    taker: Callable[..., Any], kind: type
) -> None:
    """As an editor shows it; no argument hides behind **options."""
    shown = inspect.signature(taker).parameters

    assert not [each for each in shown.values() if each.kind is each.VAR_KEYWORD]
    for name, (hint, option) in options_of(kind).items():
        default = "sequential" if (taker, name) == (validation_feeds, "order") else option.default
        assert (shown[name].annotation, shown[name].default) == (hint, default)
    positional = [name for name, each in shown.items() if each.kind is not each.KEYWORD_ONLY]
    assert positional[:3] == ["target", "batch_size", "context_length"]


@pytest.mark.parametrize(("taker", "kind"), TAKERS, ids=lambda each: each.__name__)
def test_help_describes_each_argument_in_a_sentence(taker: Callable[..., Any], kind: type) -> None:
    """One that begins with its name, and ends."""
    text = (taker.__init__ if isinstance(taker, type) else taker).__doc__ or ""

    for name, (_, option) in options_of(kind).items():
        assert len(re.findall(rf"^{name} \w+ ", text, re.MULTILINE)) == 1, name
        assert option.sentence.endswith(".")
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("taker", "wrong", "near"),
    [
        (RemoteBatches, "sede", "seed"),
        (RemoteBatches, "nun_batches", "num_batches"),
        (RemoteBatches, "dtype", "x_dtype"),
        (NumpyBatches, "x_dtype", "dtype"),
        (NumpyBatches, "mixtures", "mixture"),
        (validation_feeds, "ordre", "order"),
    ],
)
def test_an_unknown_argument_is_named_with_the_nearest_one(
    taker: Callable[..., Any], wrong: str, near: str
) -> None:
    """A typing error would otherwise be a default, in silence."""
    sources = (["train"],) if taker is validation_feeds else ()

    problem = f"^{taker.__name__} has no argument '{wrong}'; did you mean '{near}'\\?$"
    with pytest.raises(TypeError, match=problem):
        taker("localhost:1", 2, 8, *sources, **{wrong: 1})


@pytest.mark.parametrize("name", ["mixture", "start_step", "num_batches", "dataset"])
def test_validation_feeds_refuse_what_they_decide_themselves(name: str) -> None:
    with pytest.raises(TypeError, match=f"^validation_feeds has no argument '{name}'"):
        validation_feeds("localhost:1", 2, 8, ["train"], **{name: None})


def test_every_argument_that_is_not_given_has_its_default() -> None:
    """What comes out has all of them, so that no reader repeats a default."""
    found = checked(FeedOptions, {"seed": 7}, "a feed")

    defaults = {name: option.default for name, (_, option) in options_of(FeedOptions).items()}
    assert found == defaults | {"seed": 7, "order": "shuffled-1", "dataset": ""}
    assert set(options_of(SharedOptions)) < set(defaults)
