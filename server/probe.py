"""python -m server.probe TARGET: whether a server is well, by its exit code.

It asks grpc.health.v1 and reads nothing else, so that it needs no token and takes a moment. It
speaks plaintext: a server with TLS is asked over its Unix socket.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tokenfeed.commands.extras import require_installed

if __name__ == "__main__":
    # Read once, when gRPC is imported: what it says of odd targets is said in one line here.
    os.environ["GRPC_VERBOSITY"] = "NONE"
    require_installed("probe", "server", "grpc_health")

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from tokenfeed.commands import program


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("server.probe"),
        description="Asks a server whether it is well.",
        epilog="example: python -m server.probe unix:/run/tokenfeed.sock",
    )
    parser.add_argument(
        "target",
        type=_target,
        metavar="TARGET",
        help="HOST:PORT without TLS, or unix:PATH, which needs none",
    )
    parser.add_argument(
        "--dataset",
        type=_text,
        default="",
        help="ask for one of its datasets (default: for all of it)",
    )
    parser.add_argument(
        "--timeout-seconds",
        type=_seconds,
        default=2.0,
        metavar="S",
        help="what answers later is not well (default: %(default)s)",
    )
    return parser


def _text(word: str) -> str:
    """Return a word that can travel."""
    if not word.isprintable():
        raise argparse.ArgumentTypeError(f"{word!r} cannot be asked")
    return word


def _target(word: str) -> str:
    """Return a target that names no port that gRPC would take for another."""
    port = word.rpartition(":")[2]
    if port.isdecimal() and int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{word!r} cannot be asked")
    return _text(word)


def _seconds(word: str) -> float:
    """Return a number of seconds that can be waited for."""
    seconds = float(word)
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{word} is not in (0, 3600]")
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Print how it is, in one line.  Returns: 0 if it is well, 1 if it is not or does not say."""
    arguments = build_parser().parse_args(argv)
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
