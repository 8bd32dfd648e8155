"""Serves token batches: request -> plan -> corpus -> frames.

Read it in this order: `shards` (which files), `formats` (what is in them), `corpus` (mapped once,
gathered from), `readahead`, `watch`, `warmup` (brought into memory), `dataset` (checked and
fingerprinted), `service` (answers requests), `listener` (the port), `__main__` (wiring). Needs
Linux, and no torch.
"""

import sys

if __name__ == "server":
    # An alias of tokenfeed.server: tokenfeed/_aliases.py says how.
    _package = sys.modules.pop(__name__)
    from tokenfeed._aliases import alias

    alias(_package)
