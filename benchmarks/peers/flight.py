"""Arrow Flight: do_get of record batches with one fixed-size binary row a window, widened.

As the Python cookbook streams tables (https://arrow.apache.org/cookbook/py/flight.html), with a
generator, so that nothing is held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyarrow import flight

from benchmarks.peers.batch import ROW_TOKENS, B, counted, random_windows, widened

SCHEMA = pa.schema([("tokens", pa.binary(2 * ROW_TOKENS))])


class Feed(flight.FlightServerBase):
    """Serves random windows of one file."""

    def __init__(self, path: str) -> None:
        """Listen on a free port."""
        super().__init__("grpc://127.0.0.1:0")
        self._path = path

    def do_get(
        self, context: flight.ServerCallContext, ticket: flight.Ticket
    ) -> flight.FlightDataStream:
        """Stream batches without end."""
        return flight.GeneratorStream(SCHEMA, map(as_record_batch, random_windows(self._path)))


def as_record_batch(rows: np.ndarray) -> pa.RecordBatch:
    """Return rows as an Arrow batch over the same memory."""
    column = pa.Array.from_buffers(SCHEMA.field(0).type, len(rows), [None, pa.py_buffer(rows)])
    return pa.record_batch([column], schema=SCHEMA)


def serve(path: str) -> None:
    """Serve until ended."""
    with Feed(path) as server:
        print(f"ready grpc://127.0.0.1:{server.port}", flush=True)
        server.serve()


def take(source: str) -> Iterator[int]:
    """Read batches and widen them."""
    reader = flight.connect(source).do_get(flight.Ticket(b""))
    return counted(
        widened(np.frombuffer(chunk.data.column(0).buffers()[1], np.uint16).reshape(B, ROW_TOKENS))
        for chunk in reader
    )
