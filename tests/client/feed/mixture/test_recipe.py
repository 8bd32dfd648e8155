"""Mixtures as users write them, in Python and in files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from client import InvalidRequest, Mixture, NotFound, RemoteBatches
from tokenfeed.errors import RequestError
from tokenfeed.sampling import orders
from tokenfeed.stream.stage import Redaction, Share, Stage
from tokenfeed.stream.stream import Stream

T = 4
REDACTION = {"dataset": "a", "list": "ab" * 32, "first_sample": 1}
FILE = """
order = "shuffled"
seed = 7

[sources.web]
max_epochs = 2

[sources.code]
order = "random"
seed = 3

[[stages]]
weights = {web = 0.7, code = 0.3}

[[stages]]
first_tokens = 1001
weights = {web = 1, math = 1}
"""


def test_a_file_says_what_the_constructor_does(tmp_path: Path) -> None:
    """So that a scheduler which reruns the script finds the same stages."""
    path = tmp_path / "mixture.toml"
    path.write_text(FILE)
    loaded = Mixture.load(path)
    made = Mixture(
        stages=[
            {"weights": {"web": 0.7, "code": 0.3}},
            {"first_tokens": 1001, "weights": {"web": 1, "math": 1}},
        ],
        sources={"web": {"max_epochs": 2}, "code": {"order": "random", "seed": 3}},
        order="shuffled",
        seed=7,
    )

    definition = loaded.definition(T, "sequential-1", 99)

    stream = definition.stream
    assert definition == made.definition(T, "sequential-1", 99)
    assert definition.max_epochs == {"web": 2}
    assert stream.seed == 7
    assert [(each.dataset, each.order.NAME, each.seed, each.number) for each in stream.sources] == [
        ("web", "shuffled-1", 7, 0),
        ("code", "random-1", 3, 1),
        ("math", "shuffled-1", 7, 2),
    ]
    # 1,001 tokens are 250.25 samples, and a block has 100.
    assert stream.stages == (
        Stage(0, 0, T, (Share(0, 70, 0), Share(1, 30, 0)), bytes(32)),
        Stage(1, 300, T, (Share(0, 1, 210), Share(1, 0, 90), Share(2, 1, 0))),
    )
    assert stream.stages[1].asked == 251


def test_what_a_mixture_does_not_say_is_the_feed_s() -> None:
    stream = Mixture({"web": 1, "code": 2}).definition(T, "sequential-1", 99).stream

    assert {each.order.NAME for each in stream.sources} == {"sequential-1"}
    assert stream.seed == 99
    assert stream.stage.weights == {0: 1, 1: 2}
    of_random = Mixture({"web": 1, "code": 2}).definition(T, "random-1", 99).stream
    assert {each.seed for each in of_random.sources} == {99}


def test_a_mixture_of_one_dataset_is_the_stream_over_it() -> None:
    """Both have the same rows and the same identity, and read each other's states."""
    mixed = Mixture({"web": 1}).definition(T, "shuffled-1", 99).stream

    assert mixed == Stream.of_dataset("web", orders.find("shuffled-1"), 99, T)
    assert mixed.is_plain
    # In its exact proportions, but in blocks of 100 samples, each permuted.
    assert not Mixture({"web": 0.5}).definition(T, "shuffled-1", 99).stream.is_plain


