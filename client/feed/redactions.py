"""Redactions of a feed, by the names of its datasets: taken up, and continued from a state. Pure.

A list is in force once for a dataset: from the earliest sample that was asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.stream.parts import StreamParts
from tokenfeed.stream.redactions import Redaction
from tokenfeed.stream.spec import StreamSpec

from ..runtime.arguments import hash_digits, shown, text


class PlannedRedaction(NamedTuple):
    """From a sample on, a list of ranges of a dataset is left out.

    dataset: its name in the stream; "" where a stream of one dataset has none.  list_hash: 32
    bytes.
    """

    first_sample: int
    dataset: str
    list_hash: bytes


Planned = tuple[PlannedRedaction, ...]
"""Of a feed, ascending. A dataset need not be a source yet."""


def read_list(name: str, value: str | None) -> bytes:
    """Return the hash of a list, of what a user passed.  Raises: InvalidRequest."""
    found = hash_digits(name, value)
    if found is None:
        raise InvalidRequest(name, "is missing; pass what `tokenfeed redact` printed")
    return found


def read_dataset(spec: StreamSpec, value: str | None) -> str:
    """Return the name of a dataset of a stream, of what a user passed.  Raises: InvalidRequest."""
    names = [source.dataset for source in spec.sources]
    if value is None and spec.mixture is None:
        return names[0]
    if value is None:
        raise InvalidRequest("dataset", f"is required with a mixture of {', '.join(names)}")
    if text("dataset", value) not in names:
        known = ", ".join(filter(None, names)) or "one without a name, so omit it"
        raise InvalidRequest("dataset", f"{shown(value)} is not in this stream, only {known}")
    return value


def planned_for(spec: StreamSpec, redactions: Planned) -> StreamSpec:
    """Return a stream with those redactions that are of its datasets."""
    numbers = {source.dataset: source.number for source in spec.sources}
    found = (
        Redaction(each.first_sample, numbers[each.dataset], each.list_hash)
        for each in redactions
        if each.dataset in numbers
    )
    return replace(spec, redactions=tuple(sorted(found)))


def with_redaction(redactions: Planned, new: PlannedRedaction) -> tuple[Planned, int]:
    """Return redactions with another one, and the sample from which on it is in force: an earlier
    one if its list is in force already.
    """
    known = next((each for each in redactions if each[1:] == new[1:]), None)
    if known is not None and known.first_sample <= new.first_sample:
        return redactions, known.first_sample
    return tuple(sorted({*redactions, new} - {known})), new.first_sample


def of_state(
    saved: StreamParts, datasets: Sequence[Collection[str]], *, allow: bool
) -> tuple[Planned, tuple[str, ...]]:
    """Return the redactions of a state, and what to log of those that are dropped.

    datasets: for each source of the state, those of the feed that have its corpus.  allow: whether
    those of a corpus that the feed has not are dropped.
    Raises: StreamMismatch, naming the list, if they are not.
    """
    found: list[PlannedRedaction] = []
    messages = []
    for first_sample, source, list_hash in saved.redactions:
        found += [
            PlannedRedaction(first_sample, name, bytes.fromhex(list_hash))
            for name in datasets[source]
        ]
        if datasets[source]:
            continue
        if not allow:
            raise StreamMismatch(
                "redactions",
                f"the state has list {list_hash} of another corpus, so this stream would have its "
                "tokens again. Redact the corpus of this stream too, pass the list of that by "
                'feed.redact, and add "redactions" to allow',
            )
        messages.append(f"redactions of another corpus are dropped list={list_hash}")
    return tuple(sorted(found)), tuple(messages)


def continued(
    saved: Planned, own: Planned, sample: int, *, allow: bool, is_rescaled: bool = False
) -> tuple[Planned, tuple[str, ...]]:
    """Return the redactions of a feed that loads a state, and what to log of them: those of the
    state, and the feed's own from the saved sample on.

    saved: of the state.  own: of the feed.  sample: where it resumes.  allow: whether an own one
    that the rows before had not begins there, and the state decides where both differ.
    is_rescaled: whether samples of the state are of another context length; its redactions are in
    force from there on at the latest.
    Raises: StreamMismatch, naming the list, if the rows before the sample had others than the feed.
    """
    if is_rescaled:
        saved = tuple(
            sorted(each._replace(first_sample=min(each.first_sample, sample)) for each in saved)
        )
    begins = {each[1:]: each.first_sample for each in saved}
    found, messages = saved, []
    for each in own:
        begin = begins.get(each[1:])
        is_known = begin == each.first_sample or (is_rescaled and begin is not None)
        if each.first_sample < sample and not is_known:
            problem, cure = _difference(each, begin, sample)
            if not allow:
                raise StreamMismatch("redactions", f"{problem}; {cure}")
            messages.append(f"resumed with other redactions: {problem}")
        at_sample = max(each.first_sample, sample)
        found, _ = with_redaction(found, each._replace(first_sample=at_sample))
    return found, tuple(messages)


def _difference(own: PlannedRedaction, begin: int | None, sample: int) -> tuple[str, str]:
    """Return how a state differs, and what to do.  begin: of the list there, None without it."""
    of = f" of dataset {own.dataset!r}" if own.dataset else ""
    what = f"list {own.list_hash.hex()}{of}"
    here = f"but this feed has it from sample {own.first_sample} on"
    if begin is not None:
        problem = f"the state has {what} from sample {begin} on, {here}"
        return problem, f'pass {begin}, or allow=("redactions",) to go on as the state says'
    problem = f"the state, at sample {sample}, has no {what}, {here}"
    cure = f"pass {sample} or a later sample"
    return problem, f'{cure}, or allow=("redactions",) to have it in force from there on'
