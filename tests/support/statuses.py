"""Statuses as a server sends them, for what judges and shows them."""

from __future__ import annotations

from typing import Any

from tokenfeed.v1 import status_pb2 as pb

HOSTILE_NAMES = (
    "<script>document.title = 'owned'</script>",
    '"><img src=http://192.0.2.1/x onerror=alert(1)>',
    "x" * 10_000,
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred\r\nnew line\x9b31m",
    "\u202egnp.exe\u2066\u200b\ufeff",
    "&lt;b&gt; ' ; --",
    "שלום ערב",
    "語" * 80,
    "e\u0301" * 60,
    "",
)


def status(**fields: Any) -> pb.GetStatusResponse:
    """A server that has been running for an hour."""
    usual: dict[str, Any] = {
        "server_version": "1.2.3",
        "started_ms": 1_795_000_000_000,
        "now_ms": 1_795_003_600_000,
        "threads": 31,
        "anonymous_bytes": 100 << 20,
        "resident_bytes": 300 << 20,
        "memory_limit_bytes": 4 << 30,
        "streams_max": 512,
    }
    return pb.GetStatusResponse(**(usual | fields))


def dataset(name: str = "web", **fields: Any) -> pb.DatasetStatus:
    """A dataset that is served."""
    usual: dict[str, Any] = {
        "name": name,
        "format": "raw",
        "dtype": "uint16",
        "token_count": 1_000_000,
        "file_count": 3,
        "size_bytes": 2_000_000,
        "fingerprint": bytes(range(32)),
    }
    return pb.DatasetStatus(**(usual | fields))


def stream(client_name: str = "run", rank: int = 0, world_size: int = 1, **fields: Any) -> Any:
    """A stream that reads, and has read for an hour."""
    usual: dict[str, Any] = {
        "client_name": client_name,
        "address": f"ipv4:10.0.0.{rank % 250}:41234",
        "rank": rank,
        "world_size": world_size,
        "batch_size": 32,
        "context_length": 2048,
        "order": "shuffled-1",
        "datasets": ["web"],
        "next_sample": 1_000_000,
        "rows": 125_000,
        "tokens": 256_000_000,
        "tokens_per_second": 70_000.0,
        "waits_for_server": 0.1,
        "calls": 1,
        "age_seconds": 3600.0,
        "idle_seconds": 0.2,
    }
    return pb.StreamStatus(**(usual | fields))