@pytest.mark.parametrize(
    ("arguments", "kind", "problem"),
    [
        ({}, InvalidRequest, "mixture: has to have either weights or stages"),
        (
            {"weights": {"a": 1}, "stages": [{"weights": {"a": 1}}]},
            InvalidRequest,
            "mixture: has to have either weights or stages",
        ),
        ({"weights": {}}, InvalidRequest, "weights: are missing; name at least one dataset"),
        ({"weights": [1, 2]}, InvalidRequest, "weights: [1, 2] is not a mapping from names"),
        ({"weights": {"": 1}}, InvalidRequest, "weights: has an empty name"),
        ({"weights": {1: 1}}, InvalidRequest, "a key of weights: 1 is not text"),
        ({"weights": {"a": 0, "b": 0.0}}, InvalidRequest, "weights: are all 0"),
        ({"weights": {"a": -1}}, InvalidRequest, "weights.a: -1 is negative; 0 pauses a source"),
        ({"weights": {"a": math.nan}}, InvalidRequest, "weights.a: nan is not a finite number"),
        ({"weights": {"a": 10**5000}}, InvalidRequest, "weights.a: has more than 64 bits"),
        ({"weights": {"a": 1, "b": 1e-9}}, InvalidRequest, "weights.b: is a share of 1e-09, less"),
        ({"stages": []}, InvalidRequest, "stages: [] is not a list of stages"),
        ({"stages": {"a": 1}}, InvalidRequest, "stages: {'a': 1} is not a list of stages"),
        ({"stages": [{"a": 1}]}, InvalidRequest, "stages[0].'a': is unknown; there are first_s"),
        (
            {"stages": [{"weights": {"a": 1}}, {"weights": {"a": 2}}]},
            InvalidRequest,
            "stages[1]: has to have either first_sample or first_tokens",
        ),
        (
            {"stages": [{"first_sample": 0, "first_tokens": 0, "weights": {"a": 1}}]},
            InvalidRequest,
            "stages[0]: has to have either first_sample or first_tokens",
        ),
        (
            {"stages": [{"weights": {"a": 1}}, {"first_sample": -1, "weights": {"a": 2}}]},
            InvalidRequest,
            "stages[1].first_sample: -1 is not in",
        ),
        (
            {"stages": [{"weights": {"a": 1}}, {"first_sample": 5, "weights": {"a": -2}}]},
            InvalidRequest,
            "stages[1].weights.a: -2 is negative",
        ),
        ({"weights": {"a": 1}, "block": 0}, InvalidRequest, "block: 0 is not in [1, 1048576]"),
        ({"weights": {"a": 1}, "seed": -1}, InvalidRequest, "seed: -1 is not in"),
        ({"weights": {"a": 1}, "seed": "7"}, InvalidRequest, "seed: '7' is not an integer"),
        ({"weights": {"a": 1}, "seed": True}, InvalidRequest, "seed: True is not an integer"),
        ({"weights": {"a": 1}, "order": "mixed"}, NotFound, "order: 'mixed' is not one of random"),
        (
            {"weights": {"a": 1}, "sources": {"b": {}}},
            InvalidRequest,
            "sources.b: has no weight in any stage",
        ),
        (
            {"weights": {"a": 1}, "sources": {"a": {"epochs": 1}}},
            InvalidRequest,
            "sources.a.'epochs': is unknown; there are order, seed, max_epochs",
        ),
        (
            {"weights": {"a": 1}, "sources": {"a": {"max_epochs": 0}}},
            InvalidRequest,
            "sources.a.max_epochs: 0 is not in [1, ",
        ),
        (
            {"weights": {"a": 1}, "sources": {"a": {"max_epochs": 1.5}}},
            InvalidRequest,
            "sources.a.max_epochs: 1.5 is not an integer",
        ),
        (
            {"weights": {"a": 1}, "redactions": "ab"},
            InvalidRequest,
            "redaction: 'ab' is not a list of redactions",
        ),
        (
            {"weights": {"a": 1}, "redactions": [REDACTION | {"dataset": "b"}]},
            InvalidRequest,
            "redaction[0].dataset: 'b' has no weight in any stage, only a",
        ),
        (
            {"weights": {"a": 1}, "redactions": [REDACTION, REDACTION | {"list": "xy"}]},
            InvalidRequest,
            "redaction[1].list: 'xy' is not 64 hexadecimal digits",
        ),
        (
            {"weights": {"a": 1}, "redactions": [{"dataset": "a", "first_sample": 1}]},
            InvalidRequest,
            "redaction[0].list: is missing",
        ),
        (
            {"weights": {"a": 1}, "redactions": [{"dataset": "a", "list": "ab" * 32}]},
            InvalidRequest,
            "redaction[0]: has to have either first_sample or first_tokens",
        ),
        (
            {"weights": {"a": 1}, "redactions": [REDACTION | {"first_sample": True}]},
            InvalidRequest,
            "redaction[0].first_sample: True is not an integer",
        ),
        (
            {"weights": {"a": 1}, "redactions": [REDACTION | {"first_sample": -1}]},
            InvalidRequest,
            "redaction[0].first_sample: -1 is not in",
        ),
        (
            {"weights": {"a": 1}, "redactions": [REDACTION | {"sample": 1}]},
            InvalidRequest,
            "redaction[0].'sample': is unknown; there are dataset, list, first_sample",
        ),
        (
            {"weights": {"a": 1}, "redactions": [REDACTION, REDACTION | {"first_sample": 9}]},
            InvalidRequest,
            f"redaction[1].list: {'ab' * 32} is given twice for a",
        ),
    ],
)
def test_what_is_no_mixture_is_refused_by_name(
    arguments: dict[str, Any], kind: type[RequestError], problem: str
) -> None:
    """Before anything is asked of a server."""
    with pytest.raises(kind, match="^" + re.escape(problem)):
        Mixture(**arguments)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff", "is not TOML"),
        (b"weights = ", "is not TOML: "),
        (b"weights = {a = 1, a = 2}", "is not TOML: "),
        (b"weight = {a = 1}", "mixture.'weight': is unknown; there are order, seed, block, "),
        (b"weights = {a = 1.5, b = nan}", "weights.b: nan is not a finite number ("),
        (b"[[stages]]\nweights = {a = 1}\nfirst = 3", "stages[0].'first': is unknown; there are"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "mixture.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(InvalidRequest, match=re.escape(problem)) as caught:
        Mixture.load(path)

    assert "mixture.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"mixture": {"a": 1}, "dataset": "a"}, "dataset: is given together with mixture"),
        ({"mixture": {"a": 1}, "fingerprint": "ab" * 32}, "fingerprint: is of one dataset, but"),
        ({"mixture": 5}, "weights: 5 is not a mapping from names"),
        (
            {
                "mixture": Mixture({"a": 1}, sources={"a": {"max_epochs": 1}}),
                "order": "random",
            },
            "sources.a.max_epochs: is 1, but random-1 is endless and has no epochs",
        ),
        (
            {
                "mixture": Mixture(
                    stages=[
                        {"weights": {"a": 5, "b": 5}},
                        {"first_sample": 3, "weights": {"a": 1}},
                        {"first_sample": 9, "weights": {"b": 1}},
                    ]
                )
            },
            "stages[2].first_sample: 9 is not above 10, where the one before it begins",
        ),
    ],
)
def test_a_feed_names_what_does_not_go_together(arguments: dict[str, Any], problem: str) -> None:
    """In its constructor, without a server."""
    with pytest.raises(InvalidRequest, match=re.escape(problem)):
        RemoteBatches("localhost:1", 4, T, **arguments)


