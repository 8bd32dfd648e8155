"""tokenfeed probe TARGET: reports the health of a server by its exit code.

It calls only grpc.health.v1, so it needs no token and takes a moment. It speaks plaintext only:
probe a server with TLS over its Unix socket.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial

if __name__ == "__main__":
    # Read once, when gRPC is imported. Errors are reported in one line here instead.
    os.environ["GRPC_VERBOSITY"] = "NONE"

import grpc

from tokenfeed.commands import program
from tokenfeed.commands.extras import require_installed
from tokenfeed.commands.output import exit_code


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("tokenfeed.tools.probe"),
        description="Report the health of a server by the exit code: 0 if the server is SERVING, 1 "
        "if it is not or does not answer.",
        epilog="example: tokenfeed probe unix:/run/tokenfeed.sock",
    )
    parser.add_argument(
        "target",
        type=_target,
        metavar="TARGET",
        help="HOST:PORT of a server without TLS, or unix:PATH",
    )
    parser.add_argument(
        "--dataset",
        type=_text,
        default="",
        help="name of a dataset to probe (default: the whole server)",
    )
    parser.add_argument(
        "--timeout-seconds",
        type=_seconds,
        default=2.0,
        metavar="S",
        help="maximum number of seconds to wait for the answer (default: %(default)s)",
    )
    return parser


def _text(word: str) -> str:
    """Return a word that can be sent."""
    if not word.isprintable():
        raise argparse.ArgumentTypeError(f"{word!r} has characters that are not printable")
    return word


def _target(word: str) -> str:
    """Return a target whose port gRPC does not reduce modulo 65536."""
    port = word.rpartition(":")[2]
    if port.isdecimal() and int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{word!r}: port {port} is not in [0, 65535]")
    return _text(word)


def _seconds(word: str) -> float:
    """Return a valid number of seconds."""
    seconds = float(word)
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{word} is not in (0, 3600]")
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Print the status in one line.  Returns: 0 if it is SERVING, 1 if not or without an answer."""
    arguments = build_parser().parse_args(argv)
    require_installed("probe", "server", "grpc_health")
    return exit_code(partial(_probe, arguments))


def _probe(arguments: argparse.Namespace) -> int:
    from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
    from grpc_health.v1.health_pb2_grpc import HealthStub

    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(arguments.target, options) as channel:
        request = HealthCheckRequest(service=arguments.dataset)
        try:
            answer = HealthStub(channel).Check(request, timeout=arguments.timeout_seconds)
        except grpc.RpcError as error:
            print(f"{arguments.target}: {error.code().name}: {error.details()}")
            return 1
    print(HealthCheckResponse.ServingStatus.Name(answer.status))
    return 0 if answer.status == HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
