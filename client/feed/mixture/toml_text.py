"""A mixture as the text of a file that `Mixture.load` reads. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tokenfeed.stream.redactions import Redactions
from tokenfeed.stream.spec import Source
from tokenfeed.stream.stages import AskedStage

_BARE_KEY = re.compile("[A-Za-z0-9_-]+")
_ESCAPED = re.compile('[\\x00-\\x1f\\x7f"\\\\]')


def mixture_toml(
    seed: int,
    order: str,
    sources: Sequence[Source],
    stages: Iterable[AskedStage],
    *,
    context_length: int,
    max_epochs: Mapping[str, int],
    block: int | None = None,
    redactions: Redactions = (),
) -> str:
    """Return a mixture as TOML. Its sources have the same numbers, and its weights are integers.

    seed, order: of the mixture, and of the sources that have no others.  stages: the first one at
    0, with the weights of all sources.  context_length: tokens of a sample.  max_epochs: by the
    names of datasets.  redactions: of the stream.
    """
    lines = [f"# A sample has {context_length:,} tokens."]
    lines += [f"order = {_string(order)}", f"seed = {seed}"]
    lines += [] if block is None else [f"block = {block}"]
    for stage, weights in _named(sources, list(stages)):
        lines += ["", "[[stages]]"]
        lines += [f"first_sample = {stage.first_sample:_}"] if stage.first_sample else []
        listed = ", ".join(f"{_key(name)} = {weight}" for name, weight in weights.items())
        lines.append(f"weights = {{{listed}}}")
    for source in sources:
        options = [] if source.order.NAME == order else [f"order = {_string(source.order.NAME)}"]
        if source.order.USES_SEED and source.seed != seed:
            options.append(f"seed = {source.seed}")
        if source.dataset in max_epochs:
            options.append(f"max_epochs = {max_epochs[source.dataset]}")
        if source.long_documents != _inherited(source, order):
            options.append(f"long = {_string(source.long_documents)}")
        if options:
            lines += ["", f"[sources.{_key(source.dataset)}]", *options]
    names = {source.number: source.dataset for source in sources}
    for redaction in redactions:
        lines += ["", "[[redaction]]", f"dataset = {_string(names[redaction.source])}"]
        lines.append(f"list = {_string(redaction.list_hash.hex())}")
        lines.append(f"first_sample = {redaction.first_sample:_}")
    return "\n".join([*lines, ""])


def _inherited(source: Source, order: str) -> str | None:
    """Return what a reader takes for long documents unless it is written; None if that depends on
    the reader's feed.  order: of the mixture.
    """
    known = source.order.LONG_DOCUMENTS
    if len(known) > 1 and source.order.NAME == order:
        return None
    return known[0] if known else ""


def _named(
    sources: Sequence[Source], stages: Sequence[AskedStage]
) -> Iterable[tuple[AskedStage, Mapping[str, int]]]:
    """Return each stage with its weights by name. The number of a source is its place among the
    names of all stages, so one that comes out of order is named earlier, with a weight of 0.
    """
    known = 0
    for index, stage in enumerate(stages):
        used = [number for number, weight in enumerate(stage.weights) if weight]
        end = len(sources) if index == len(stages) - 1 else max(used) + 1
        named = sorted({*used, *range(known, end)})
        known = max(known, end)
        yield stage, {sources[number].dataset: stage.weights[number] for number in named}


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _string(value: str) -> str:
    escaped = _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04X}", value)
    return f'"{escaped}"'
