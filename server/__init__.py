"""Serves token batches. A request enters at the top and becomes tokens at the bottom:

    cli/        options, start and stop: wires all parts
    rpc/        the gRPC service: checks a request, encodes frames, limits and schedules calls
    rows/       the rows of a request, planned, read ahead, redacted
    datasets/   a name -> files that are checked and fingerprinted
    storage/    the tokens in these files, and the file formats
    runtime/    the process: signals, polling, memory

`open_local` opens a client's local files with the same packages, without rpc/. `ingest/` makes
token files from text. The server needs Linux, but not torch.
"""

if __name__ == "server":
    # In a checkout, another name of tokenfeed.server; installed is tokenfeed/short/server. Modules
    # have the long names alone, or there would be two of each.
    from tokenfeed._links import short_path

    __path__ = short_path("server")
