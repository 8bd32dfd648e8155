"""Serves token batches. A request enters at the top and becomes tokens at the bottom:

    cli/        options, start and stop: wires all parts
    rpc/        the gRPC service: checks a request, encodes frames, limits and schedules calls
    datasets/   a name -> files that are checked and fingerprinted
    storage/    the tokens in these files, and the file formats
    runtime/    the process: signals, polling, memory

`ingest/` makes token files from text. `inspect`, `verify`, `pack` and `probe` are separate
commands. Needs Linux, but not torch.
"""

import sys

if __name__ == "server":
    # An alias of tokenfeed.server: tokenfeed/_aliases.py says how.
    _package = sys.modules.pop(__name__)
    from tokenfeed._aliases import alias

    alias(_package)
