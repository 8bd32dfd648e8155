"""Arrow Flight: uint16 rows as a column of fixed-size lists, widened by the client.

Source: arrow.apache.org/docs/python/flight.html and docs/cpp/flight.html (best practices), and the
Flight recipes of the Arrow Python cookbook: `do_get` answers with a RecordBatchStream of a table,
which C++ sends without Python, or with a GeneratorStream. The first sends batches made in advance,
so it does less work than we do; the second gathers, as we do. No compression.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.flight
import torch

from benchmarks.contender import main, serving
from benchmarks.rows import BATCH_SIZE, ROW_TOKENS, Rows, prepared_rows, random_rows
from benchmarks.widen import widen

SETTINGS = {
    f"{'prepared' if prepared else 'gathered'}, {count} a message": {
        "prepared": prepared,
        "message_batches": count,
    }
    for prepared in (True, False)
    for count in (1, 4, 8)
}

_SCHEMA = pa.schema([pa.field("tokens", pa.list_(pa.uint16(), ROW_TOKENS), nullable=False)])
_REPEATS = 2000


@contextmanager
def batches(
    path: Path, *, prepared: bool, message_batches: int
) -> Iterator[Iterator[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield an iterator over (x, y), int64 on the CPU."""
    ticket = pa.flight.Ticket(json.dumps([prepared, message_batches]).encode())
    with (
        serving("benchmarks.peers.flight", "--serve", "--data", str(path)) as address,
        pa.flight.connect(f"grpc://{address}") as connection,
    ):
        reader = connection.do_get(ticket)
        try:
            yield _widened(reader)
        finally:
            reader.cancel()


def _widened(
    reader: pa.flight.FlightStreamReader,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for chunk in reader:
        tokens = chunk.data.column(0).flatten().to_numpy(zero_copy_only=True)
        for rows in tokens.reshape(-1, BATCH_SIZE, ROW_TOKENS):
            yield widen(rows)


class Server(pa.flight.FlightServerBase):
    """Answers every ticket with rows of the corpus."""

    def __init__(self, path: Path) -> None:
        """Listen on a free port of this machine."""
        super().__init__("grpc://127.0.0.1:0")
        self._path = path

    def do_get(
        self, context: pa.flight.ServerCallContext, ticket: pa.flight.Ticket
    ) -> pa.flight.FlightDataStream:
        """Send the rows of a ticket."""
        prepared, message_batches = json.loads(ticket.ticket)
        if prepared:
            messages = [_message(rows) for rows in prepared_rows(self._path, message_batches)]
            return pa.flight.RecordBatchStream(pa.Table.from_batches(messages * _REPEATS))
        gathered = map(_message, random_rows(self._path, message_batches))
        return pa.flight.GeneratorStream(_SCHEMA, gathered)


def _message(rows: Rows) -> pa.RecordBatch:
    tokens = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), ROW_TOKENS)
    return pa.record_batch([tokens], schema=_SCHEMA)


def serve(path: Path) -> None:
    """Serve until terminated."""
    server = Server(path)
    print(f"listening on 127.0.0.1:{server.port}", flush=True)
    server.serve()


if __name__ == "__main__":
    main(batches, SETTINGS, serve=serve)
