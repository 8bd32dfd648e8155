"""Unused connections are closed."""

from __future__ import annotations

import socket
import time

import grpc
import numpy as np
import pytest

from tests.conftest import Serve, WriteTokens

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
SETTINGS_ACK = b"\0\0\0\4\1\0\0\0\0"


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_a_peer_that_answers_no_ping_is_disconnected_and_one_that_does_is_not(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """A machine that lost its power closes nothing, and its descriptor would stay."""
    server = serve("--data", write_tokens(np.arange(1, 20_000)))
    host, _, port = server.address.rpartition(":")
    with grpc.insecure_channel(server.address) as channel:
        describe = channel.unary_unary("/tokenfeed.v1.TokenFeed/Describe")
        describe(b"", timeout=5)
        with socket.create_connection((host, int(port)), timeout=60) as mute:
            mute.sendall(PREFACE + SETTINGS + SETTINGS_ACK)
            began = time.monotonic()
            while mute.recv(65536):
                pass
            assert 10 < time.monotonic() - began < 50
        assert server.connection_count() == 1
        describe(b"", timeout=5)
