"""accelerate with two processes: a feed is refused where it would get other rows than its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Serve, WriteTokens
from tests.support.commands import run_ranks

# Prints the first tokens of three batches for each way to a feed, or why it is refused.
RANK = """
import json, sys
from itertools import islice
from accelerate import Accelerator
from torch.utils.data import DataLoader
from client import InvalidRequest, RemoteBatches

def first_tokens(batches):
    try:
        return [x[:, 0].tolist() for x, _ in islice(batches, 3)]
    except InvalidRequest as error:
        return str(error)

accelerator = Accelerator(cpu=True)
target, found = sys.argv[1], {}
with RemoteBatches(target, 2, 4, order="sequential") as feed:
    found["prepared"] = first_tokens(accelerator.prepare(DataLoader(feed, batch_size=None)))
    found["left out"] = first_tokens(feed)
with RemoteBatches(target, 2, 4, order="sequential", rank=0, world_size=1) as feed:
    found["of one rank"] = first_tokens(accelerator.prepare(DataLoader(feed, batch_size=None)))
accelerator.wait_for_everyone()
print(f"{json.dumps([accelerator.process_index, found])}\\n", end="")
accelerator.end_training()
"""

OWN_ROWS = {0: [[0, 4], [16, 20], [32, 36]], 1: [[8, 12], [24, 28], [40, 44]]}


@pytest.mark.slow
def test_a_prepared_feed_is_refused_on_every_rank_and_both_cures_give_each_its_own_rows(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    """accelerate would read the batches of rank 0 alone, and deal them out."""
    server = serve("--data", write_tokens(range(1000)))
    script = tmp_path / "rank.py"
    script.write_text(RANK)

    printed = run_ranks(2, script, server.address)

    ranks = dict(json.loads(line) for line in printed.splitlines() if line.startswith("["))
    assert set(ranks) == {0, 1}
    for rank, found in ranks.items():
        assert "prepare: of accelerate would distribute" in found["prepared"]
        assert "Do not pass the feed to prepare()" in found["prepared"]
        assert found["left out"] == found["of one rank"] == OWN_ROWS[rank]