def test_a_file_has_redactions_by_sample_or_by_tokens() -> None:
    """Rounded up to a whole sample, as stages are."""
    tables = "".join(
        f'[[redaction]]\ndataset = "a"\nlist = "{digit * 64}"\n{begin}\n'
        for digit, begin in (("b", f"first_tokens = {3 * T + 1}"), ("a", "first_sample = 2"))
    )
    mixture = Mixture.parse(f"weights = {{a = 1}}\n{tables}".encode(), "mixture.toml")

    assert mixture.definition(T, "shuffled-1", 0).stream.redactions == (
        Redaction(2, 0, bytes.fromhex("a" * 64)),
        Redaction(4, 0, bytes.fromhex("b" * 64)),
    )
    with pytest.raises(InvalidRequest, match=r"redaction\[0\].list: is missing.*mixture.toml"):
        Mixture.parse(b'weights = {a = 1}\n[[redaction]]\ndataset = "a"', "mixture.toml")


def test_a_mixture_has_no_epochs() -> None:
    feed = RemoteBatches("localhost:1", 4, T, mixture={"a": 1}, order="shuffled")

    with pytest.raises(InvalidRequest, match="mixture: has no epochs; max_epochs of a source"):
        feed.epoch(0)
    assert feed.position.epoch is None
    assert "mixture-1" in repr(feed)
