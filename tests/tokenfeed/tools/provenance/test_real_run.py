"""The steps of a real training run, from its last checkpoint: the rows that its ranks received."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from client import NumpyBatches
from tests.conftest import Serve, WriteTokens
from tests.support import mixtures
from tokenfeed.sampling.own_samples import merged
from tokenfeed.tools.provenance.checkpoint import chosen, read_states
from tokenfeed.tools.provenance.manifest import consumed
from tokenfeed.tools.provenance.runs import places_of, ranges_of, rows_of_step


def feeds_of(address: str, batch_size: int, world_size: int) -> list[NumpyBatches]:
    return [
        NumpyBatches(
            *(address, batch_size, mixtures.T),
            mixture=mixtures.MIXTURE,
            rank=rank,
            world_size=world_size,
        )
        for rank in range(world_size)
    ]


def test_each_row_of_a_run_is_found_by_step_rank_and_row_and_back(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    """With a skip, a change of the mixture, and a resume at other ranks and another batch size."""
    paths = mixtures.write_sources(write_tokens)
    server = mixtures.served(serve, paths)
    received: dict[tuple[int, int], np.ndarray] = {}
    path = tmp_path / "checkpoint.json"

    def train(feeds: list[NumpyBatches], steps: int) -> None:
        begin = len({step for step, _ in received})
        for step in range(begin, begin + steps):
            for rank, feed in enumerate(feeds):
                x, y = next(feed)
                received[step, rank] = np.concatenate([x, y[:, -1:]], axis=1)

    feeds = feeds_of(server.address, 4, 2)
    train(feeds, 9)
    for feed in feeds:
        feed.skip(16)
    train(feeds, 5)
    for feed in feeds:
        feed.change_mixture({"web": 1, "math": 1}, at_sample=400)
    train(feeds, 3)
    path.write_text(json.dumps({"feed": feeds[1].state_dict()}))
    for feed in feeds:
        feed.close()
    feeds = feeds_of(server.address, 5, 3)
    for feed in feeds:
        feed.load_state_dict(json.loads(path.read_text())["feed"])
    train(feeds, 24)
    stats = feeds[0].stats()
    path.write_text(json.dumps({"feed": feeds[2].state_dict()}))
    for feed in feeds:
        feed.close()

    _, stream, history, _ = chosen(read_states(path), "feed").state
    asked = [
        (stage.first_sample, [stage.weights.get(number, 0) for number in stream.numbers])
        for stage in stream.stages
    ]
    assert [run.world_size for run in history.runs] == [2, 2, 3]
    for (step, rank), rows in received.items():
        samples = [found.sample for found in rows_of_step(history, step, rank).rows]
        assert np.array_equal(rows, mixtures.offline(paths, samples, asked))
        _, steps, _, numbers = places_of(history, np.array(samples)).tolist()
        assert set(steps) == {step}
        assert numbers == list(range(len(rows)))
    # A manifest has the totals of `stats`.
    own = consumed(stream, history)
    counts = {
        stream.sources[use.source].dataset: sum(int(np.diff(one).sum()) for one in own[use])
        for use in own
    }
    assert counts == {name: each.samples for name, each in stats.sources.items()}
    assert sum(counts.values()) == sum(map(len, received.values()))
    assert merged([ranges_of(history)]).tolist() == [[0, 72], [88, 88 + 8 * 8 + 24 * 15]]
