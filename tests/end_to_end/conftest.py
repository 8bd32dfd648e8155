"""Ranks of a trainer, as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tokenfeed.client.feed.ranks import agreement

Train = Callable[[int, Any], object]


@pytest.fixture
def in_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[object]]:
    """Run a function in a thread for each rank, with a store between them, and return its results;
    or the errors that it raised.
    """
    monkeypatch.setattr(agreement, "has_process_group", lambda: True)

    def run(train: Train, world_size: int, make_feed: Callable[[int], Any]) -> list[object]:
        import torch  # tests of other fixtures run where there is none

        store = torch.distributed.HashStore()
        monkeypatch.setattr(agreement, "_default_store", lambda: store)
        results: list[object] = [None] * world_size

        def run_rank(rank: int) -> None:
            try:
                results[rank] = train(rank, feeds[rank])
            except Exception as error:  # noqa: BLE001 - the test looks at it
                results[rank] = error

        feeds = []
        for rank in range(world_size):
            monkeypatch.setattr(agreement, "_MADE", {})
            feeds.append(make_feed(rank))
        threads = [threading.Thread(target=run_rank, args=(n,)) for n in range(world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
            if thread.is_alive():  # another rank has failed, and this one waits for it
                for feed in feeds:
                    feed.close()
        for feed in feeds:
            feed.close()
        return results

    return run
