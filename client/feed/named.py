"""A stream and its history as people read them: dicts with names. Nothing reads them back."""

from __future__ import annotations

from typing import Any

from tokenfeed.stream.stage import Redaction, Stage
from tokenfeed.stream.stream import Stream

from .history import History


def named_runs(stream: Stream, history: History) -> list[dict[str, Any]]:
    """Return a dict for each run of a history, oldest first: the fields of Run, "stages" (a list of
    `named_stage`), and, if redactions are in force in the run, "redactions" (a list of
    `named_redaction`).

    stream: with the stages of all these runs, and with the corpora of all its sources, which are
    numbered 0, 1, 2, ... without a gap.
    """
    found = []
    for run in history.runs:
        last = stream.place_of(run.end_sample - 1)
        stages = stream.stages[stream.place_of(run.first_sample) : last + 1]
        values: dict[str, Any] = run._asdict()
        values["stages"] = [named_stage(stream, stage) for stage in stages]
        numbers = {number for stage in stages for number in stage.weights}
        redactions = [
            named_redaction(each)
            for each in stream.redactions
            if each.first_sample < run.end_sample and each.source in numbers
        ]
        found.append(values | ({"redactions": redactions} if redactions else {}))
    return found


def named_redaction(redaction: Redaction) -> dict[str, Any]:
    """Return a redaction as a dict: first_sample, source (number), and list_hash in hexadecimal
    digits.
    """
    return {
        "first_sample": redaction.first_sample,
        "source": redaction.source,
        "list_hash": redaction.list_hash.hex(),
    }


def named_stage(stream: Stream, stage: Stage) -> dict[str, Any]:
    """Return a stage as a dict: first_sample, context_length, and sources: of each that is not
    paused its number, `named_source`, weight and base (as of Share).

    stream: as for `named_runs`.
    """
    return {
        "first_sample": stage.first_sample,
        "context_length": stage.context_length,
        "sources": [
            {
                "source": share.source,
                **named_source(stream, share.source, stage.context_length),
                "weight": share.weight,
                "base": share.base,
            }
            for share in stage.active
        ],
    }


def named_source(stream: Stream, number: int, context_length: int) -> dict[str, Any]:
    """Return a source as a dict: dataset, order, seed and fingerprint; of an order with groups also
    group_blocks; over documents also long_documents, and the hash of how documents are cut into
    pieces.

    stream: as for `named_stage`.  number: of the source.  context_length: of the rows that the
    pieces are made for.
    """
    source = stream.sources[number]
    assert source.corpus is not None
    found = {
        "dataset": source.dataset,
        **source.facts,
        "fingerprint": source.corpus.fingerprint.hex(),
    }
    if source.reads_documents:
        found["long_documents"] = source.long_documents
        found["pieces"] = source.corpus.pieces_at(context_length).hex()
    return found
