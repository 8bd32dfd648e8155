"""tokenfeed describe: what a server serves."""

from __future__ import annotations

import argparse
import shlex

from tokenfeed.client.feed.mixture.recipe import long_argument
from tokenfeed.client.runtime.arguments import text
from tokenfeed.client.source.file_target import is_local_target, parse_local_target
from tokenfeed.client.source.plane_selection import plane_name
from tokenfeed.client.transport.channel import describe
from tokenfeed.client.transport.credentials import with_environment
from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.stream.position import SAMPLE_END, require_range
from tokenfeed.v1 import tokenfeed_pb2 as pb

from . import WAIT_SECONDS


def run_describe(arguments: argparse.Namespace) -> None:
    """Print what a server serves."""
    if arguments.context_length is not None:
        require_range("context_length", arguments.context_length, 1, SAMPLE_END)
    if is_local_target(arguments.target):
        files = shlex.join(parse_local_target(arguments.target).words[0])
        raise InvalidRequest("target", f"is not a server; for files: tokenfeed inspect {files}")
    order = _order_over_documents(arguments)
    described = describe(
        arguments.target,
        arguments.context_length,
        dataset=text("dataset", arguments.dataset),
        order=order,
        long_documents=long_argument(order, arguments.long) if order else "",
        timeout_seconds=WAIT_SECONDS,
        credentials=with_environment(),
    )
    print(f"tokenfeed {described.server_version} at {arguments.target}")
    revisions = ", ".join(map(str, described.contract_revisions))
    print(f"contract: {revisions}")
    print(f"orders: {', '.join(described.orders)}")
    print(f"largest batch: {described.limits.batch_bytes_max:,} bytes")
    for dataset in described.datasets:
        print(f"dataset {dataset.name}")
        print(
            f"  tokens: {dataset.token_count:,} {dataset.dtype} in {dataset.file_count:,} file(s)"
        )
        print(f"  fingerprint: {dataset.fingerprint.hex()}")
        if dataset.row_tokens:
            print(f"  files of rows: {dataset.row_tokens:,} tokens each")
        if dataset.rows:
            counts = ", ".join(_count(rows, order) for rows in dataset.rows)
            print(f"  rows of {arguments.context_length:,} tokens: {counts}")
        if dataset.HasField("documents"):
            known = dataset.documents
            print(f"  documents: {known.count:,}, known of {known.file_count:,} file(s)")
        for plane in dataset.planes:
            made = plane.fingerprint.hex() or "is not made yet"
            print(f"  {plane_name(plane.kind)}: {made}")


def _order_over_documents(arguments: argparse.Namespace) -> str:
    """Return the order over documents that is asked for, with its version; "" for none.

    Raises: InvalidRequest.
    """
    if arguments.order is None:
        if arguments.long is not None:
            raise InvalidRequest("long", "needs --order, which names an order over documents")
        return ""
    if arguments.context_length is None:
        raise InvalidRequest("order", "needs --context-length: its rows depend on it")
    return orders.latest(arguments.order).NAME


def _count(rows: pb.OrderRows, order: str) -> str:
    """Return how many rows an order has, or how far their making is.  order: over documents."""
    if rows.order == order and not rows.pieces_hash:
        return f"{rows.order} being made, {100 * rows.progress:.1f} % so far"
    return f"{rows.order} {rows.rows:,}"
