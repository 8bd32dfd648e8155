"""The load of benchmarks.many_clients: streams that read as fast as they can, in one process.

Each has its own connection. Like the client, it begins with a call of 512 KiB, and then has two
calls of 16 MiB in flight. It speaks just enough HTTP/2 to discard what they send, because grpcio
would take processors from the server: it needs 0.65 ms to receive a MiB, and this needs 0.14 (64
streams, 2 shared cores, 2026-11-23). Flow control is off: TCP limits what is in flight.

Prints "ready", reads the time of the start from stdin, and prints one line of JSON: of each stream,
the seconds until its first frame, and the bytes it received in the measured time. This is not a
benchmark itself.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat

from benchmarks.serving import METHOD, stream

# RFC 9113: types, flags, settings and limits of HTTP/2 frames.
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_WINDOW_MAX = (1 << 31) - 1
_WINDOW_DEFAULT = (1 << 16) - 1
_UPDATE_BYTES = 1 << 28
_FIRST_CALL_BYTES = 1 << 19
_CALL_BYTES = 1 << 24
_FRAME_BYTES_MAX = 1 << 20
_MESSAGE_PREFIX_BYTES = 5  # of gRPC: a flag, and the length in 4 bytes


def main() -> None:
    """Read streams, and print what arrived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--first", type=int, required=True, help="number of the first stream")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--settle", type=float, required=True, help="seconds before it counts")
    parser.add_argument("--seconds", type=float, required=True, help="for which it counts")
    arguments = parser.parse_args()
    print("ready", flush=True)
    start = float(input())  # by the monotonic clock, which all processes share

    def read(number: int) -> tuple[float, int]:
        begin = start + arguments.settle
        return received(arguments.address, number, start, begin, begin + arguments.seconds)

    with ThreadPoolExecutor(arguments.streams) as threads:
        numbers = range(arguments.first, arguments.first + arguments.streams)
        print(json.dumps(list(threads.map(read, numbers))))


def received(
    address: str, number: int, start: float, begin: float, end: float
) -> tuple[float, int]:
    """Return the seconds from start until the first frame, and the bytes from begin to end."""
    time.sleep(max(0.0, start - time.monotonic()))
    host, _, port = address.rpartition(":")
    first_frame, all_bytes, counted_bytes = 0.0, 0, 0
    with socket.create_connection((host, int(port))) as connection:
        pieces = message_pieces(connection, requests(number))
        first_frame_bytes = next(pieces)
        for size in pieces:
            now = time.monotonic()
            all_bytes += size
            if not first_frame and all_bytes >= first_frame_bytes:
                first_frame = now
            if begin <= now < end:
                counted_bytes += size
            if now >= end and first_frame:
                break
    return first_frame - start, counted_bytes


def requests(number: int) -> Iterator[bytes]:
    """Yield the requests of a stream, for consecutive samples."""
    request = stream(seed=number)
    batch_bytes = 2 * request.batch_size * request.stream.stage.context_length
    for call_bytes in chain([_FIRST_CALL_BYTES], repeat(_CALL_BYTES)):
        request.num_batches = call_bytes // batch_bytes
        yield request.SerializeToString()
        request.first_sample += request.num_batches * request.batch_size


def message_pieces(connection: socket.socket, requests: Iterator[bytes]) -> Iterator[int]:
    """Call GetBatch again and again. Yield the size of the first message, then of every piece of
    all messages.
    """
    calls = (_call(2 * index + 1, request) for index, request in enumerate(requests))
    connection.sendall(_opening() + next(calls))
    room = memoryview(bytearray(_FRAME_BYTES_MAX))
    measured = False
    unacknowledged = 0
    answered = set()
    with connection.makefile("rb") as reader:
        while header := reader.read(9):
            size, kind, flags = int.from_bytes(header[:3], "big"), header[3], header[4]
            stream_id = header[5:]
            payload = room[:size]
            reader.readinto(payload)
            if kind == _DATA:
                if not measured:
                    measured = True
                    connection.sendall(next(calls))
                    length = int.from_bytes(payload[1:_MESSAGE_PREFIX_BYTES], "big")
                    yield _MESSAGE_PREFIX_BYTES + length
                answered.add(stream_id)
                yield size
                unacknowledged += size
                if unacknowledged >= _UPDATE_BYTES:
                    connection.sendall(_window_update(unacknowledged))
                    unacknowledged = 0
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                connection.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
            elif kind in (_RST_STREAM, _GOAWAY):
                break
            elif kind == _HEADERS and flags & _END_STREAM:
                if stream_id not in answered:
                    break  # the call was refused
                answered.remove(stream_id)
                connection.sendall(next(calls))
    raise SystemExit("the server ended a stream")


def _opening() -> bytes:
    """Return the bytes that open a connection."""
    settings = struct.pack(
        ">HIHI", _INITIAL_WINDOW_SIZE, _WINDOW_MAX, _MAX_FRAME_SIZE, _FRAME_BYTES_MAX
    )
    return (
        _PREFACE + _frame(_SETTINGS, 0, 0, settings) + _window_update(_WINDOW_MAX - _WINDOW_DEFAULT)
    )


def _call(stream_id: int, request: bytes) -> bytes:
    """Return the bytes that call GetBatch."""
    # RFC 7541: names and values of the static table by their index, and others as they are.
    headers = b"\x83\x86"  # :method POST, :scheme http
    headers += b"\x04" + _text(METHOD) + b"\x01" + _text("localhost")  # :path, :authority
    headers += b"\x0f\x10" + _text("application/grpc")  # content-type
    headers += b"\x00" + _text("te") + _text("trailers")
    message = struct.pack(">BI", 0, len(request)) + request
    return _frame(_HEADERS, _END_HEADERS, stream_id, headers) + _frame(
        _DATA, _END_STREAM, stream_id, message
    )


def _window_update(size: int) -> bytes:
    """Return a frame that allows as many bytes again on the connection."""
    return _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", size))


def _frame(kind: int, flags: int, stream_id: int, payload: bytes | memoryview) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream_id) + payload


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


if __name__ == "__main__":
    main()
