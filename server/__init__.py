"""Serves token batches. A request comes in at the top and becomes tokens at the bottom:

    cli/        options, start and stop: puts all of it together
    rpc/        the gRPC service: checks a request, makes its frames, limits and schedules calls
    datasets/   a name -> files that are checked and fingerprinted
    storage/    the tokens in these files, and the formats of files
    runtime/    the process: signals, polling, memory

`ingest/` makes token files of text. `inspect`, `verify` and `probe` are commands of their own.
Needs Linux, and no torch.
"""

import sys

if __name__ == "server":
    # An alias of tokenfeed.server: tokenfeed/_aliases.py says how.
    _package = sys.modules.pop(__name__)
    from tokenfeed._aliases import alias

    alias(_package)
