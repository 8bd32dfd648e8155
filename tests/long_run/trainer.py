"""A trainer of the long run: takes batches, writes down what arrived, and obeys lines of JSON.

Run: python -m tests.long_run.trainer '{"targets": [...], ...}', as `_settings` makes them
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from client import InvalidRequest, Mixture, NumpyBatches, Timeouts

from .ledger import entries

_AWAY_SECONDS = 300.0


def main(settings: dict[str, Any]) -> None:
    """Open the feed, and answer each line of stdin by a line of stdout."""
    options = settings["options"]
    if "mixture" in options:
        options["mixture"] = Mixture(**options["mixture"])
    feed = NumpyBatches(
        settings["targets"],
        settings["batch_size"],
        settings["context_length"],
        **options,
        rank=settings["rank"],
        world_size=settings["world_size"],
        client_name=f"rank-{settings['rank']}",
        prefetch_bytes=4 << 20,
        timeouts=Timeouts(read_seconds=3.0, reconnect_seconds=_AWAY_SECONDS),
    )
    with feed, Path(settings["ledger"]).open("wb") as ledger:
        if settings["state"]:
            feed.load_state_dict(json.loads(Path(settings["state"]).read_text()))
        batches = feed.batches()
        for line in sys.stdin:
            answer: object = None
            match json.loads(line):
                case ["run", steps, pace_seconds]:
                    for _ in range(steps):
                        began = time.monotonic()
                        ledger.write(entries(next(batches)).tobytes())
                        time.sleep(max(0.0, began + pace_seconds - time.monotonic()))
                    ledger.flush()
                    answer = feed.position.samples
                case ["change_mixture", weights, at_sample]:
                    answer = feed.change_mixture(weights, at_sample)
                case ["change_context_length", context_length, at_sample]:
                    try:
                        answer = feed.change_context_length(context_length, at_sample)
                    except InvalidRequest as error:
                        answer = str(error)
                case ["redact", list_hash, at_sample, dataset]:
                    answer = feed.redact(list_hash, at_sample, dataset)
                case ["state"]:
                    answer = feed.state_dict()
                case unknown:
                    raise ValueError(f"unknown command: {unknown}")
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
