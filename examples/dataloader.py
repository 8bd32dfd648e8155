"""A feed in torch's DataLoader, for a trainer that requires one.

    python examples/dataloader.py

`batch_size=None`, since the feed makes whole batches. `num_workers` stays 0: the feed prefetches by
itself, and refuses worker processes. A plain `for x, y in feed` yields the same batches.
"""

from __future__ import annotations

import sys
from itertools import islice

import torch
from serving import parser, server_at
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tokenfeed import RemoteBatches

BATCH_SIZE, CONTEXT_LENGTH, STEPS = 16, 128, 30


def main() -> int:
    """Train, stop, resume.  Returns: 0, or 1 if the loader does not resume where it stopped."""
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(options.vocab_size, 32), nn.Linear(32, options.vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with server_at(options.target) as address:
        with make_feed(address, options.dataset) as feed:
            for step, (x, y) in enumerate(islice(DataLoader(feed, batch_size=None), STEPS), 1):
                optimizer.zero_grad()
                loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
                loss.backward()
                optimizer.step()
                if step % 10 == 0:
                    print(f"step {step}: loss {loss.item():.3f}")
            # Without workers the loader prefetches nothing, so this state is exact.
            state = feed.state_dict()
            print(feed.stats())
            expected = next(feed)
        with make_feed(address, options.dataset) as feed:
            feed.load_state_dict(state)
            resumed = next(iter(DataLoader(feed, batch_size=None)))
    same = all(torch.equal(*pair) for pair in zip(expected, resumed, strict=True))
    print(f"a new loader resumes with batch {STEPS + 1}: {'yes' if same else 'NO'}")
    return 0 if same else 1


def make_feed(address: str, dataset: str | None) -> RemoteBatches:
    """Return the feed to train on."""
    return RemoteBatches(
        address, BATCH_SIZE, CONTEXT_LENGTH, dataset=dataset, order="shuffled", seed=1337
    )


if __name__ == "__main__":
    sys.exit(main())
