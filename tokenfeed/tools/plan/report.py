"""What `tokenfeed plan` prints: a forecast as text, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any

from tokenfeed.client.feed.stats import SourceStats
from tokenfeed.server.storage.objects.counts import Prices
from tokenfeed.stream.schedule import Exhausted

from .forecast import (
    DELAY_STEPS_MAX,
    Forecast,
    StageForecast,
    smaller_blocks,
)

_HEADINGS = ("source", "weight", "asked", "share", "samples", "tokens", "epochs")


@dataclass(frozen=True, slots=True)
class Report:
    """A forecast, and what is printed with it.

    max_epochs: of sources, by the names of their datasets.  tokens: as they were asked for.
    global_batch_size: rows of a step of all ranks; None is unknown.  seen: of each source, by the
    history of a state; None without one.  first_batch: of that history, above 0 if older ones
    were dropped.  target_shares: of each source, by its number, the share of the positions of x
    that have a target, before any loss mask: 1 for windows.  token_bytes: of each source, by its
    number.  prices: of the object store that is read; None without one.
    """

    planned: Forecast
    max_epochs: Mapping[str, int]
    tokens: int
    global_batch_size: int | None
    seen: Mapping[str, SourceStats] | None
    first_batch: int
    target_shares: Mapping[int, Fraction]
    token_bytes: Mapping[int, int]
    prices: Prices | None

    def text(self) -> str:
        """Return lines for people."""
        lines = [self._header(), ""]
        if self.seen is not None:
            lines += [*self._seen_lines(self.seen), ""]
        reached = [stage for stage in self.planned.stages if any(stage.samples.values())]
        for stage in reached:
            lines += [*self._stage_lines(stage), ""]
        if left := self.planned.stages[len(reached) :]:
            numbers = (
                f"stage {left[0].stage.index} is"
                if len(left) == 1
                else (f"stages {left[0].stage.index} to {left[-1].stage.index} are")
            )
            lines += [f"{numbers} not reached", ""]
        lines += self._smaller_blocks_lines()
        lines += [*self._total_lines(), "", *self._end_lines()]
        return "\n".join(lines)

    def plain(self) -> dict[str, Any]:
        """Return plain values; docs/mixtures.md says what they are."""
        planned = self.planned
        first = planned.exhausted[0] if planned.exhausted else None
        return {
            "context_length": self._length,
            "seed": planned.stream.seed,
            "global_batch_size": self.global_batch_size,
            "tokens": self.tokens,
            "first_sample": planned.first_sample,
            "end_sample": planned.end_sample,
            "ended_by": None if first is None else self._name(first.source),
            "stages": [self._plain_stage(stage) for stage in planned.stages],
            "sources": {self._name(each): self._plain_source(each) for each in planned.numbers},
            "smaller_blocks": self._plain_smaller_blocks(),
            "object_store": {
                name: {"gets": gets, "bytes": size_bytes, "dollars": dollars}
                for name, (gets, size_bytes, dollars) in self._bills().items()
            },
        }

    # --- text ---

    def _header(self) -> str:
        planned = self.planned
        end = planned.asked_end_sample
        begin = f"from sample {planned.first_sample:,} on " if planned.first_sample else ""
        until = f"{begin}up to sample {end:,} ({self._tokens(end):,} tokens)"
        count = len(planned.numbers)
        each = [stage.stage.context_length for stage in planned.stages]
        lengths = ", then ".join(f"{length:,}" for length, _ in groupby(each))
        sources = "1 source" if count == 1 else f"{count} sources"
        return f"mixture of {sources}, {until}, {lengths} tokens a sample"

    def _seen_lines(self, seen: Mapping[str, SourceStats]) -> Iterable[str]:
        yield f"seen before sample {self.planned.first_sample:,}, by the history of the state:"
        if self.first_batch:
            yield f"  (it begins with batch {self.first_batch:,}; older ones were dropped)"
        rows = [
            (name, f"{each.samples:,}", f"{each.tokens:,}", _epochs(each.epochs))
            for name, each in seen.items()
        ]
        yield from _table([("source", "samples", "tokens", "epochs"), *rows])

    def _stage_lines(self, each: StageForecast) -> Iterable[str]:
        stage, first = each.stage, each.stage.first_sample
        begin = f"sample {first:,} ({self._tokens(first):,} tokens)" if first else "sample 0"
        what = f"blocks of {stage.block_size:,} samples"
        if len({one.stage.context_length for one in self.planned.stages}) > 1:
            what = f"{stage.context_length:,} tokens a sample, {what}"
        yield f"stage {stage.index}: from {begin} on, {what}"
        if each.delay_samples:
            late = f"{each.delay_samples:,} samples late"
            if self.global_batch_size is not None:
                steps = each.delay_samples / self.global_batch_size
                late += f", {steps:,.1f} steps of {self.global_batch_size:,}"
            yield f"  asked for at sample {stage.asked:,}: {late}"
        rows = [
            (
                self._name(number),
                f"{weight:,}",
                _percent(each.asked_share(number)),
                _percent(weight / stage.block_size),
                *self._amount(number, *_of_stage(each, number)),
            )
            for number, weight in stage.weights.items()
        ]
        yield from _table([_HEADINGS, *rows])

    def _smaller_blocks_lines(self) -> Iterable[str]:
        values = self._plain_smaller_blocks()
        if values is None:
            return
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
            cost = (
                f"But {share}, {asked}, is less than a sample of it: give it more, or leave it out"
            )
        yield f"{cost}."
        yield ""

    def _total_lines(self) -> Iterable[str]:
        planned = self.planned
        total = planned.end_sample - planned.first_sample
        has_documents = any(
            planned.stream.sources[number].reads_documents for number in planned.numbers
        )
        rows: list[tuple[str, ...]] = []
        for number in planned.numbers:
            name, samples = self._name(number), planned.samples[number]
            at_end = planned.epochs_at_end(number)
            limit = self.max_epochs.get(name)
            rows.append(
                (
                    name,
                    _percent(Fraction(samples, total) if total else None),
                    *self._amount(number, samples, planned.tokens[number]),
                    *((_epochs(at_end),) if planned.first_sample else ()),
                    "-" if limit is None else f"{limit:,}",
                    *((_percent(self.target_shares[number]),) if has_documents else ()),
                )
            )
        at_end_heading = ("epochs at the end",) if planned.first_sample else ()
        headings = ("source", "share", "samples", "tokens", "epochs", *at_end_heading, "max_epochs")
        headings += ("targets",) if has_documents else ()
        yield "in all stages:"
        yield from _table([headings, *rows])
        if has_documents:
            yield "  targets: share of the positions of x, without regard to loss masks"
        groups = {number: self._group_tokens(number) for number in planned.numbers}
        if total_tokens := sum(groups.values()):
            each = ", ".join(
                f"{self._name(n)} {tokens:,}" for n, tokens in groups.items() if tokens
            )
            yield f"  groups of blocks: {total_tokens:,} tokens at a time ({each})"
        for name, (gets, size_bytes, dollars) in self._bills().items():
            yield f"  {name}: {gets:,} GETs, {size_bytes:,} bytes, {dollars:,.2f} dollars"

    def _end_lines(self) -> Iterable[str]:
        planned = self.planned
        for index, end in enumerate(planned.exhausted):
            name = self._name(end.source)
            tokens = self._tokens(end.sample)
            where = f"{end.sample:,} ({tokens:,} tokens), in stage {end.stage}"
            then = "and the mixture ends" if not index else "if the mixture goes on until then"
            yield f"{name} is exhausted at sample {where}, {then}"
        if planned.end_sample <= planned.first_sample:
            yield f"nothing is left from sample {planned.first_sample:,} on"
        if not planned.exhausted:
            yield "no source is exhausted"

    def _bills(self) -> dict[str, tuple[int, int, float]]:
        """Return what the tokens cost in an object store: GETs, bytes and dollars, by how they are
        read. Nothing without one.
        """
        if self.prices is None:
            return {}
        tokens, rows = self.planned.tokens, self.planned.rows
        size = {n: count * self.token_bytes[n] for n, count in tokens.items()}
        once = {
            n: min(size[n], rows.get(n, 0) * self._length * self.token_bytes[n] or size[n])
            for n in size
        }
        samples = sum(self.planned.samples[n] for n in tokens)
        parts = {
            "row by row, without a cache": (samples, sum(size.values())),
            "in whole blocks, by order blocks": (-(-sum(size.values()) >> 20), sum(size.values())),
            "in whole blocks, once": (-(-sum(once.values()) >> 20), sum(once.values())),
        }
        return {name: (*part, self.prices.dollars(*part)) for name, part in parts.items()}

    def _group_tokens(self, number: int) -> int:
        """Return the tokens of a group of a source; 0 for an order without groups."""
        source = self.planned.stream.sources[number]
        return source.group_blocks * source.order.BLOCK_TOKENS

    def _amount(self, source: int, samples: int, tokens: int) -> tuple[str, str, str]:
        return f"{samples:,}", f"{tokens:,}", _epochs(self.planned.epochs(source, tokens))

    # --- plain values ---

    def _plain_stage(self, each: StageForecast) -> dict[str, Any]:
        stage, steps = each.stage, None
        if self.global_batch_size is not None:
            steps = each.delay_samples / self.global_batch_size
        return {
            "stage": stage.index,
            "context_length": stage.context_length,
            "asked_sample": stage.asked,
            "first_sample": stage.first_sample,
            "first_token": self._tokens(stage.first_sample),
            "delay_samples": each.delay_samples,
            "delay_steps": steps,
            "block": stage.block_size,
            "sources": {
                self._name(number): {
                    "weight": weight,
                    "asked_share": _float(each.asked_share(number)),
                    "share": weight / stage.block_size,
                    **self._plain_amount(number, *_of_stage(each, number)),
                }
                for number, weight in stage.weights.items()
            },
        }

    def _plain_source(self, number: int) -> dict[str, Any]:
        planned = self.planned
        source, samples = planned.stream.sources[number], planned.samples[number]
        name = source.dataset
        total = planned.end_sample - planned.first_sample
        end = next((one for one in planned.exhausted if one.source == number), None)
        seen = None if self.seen is None else self.seen.get(name, SourceStats(0, 0, None))
        return {
            "order": source.order.NAME,
            "seed": source.seed,
            "group_tokens": self._group_tokens(number) or None,
            "rows_per_epoch": planned.rows.get(number),
            "target_share": float(self.target_shares[number]),
            "max_epochs": self.max_epochs.get(name),
            "share": samples / total if total else None,
            **self._plain_amount(number, samples, planned.tokens[number]),
            "epochs_at_end": _float(planned.epochs_at_end(number)),
            "exhausted": None if end is None else self._plain_end(end),
            "seen": None if seen is None else seen._asdict(),
        }

    def _plain_end(self, end: Exhausted) -> dict[str, int]:
        return {"sample": end.sample, "tokens": self._tokens(end.sample), "stage": end.stage}

    def _plain_amount(self, source: int, samples: int, tokens: int) -> dict[str, Any]:
        epochs = _float(self.planned.epochs(source, tokens))
        return {"samples": samples, "tokens": tokens, "epochs": epochs}

    def _plain_smaller_blocks(self) -> dict[str, Any] | None:
        planned = self.planned
        # What a state has behind it stays as it is, and so does the size of its blocks.
        if self.global_batch_size is None or self.seen is not None:
            return None
        found = smaller_blocks(planned.stages, self.global_batch_size)
        if found is None:
            return None
        return {
            "block": found.block,
            "stage": found.stage,
            "source": self._name(found.source),
            "asked_share": float(found.asked_share),
            "share": float(found.share),
            "deviation": float(found.deviation),
        }

    def _name(self, source: int) -> str:
        return self.planned.stream.sources[source].dataset

    def _tokens(self, sample: int) -> int:
        """Return the tokens before a sample."""
        return self.planned.stream.tokens_before(sample)

    @property
    def _length(self) -> int:
        return self.planned.stream.context_length


def _of_stage(each: StageForecast, source: int) -> tuple[int, int]:
    """Return samples and tokens of x of a source in a stage."""
    samples = each.samples.get(source, 0)
    return samples, samples * each.stage.context_length


def _table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Return lines: names at the left, numbers at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers in rows:
        right = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
        yield "  ".join([f"  {name.ljust(widths[0])}", *right])


def _percent(share: Fraction | float | None) -> str:
    return "-" if share is None else f"{100 * float(share):.4g} %"


def _epochs(epochs: Fraction | float | None) -> str:
    return "-" if epochs is None else f"{float(epochs):,.2f}"


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)
