"""What `tokenfeed plan` is asked for: a mixture, a saved state, and a number of tokens."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.stream.parts import StreamParts
from tokenfeed.stream.position import SAMPLE_END, require_range
from tokenfeed.stream.spec import SEED_END, StreamSpec

from ...feed.history import History
from ...feed.mixture.past import require_same_length_and_seed
from ...feed.mixture.recipe import Mixture
from ...feed.mixture.schedule import Schedule, planned_stages, sources_of
from ...feed.redactions import planned_for
from ...feed.saved.state import read_history, read_state
from ...runtime.arguments import shown

_TOKENS = re.compile(r"([0-9][0-9_]*)(?:\.([0-9]+))?(?:[eE]\+?([0-9]{1,2}))?")


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved state."""

    sample: int
    parts: StreamParts
    history: History


@dataclass(frozen=True)
class Asked:
    """A mixture to be planned.

    schedule: what follows from a file, a state, or both.  mixture, definition: of the file; None
    without one.  allow: whether a state of other weights may go on with those of the file.
    """

    schedule: Schedule
    mixture: Mixture | None = None
    definition: Schedule | None = None
    saved: Saved | None = None
    allow: bool = False

    @cached_property
    def spec(self) -> StreamSpec:
        """The stream, with the redactions of the file.  Raises: InvalidRequest if a stage has no
        block, for example by a change.
        """
        spec = self.schedule.spec()
        if self.mixture is None:
            return spec
        return planned_for(spec, self.mixture.planned_redactions(spec.context_length))

    @property
    def first_sample(self) -> int:
        """From which sample on to plan."""
        return self.saved.sample if self.saved else 0

    def proportions(self) -> list[tuple[int, ...] | None]:
        """Return what the weights of each stage were made from; None where that is not known."""
        names = [source.dataset for source in self.schedule.sources]
        known = {}
        if self.mixture and self.definition:
            pairs = zip(self.definition.stages, self.mixture.stages, strict=True)
            known = {planned.asked: (planned, stage.asked) for planned, stage in pairs}
        found: list[tuple[int, ...] | None] = []
        for stage in self.schedule.stages:
            planned, asked = known.get(stage.asked, (None, {}))
            is_known = planned == stage
            found.append(tuple(asked.get(name, 0) for name in names) if is_known else None)
        return found


def read_tokens(written: str) -> int:
    """Return a number of tokens that is written as 1e12 or 2_000_000_000.  Raises:
    InvalidRequest.
    """
    match = _TOKENS.fullmatch(written)
    if match is None:
        problem = f"{shown(written)} is not a number of tokens, such as 1e12 or 2_000_000_000"
        raise InvalidRequest("tokens", problem)
    whole, part, exponent = match.groups("")
    tokens = Fraction(int(whole.replace("_", "") + part)) * Fraction(10) ** (
        int(exponent or 0) - len(part)
    )
    if tokens.denominator != 1 or not tokens:
        raise InvalidRequest("tokens", f"{written} is not a whole number above 0")
    return tokens.numerator


def read_end_sample(written: str, tokens: int, asked: Asked) -> int:
    """Return the sample up to which to plan: tokens rounded up to whole samples.  Raises:
    InvalidRequest.
    """
    end_sample = -(-tokens // asked.spec.context_length)
    if end_sample > SAMPLE_END:
        problem = f"{written} are {end_sample} samples; there are 2^63 at most"
        raise InvalidRequest("tokens", problem)
    if end_sample <= asked.first_sample:
        problem = f"{written} are {end_sample} samples of a run that is at {asked.first_sample}"
        raise InvalidRequest("tokens", f"{problem}; pass the tokens of the whole run")
    return end_sample


def read_asked(arguments: argparse.Namespace, path: str | None) -> Asked:
    """Return the mixture of a file, of a state, or of a file that goes on from a state."""
    saved = None if arguments.state is None else _read_state(arguments.state)
    length, order, seed = arguments.context_length, arguments.order, arguments.seed
    if length is None:
        if saved is None:
            raise InvalidRequest("context_length", "is missing; only a state has one")
        length = saved.parts.context_length
    require_range("context_length", length, 1, SAMPLE_END)
    if seed is not None:
        require_range("seed", seed, 0, SEED_END)
    if arguments.allow_mixture and (saved is None or path is None):
        raise InvalidRequest("--allow-mixture", "is for --state together with a mixture")
    if path is not None:
        if seed is None:
            seed = saved.parts.seed if saved else 0
        mixture = Mixture.load(path)
        definition = mixture.schedule(length, order or orders.DEFAULT_OF_FEEDS, seed)
        if saved is None:
            return Asked(definition, mixture, definition)
        require_same_length_and_seed(saved.parts, definition.spec())
        schedule, _ = definition.continued(saved.parts, saved.sample, allow=arguments.allow_mixture)
        return Asked(schedule, mixture, definition, saved, arguments.allow_mixture)
    assert saved is not None
    for name, given in (("order", order), ("seed", seed)):
        if given is not None:
            raise InvalidRequest(name, "is part of the state; omit it, or pass a mixture too")
    if length != saved.parts.context_length:
        problem = f"{length} is not {saved.parts.context_length}, that of the state"
        raise InvalidRequest("context_length", problem)
    return Asked(_schedule_of(saved.parts), saved=saved)


def _read_state(path: str) -> Saved:
    """Return a state of a mixture from a file of JSON.  Raises: InvalidRequest."""
    try:
        values = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InvalidRequest("state", f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("state", f"{path} is not JSON: {error}") from None
    sample, parts = read_state(values)
    if not parts.stages:
        problem = f"{path} is of one dataset, but only a mixture has something to plan"
        raise InvalidRequest("state", problem)
    return Saved(sample, parts, read_history(values))


def _schedule_of(parts: StreamParts) -> Schedule:
    """Return the mixture of a state.  Raises: NotFound for an order of a later release."""
    sources = sources_of(parts)
    order, stages = sources[0].order.NAME, tuple(one.stage for one in planned_stages(parts))
    return Schedule(parts.context_length, parts.seed, order, sources, stages)
