"""What `tokenfeed plan` prints: a forecast as plain values for JSON, and these as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any

from tokenfeed.client.feed.stats import SourceStats
from tokenfeed.commands.prices import Prices
from tokenfeed.stream.schedule import Exhausted

from .forecast import DELAY_STEPS_MAX, Forecast, StageForecast, smaller_blocks

_AMOUNT = ("samples", "tokens", "epochs")


@dataclass(frozen=True, slots=True)
class Report:
    """A forecast, and what is printed with it.

    max_epochs: limits sources, by the names of their datasets.  tokens: are as they were asked for.
    global_batch_size: counts the rows of a step of all ranks; None is unknown.  seen: has each
    source, by the history of a state; None without one.  first_batch: is that of this history,
    above 0 if older ones were dropped.  target_shares: tell of each source, by its number, the
    share of the positions of x that have a target, before any loss mask: 1 for windows.
    object_bytes: are those of a token of each source in an object store, in each object that a row
    is read from, by its number.  prices: are those of that store.
    """

    planned: Forecast
    max_epochs: Mapping[str, int]
    tokens: int
    global_batch_size: int | None
    seen: Mapping[str, SourceStats] | None
    first_batch: int
    target_shares: Mapping[int, Fraction]
    object_bytes: Mapping[int, Sequence[int]]
    prices: Prices

    # --- plain values ---

    def plain(self) -> dict[str, Any]:
        """Return plain values; docs/mixtures.md says what they are."""
        planned = self.planned
        first = planned.exhausted[0] if planned.exhausted else None
        return {
            "context_length": planned.stream.context_length,
            "seed": planned.stream.seed,
            "global_batch_size": self.global_batch_size,
            "tokens": self.tokens,
            "first_sample": planned.first_sample,
            "end_sample": planned.end_sample,
            "ended_by": None if first is None else self._name(first.source),
            "stages": [self._stage(stage) for stage in planned.stages],
            "sources": {self._name(each): self._source(each) for each in planned.numbers},
            "smaller_blocks": self._smaller_blocks(),
            "object_store": self._bills(),
        }

    def _stage(self, each: StageForecast) -> dict[str, Any]:
        stage = each.stage
        return {
            "stage": stage.index,
            "context_length": stage.context_length,
            "asked_sample": stage.asked,
            "first_sample": stage.first_sample,
            "first_token": self._tokens(stage.first_sample),
            "delay_samples": each.delay_samples,
            "delay_steps": self._delay_steps(each),
            "block": stage.block_size,
            "left_out_tokens": {self._name(n): count for n, count in each.left_out.items()},
            "sources": {
                self._name(number): {
                    "weight": weight,
                    "asked_share": _float(each.asked_share(number)),
                    "share": weight / stage.block_size,
                    **self._amount(number, samples, samples * stage.context_length),
                }
                for number, weight in stage.weights.items()
                for samples in [each.samples.get(number, 0)]
            },
        }

    def _source(self, number: int) -> dict[str, Any]:
        planned = self.planned
        source, samples = planned.stream.sources[number], planned.samples[number]
        name = source.dataset
        total = planned.end_sample - planned.first_sample
        end = next((one for one in planned.exhausted if one.source == number), None)
        seen = None if self.seen is None else self.seen.get(name, SourceStats(0, 0, None))
        return {
            "order": source.order.NAME,
            "seed": source.seed,
            "group_tokens": source.group_blocks * source.order.BLOCK_TOKENS or None,
            "rows_per_epoch": planned.rows.get(number),
            "target_share": float(self.target_shares[number]),
            "max_epochs": self.max_epochs.get(name),
            "share": samples / total if total else None,
            **self._amount(number, samples, planned.tokens[number]),
            "epochs_at_end": _float(planned.at_end.get(number)),
            "exhausted": None if end is None else self._end(end),
            "seen": None if seen is None else seen._asdict(),
        }

    def _end(self, end: Exhausted) -> dict[str, int]:
        return {"sample": end.sample, "tokens": self._tokens(end.sample), "stage": end.stage}

    def _amount(self, source: int, samples: int, tokens: int) -> dict[str, Any]:
        epochs = _float(self.planned.epochs(source, tokens))
        return dict(zip(_AMOUNT, (samples, tokens, epochs), strict=True))

    def _smaller_blocks(self) -> dict[str, Any] | None:
        planned = self.planned
        # What a state has behind it stays as it is, and so does the size of its blocks.
        if self.global_batch_size is None or self.seen is not None:
            return None
        found = smaller_blocks(planned.stages, self.global_batch_size)
        if found is None:
            return None
        shares = {name: float(getattr(found, name)) for name in ("asked_share", "share")}
        return {
            "block": found.block,
            "stage": found.stage,
            "source": self._name(found.source),
            **shares,
            "deviation": float(found.deviation),
        }

    def _delay_steps(self, each: StageForecast) -> float | None:
        """Return by how many steps a stage begins late: a step keeps its tokens."""
        if self.global_batch_size is None:
            return None
        stage, length = each.stage, self.planned.stages[0].stage.context_length
        late = self._tokens(stage.first_sample) - self._tokens(stage.asked)
        return late / (self.global_batch_size * length)

    def _bills(self) -> dict[str, dict[str, float]]:
        """Return what the tokens cost in an object store: GETs, bytes and dollars, by how they are
        read. Nothing without one.
        """
        if not self.object_bytes:
            return {}
        planned, samples, size, once = self.planned, 0, 0, 0
        tokens = planned.tokens
        for number, widths in self.object_bytes.items():
            row_bytes = planned.stream.context_length * sum(widths)
            source_bytes = tokens[number] * sum(widths)
            samples += planned.samples[number] * len(widths)
            size += source_bytes
            once += min(source_bytes, planned.rows.get(number, 0) * row_bytes or source_bytes)
        parts = {
            "row by row, without a cache": (samples, size),
            "in whole blocks, by order blocks": (-(-size >> 20), size),
            "in whole blocks, once": (-(-once >> 20), once),
        }
        return {
            name: {
                "gets": gets,
                "bytes": size_bytes,
                "dollars": self.prices.dollars(gets, size_bytes),
            }
            for name, (gets, size_bytes) in parts.items()
        }

    def _name(self, source: int) -> str:
        return self.planned.stream.sources[source].dataset

    def _tokens(self, sample: int) -> int:
        """Return the tokens before a sample."""
        return self.planned.stream.tokens_before(sample)

    # --- text ---

    def text(self) -> str:
        """Return lines for people."""
        plain = self.plain()
        lines = [self._header(), ""]
        if self.seen is not None:
            lines += [*self._seen_lines(self.seen), ""]
        reached = [one for one in self.planned.stages if any(one.samples.values())]
        for stage in plain["stages"][: len(reached)]:
            lines += [*self._stage_lines(stage), ""]
        if left := plain["stages"][len(reached) :]:
            first, last = left[0]["stage"], left[-1]["stage"]
            which = f"stage {first} is" if len(left) == 1 else f"stages {first} to {last} are"
            lines += [f"{which} not reached", ""]
        if plain["smaller_blocks"] is not None:
            lines += _smaller_blocks_lines(plain["smaller_blocks"])
        lines += self._total_lines(plain["sources"])
        for name, each in plain["object_store"].items():
            bill = f"{each['gets']:,} GETs, {each['bytes']:,} bytes, {each['dollars']:,.2f} dollars"
            lines.append(f"  {name}: {bill}")
        sources = self.planned.stream.sources
        if any(sources[number].order.NAME.startswith("packed") for number in self.object_bytes):
            lines.append("  a packed row needs a GET for each of its pieces, so more row by row")
        lines += ["", *self._end_lines(plain["sources"])]
        return "\n".join(lines)

    def _header(self) -> str:
        planned = self.planned
        end = planned.asked_end_sample
        begin = f"from sample {planned.first_sample:,} on " if planned.first_sample else ""
        until = f"{begin}up to sample {end:,} ({self._tokens(end):,} tokens)"
        count = len(planned.numbers)
        reached = [stage for stage in planned.stages if any(stage.samples.values())]
        each = [stage.stage.context_length for stage in reached or planned.stages[:1]]
        lengths = ", then ".join(f"{length:,}" for length, _ in groupby(each))
        sources = "1 source" if count == 1 else f"{count} sources"
        return f"mixture of {sources}, {until}, {lengths} tokens a sample"

    def _seen_lines(self, seen: Mapping[str, SourceStats]) -> Iterable[str]:
        yield f"seen before sample {self.planned.first_sample:,}, by the history of the state:"
        if self.first_batch:
            yield f"  (it begins with batch {self.first_batch:,}; older ones were dropped)"
        rows = [(name, *_shown(each._asdict())) for name, each in seen.items()]
        yield from _table([("source", *_AMOUNT), *rows])

    def _stage_lines(self, stage: Mapping[str, Any]) -> Iterable[str]:
        first, tokens = stage["first_sample"], stage["first_token"]
        begin = f"sample {first:,} ({tokens:,} tokens)" if first else "sample 0"
        what = f"blocks of {stage['block']:,} samples"
        if len({one.stage.context_length for one in self.planned.stages}) > 1:
            what = f"{stage['context_length']:,} tokens a sample, {what}"
        yield f"stage {stage['stage']}: from {begin} on, {what}"
        if stage["delay_samples"]:
            late = f"{stage['delay_samples']:,} samples late"
            if (steps := stage["delay_steps"]) is not None:
                late += f", {steps:,.1f} steps of {self.global_batch_size:,}"
            yield f"  asked for at sample {stage['asked_sample']:,}: {late}"
        if left := stage["left_out_tokens"]:
            listed = ", ".join(f"{name} {tokens:,} tokens" for name, tokens in left.items())
            yield f"  left out, the rest of the groups before it: {listed}"
        rows = [
            (
                name,
                f"{each['weight']:,}",
                _percent(each["asked_share"]),
                _percent(each["share"]),
                *_shown(each),
            )
            for name, each in stage["sources"].items()
        ]
        yield from _table([("source", "weight", "asked", "share", *_AMOUNT), *rows])

    def _total_lines(self, sources: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
        planned = self.planned
        has_documents = any(planned.stream.sources[n].reads_documents for n in planned.numbers)
        headings = ["source", "share", *_AMOUNT]
        headings += ["epochs at the end"] * bool(planned.first_sample)
        headings += ["max_epochs", *["targets"] * has_documents]
        rows = []
        for name, each in sources.items():
            row = [name, _percent(each["share"]), *_shown(each)]
            row += [_epochs(each["epochs_at_end"])] * bool(planned.first_sample)
            limit = each["max_epochs"]
            row += ["-" if limit is None else f"{limit:,}"]
            rows.append([*row, *[_percent(each["target_share"])] * has_documents])
        yield "in all stages:"
        yield from _table([headings, *rows])
        if has_documents:
            yield "  targets: share of the positions of x, without regard to loss masks"
        groups = {name: of for name, each in sources.items() if (of := each["group_tokens"])}
        if groups:
            listed = ", ".join(f"{name} {tokens:,}" for name, tokens in groups.items())
            total = f"{sum(groups.values()):,}"
            yield f"  groups of blocks: {total} tokens at a time ({listed})"

    def _end_lines(self, sources: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
        planned = self.planned
        for index, one in enumerate(planned.exhausted):
            name = self._name(one.source)
            end = sources[name]["exhausted"]
            where = f"{end['sample']:,} ({end['tokens']:,} tokens), in stage {end['stage']}"
            then = "and the mixture ends" if not index else "if the mixture goes on until then"
            yield f"{name} is exhausted at sample {where}, {then}"
        if planned.end_sample <= planned.first_sample:
            yield f"nothing is left from sample {planned.first_sample:,} on"
        if not planned.exhausted:
            yield "no source is exhausted"


def _smaller_blocks_lines(values: Mapping[str, Any]) -> Iterable[str]:
    yield (
        f"Some stages begin more than {DELAY_STEPS_MAX} steps late. Smaller blocks begin them "
        "earlier. Write this into the file, with weights that are shares such as 0.7:"
    )
    yield f"  block = {values['block']:_}"
    share = f"the share of {values['source']} in stage {values['stage']}"
    asked, found = (_percent(values[key]) for key in ("asked_share", "share"))
    if not values["deviation"]:
        cost = "All shares stay exact"
    elif values["share"]:
        off = _percent(values["deviation"])
        cost = f"Then {share} is {found} instead of {asked}, off by {off}, the most of all"
    else:
        cost = f"But {share}, {asked}, is less than a sample of it: give it more, or leave it out"
    yield f"{cost}."
    yield ""


def _shown(values: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return samples, tokens and epochs as a table has them."""
    return f"{values['samples']:,}", f"{values['tokens']:,}", _epochs(values["epochs"])


def _table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Return lines: names at the left, numbers at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers in rows:
        right = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
        yield "  ".join([f"  {name.ljust(widths[0])}", *right])


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.4g} %"


def _epochs(epochs: float | None) -> str:
    return "-" if epochs is None else f"{epochs:,.2f}"


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)
