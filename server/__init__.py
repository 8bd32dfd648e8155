"""Serves token batches. A request enters at the top and becomes tokens at the bottom:

    cli/        options, start and stop: wires all parts
    rpc/        the gRPC service: checks a request, encodes frames, limits and schedules calls
    datasets/   a name -> files that are checked and fingerprinted
    storage/    the tokens in these files, and the file formats
    runtime/    the process: signals, polling, memory

`ingest/` makes token files from text. `inspect`, `verify` and `probe` are separate commands.
Needs Linux, but not torch.
"""

if __name__ == "server":
    from tokenfeed._aliases import alias

    alias("server")
