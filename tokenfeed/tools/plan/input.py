"""What `tokenfeed plan` is asked for: a mixture, a saved state, and a number of tokens."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenfeed.client.feed.lengths import read_lengths
from tokenfeed.client.feed.mixture.recipe import Definition, Mixture, group_tokens_argument
from tokenfeed.client.feed.state import State, read_state
from tokenfeed.client.runtime.arguments import amount, shown
from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.stream.position import SAMPLE_END, require_range
from tokenfeed.stream.stage import LENGTH, SEED_END
from tokenfeed.stream.stream import Stream


@dataclass(frozen=True, slots=True)
class PlanInput:
    """What is to be planned: a mixture, what goes on from a state, or a mixture that does.

    mixture, definition: of a file; None without one.  saved: the state; None without one.  allow:
    permissions of a mixture that goes on.
    """

    mixture: Mixture | None
    definition: Definition | None
    saved: State | None
    allow: tuple[str, ...]

    @property
    def stream(self) -> Stream:
        """The stream of the file, or else that of the state."""
        if self.definition is not None:
            return self.definition.stream
        assert self.saved is not None
        return self.saved.stream

    @property
    def first_sample(self) -> int:
        """From which sample on to plan."""
        return self.saved.sample if self.saved else 0

    def proportions(self, stream: Stream) -> dict[int, dict[int, int]]:
        """Return what the weights of each stage were made from, by its index, as far as the file
        has them.

        stream: that goes on.
        """
        if self.mixture is None or self.definition is None:
            return {}
        own = {source.number: source.dataset for source in self.definition.stream.sources}
        pairs = zip(self.definition.stream.stages, self.mixture.stages, strict=True)
        known = {
            (stage.asked, frozenset((own[n], weight) for n, weight in stage.weights.items())): asked
            for stage, asked in ((stage, given.asked) for stage, given in pairs)
        }
        names = {source.number: source.dataset for source in stream.sources}
        found = dict[int, dict[int, int]]()
        for stage in stream.stages:
            weights = frozenset((names[n], weight) for n, weight in stage.weights.items())
            asked = known.get((stage.asked, weights))
            if stage.origin & LENGTH and stage.index - 1 in found:
                found[stage.index] = found[stage.index - 1]
            elif asked is not None:
                found[stage.index] = {n: asked.get(name, 0) for n, name in names.items()}
        return found


def read_tokens(written: str) -> int:
    """Return a number of tokens that is written as 1e12 or 2_000_000_000.  Raises:
    InvalidRequest.
    """
    return amount("tokens", written, "tokens")


def read_end_sample(written: str, tokens: int, stream: Stream, first_sample: int) -> int:
    """Return the sample up to which to plan: tokens rounded up to whole samples.  Raises:
    InvalidRequest.
    """
    end_sample = stream.sample_at(tokens)
    if end_sample > SAMPLE_END:
        problem = f"{written} are {end_sample} samples; there are 2^63 at most"
        raise InvalidRequest("tokens", problem)
    if end_sample <= first_sample:
        problem = f"{written} are {end_sample} samples of a run that is at {first_sample}"
        raise InvalidRequest("tokens", f"{problem}; pass the tokens of the whole run")
    return end_sample


def read_asked(arguments: argparse.Namespace, path: str | None) -> PlanInput:
    """Return the mixture of a file, a state, or both."""
    saved = None if arguments.state is None else _read_state(arguments.state)
    length, order, seed = arguments.context_length, arguments.order, arguments.seed
    if length is None:
        if saved is None:
            raise InvalidRequest("context_length", "is missing; only a state has one")
        here = saved.stream.place_of(saved.sample)
        length = saved.stream.stages[here].context_length if path else saved.stream.context_length
    require_range("context_length", length, 1, SAMPLE_END)
    if seed is not None:
        require_range("seed", seed, 0, SEED_END)
    if arguments.allow_mixture and (saved is None or path is None):
        raise InvalidRequest("--allow-mixture", "is for --state together with a mixture")
    if path is not None:
        if seed is None:
            seed = saved.stream.seed if saved else 0
        mixture = Mixture.load(path)
        definition = mixture.definition(
            length,
            order or orders.DEFAULT_OF_FEEDS,
            seed,
            group_tokens=group_tokens_argument("group_tokens", arguments.group_tokens),
        )
        changes = arguments.change_context_length
        _, lengths = read_lengths({0: length, **_by_begin(changes)} if changes else length)
        definition = replace(definition, lengths=lengths)
        allow = ("mixture",) if arguments.allow_mixture else ()
        return PlanInput(mixture, definition, saved, allow)
    assert saved is not None
    changes = arguments.change_context_length
    for name, given in (("order", order), ("seed", seed), ("change_context_length", changes)):
        if given is not None:
            raise InvalidRequest(name, "is part of the state; omit it, or pass a mixture too")
    if length != saved.stream.context_length:
        problem = f"{length} is not {saved.stream.context_length}, that of the state"
        raise InvalidRequest("context_length", problem)
    return PlanInput(None, None, saved, ())


def _by_begin(changes: Sequence[str]) -> dict[int | str, int]:
    """Return context lengths by where they begin, for `read_lengths`.

    changes: "2e11 tokens=32768" or "40000=32768" (a sample) each.  Raises: InvalidRequest.
    """
    found: dict[int | str, int] = {}
    for each in changes:
        begin, _, length = each.partition("=")
        if not length.strip().isdecimal():
            problem = f'{shown(each)} is not written as "2e11 tokens=32768" or "40000=32768"'
            raise InvalidRequest("change_context_length", problem)
        found[int(begin) if begin.strip().isdecimal() else begin] = int(length)
    return found


def _read_state(path: str) -> State:
    """Return a state from a file of JSON.  Raises: InvalidRequest."""
    try:
        values = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InvalidRequest("state", f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("state", f"{path} is not JSON: {error}") from None
    return read_state(values)
