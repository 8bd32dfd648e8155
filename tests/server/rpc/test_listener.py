"""Unused connections are closed."""

from __future__ import annotations

import socket
import time

import grpc
import numpy as np

from tests.conftest import Serve, WriteTokens
from tokenfeed.server.rpc.admission import POLL_SECONDS, REQUEST_SECONDS
from tokenfeed.server.rpc.listener import HANDSHAKE_SECONDS, PING_ANSWER_SECONDS, PING_SECONDS

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
SETTINGS_ACK = b"\0\0\0\4\1\0\0\0\0"


TIMERS = {
    "tokenfeed.server.rpc.listener.PING_SECONDS": 0.3,
    "tokenfeed.server.rpc.listener.PING_ANSWER_SECONDS": 1.0,
}


def test_a_silent_peer_is_given_the_time_that_slow_lines_need() -> None:
    """Tests of timers have shorter ones."""
    assert (HANDSHAKE_SECONDS, PING_SECONDS, PING_ANSWER_SECONDS) == (20, 10, 35)
    assert (REQUEST_SECONDS, POLL_SECONDS) == (10, 1)


def test_a_peer_that_answers_no_ping_is_disconnected_and_one_that_does_is_not(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """A machine that lost its power closes nothing, and its descriptor would stay."""
    server = serve("--data", write_tokens(np.arange(1, 20_000)), timers=TIMERS)
    host, _, port = server.address.rpartition(":")
    with grpc.insecure_channel(server.address) as channel:
        describe = channel.unary_unary("/tokenfeed.v1.TokenFeed/Describe")
        describe(b"", timeout=5)
        with socket.create_connection((host, int(port)), timeout=30) as mute:
            mute.sendall(PREFACE + SETTINGS + SETTINGS_ACK)
            began = time.monotonic()
            while mute.recv(65536):
                pass
            assert 0.9 < time.monotonic() - began < 10
        assert server.connection_count() == 1
        describe(b"", timeout=5)
