"""An object store in this process that speaks enough of S3, and fails on purpose.

with object_server() as store:
    store.put("bucket/a.bin", content)
    store.faults.append("503")  # of the next GET of an object
    open_dataset(["s3://bucket/a.bin"])
"""

from __future__ import annotations

import email.utils
import hashlib
import os
import re
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tokenfeed.server.storage.objects import buckets
from tokenfeed.server.storage.objects.listing import LISTING

FAULTS = (
    "500", "503", "reset", "short", "wrong range", "200", "weak", "other etag", "slow", "403",
    "gzip", "404", "412", "long",
)  # fmt: skip
_STATUS = {"500": 500, "503": 503, "403": 403, "404": 404, "412": 412}
SLOW_SECONDS = 0.3
_WRITTEN = 1_700_000_000


class RepeatedContent:
    """A piece over and over, up to a size: an object larger than the memory of a machine."""

    def __init__(self, piece: bytes, size_bytes: int) -> None:
        self.piece, self._size_bytes = piece, size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, part: slice) -> bytes:
        first, end, _ = part.indices(self._size_bytes)
        skipped = first % len(self.piece)
        count = -(-(skipped + end - first) // len(self.piece))
        return (self.piece * count)[skipped : skipped + end - first]


@dataclass
class StoredObject:
    """Content, as it was put.  version: of a bucket that keeps versions."""

    content: bytes | RepeatedContent
    version: str = ""
    written: int = _WRITTEN
    has_etag: bool = True

    @cached_property
    def etag(self) -> str:
        one = self.content if isinstance(self.content, bytes) else self.content.piece
        return f'"{hashlib.md5(one).hexdigest()}"'


@dataclass
class Asked:
    """A request.  headers: by their names in lower case.  prefix: of a list."""

    method: str
    key: str
    headers: dict[str, str]
    version: str
    prefix: str = ""


@dataclass
class ObjectServer:
    """The objects of a store, by BUCKET/KEY.

    faults: of the next GETs of objects, one each; then always_fault.  keeps_versions: whether what
    is replaced can still be read.  delay_seconds: before each answer, as of a far store.
    requests: so far.
    """

    address: str = ""
    objects: dict[str, list[StoredObject]] = field(default_factory=dict)
    faults: deque[str] = field(default_factory=deque)
    always_fault: str = ""
    keeps_versions: bool = False
    has_list: bool = True
    missing_buckets: tuple[str, ...] = ("nobucket",)
    weak: bool = False
    delay_seconds: float = 0.0
    accepted_keys: set[str] = field(default_factory=set)
    requests: list[Asked] = field(default_factory=list)

    def put(self, key: str, content: bytes | RepeatedContent, *, written: int = _WRITTEN) -> None:
        """Store an object, in place of one of this name."""
        others = self.objects.get(key, []) if self.keeps_versions else []
        version = f"v{len(others) + 1}" if self.keeps_versions else ""
        self.objects[key] = [*others, StoredObject(content, version, written)]

    def put_folder(self, folder: Path, bucket: str) -> None:
        """Store all files of a folder, by their paths in it."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{bucket}/{path.relative_to(folder)}", path.read_bytes())

    @property
    def gets(self) -> list[Asked]:
        """The GETs of objects."""
        return [each for each in self.requests if each.method == "GET" and "/" in each.key]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: ObjectServer

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        url, store = urlsplit(self.path), self.store
        key, query = unquote(url.path).lstrip("/"), parse_qs(url.query)
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, key, headers, query.get("versionId", [""])[0])
        asked.prefix = query.get("prefix", [""])[0]
        store.requests.append(asked)
        if store.delay_seconds:
            time.sleep(store.delay_seconds)
        owner = re.search(r"Credential=(\w+)/", headers.get("authorization", ""))
        if store.accepted_keys and (owner is None or owner[1] not in store.accepted_keys):
            self._send(403, b"<Error><Code>AccessDenied</Code></Error>")
        elif "list-type" in query:
            self._list(key.strip("/"), query)
        else:
            self._object(asked)

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        if not self.store.has_list:
            self._send(403, b"<Error><Code>AccessDenied</Code></Error>")
            return
        if bucket in self.store.missing_buckets:
            self._send(404, b"<?xml version='1.0'?><Error><Code>NoSuchBucket</Code></Error>")
            return
        prefix = query.get("prefix", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        found, folders = [], set()
        # In no order, as some stores list.
        for name, versions in reversed(list(self.store.objects.items())):
            place, _, key = name.partition("/")
            if place != bucket or not key.startswith(prefix):
                continue
            folder, mark, _ = key[len(prefix) :].partition("/")
            if delimiter and mark:
                folders.add(f"{prefix}{folder}/")
                continue
            time_text = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(versions[-1].written))
            found.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(versions[-1].content)}</Size>"
                f"<LastModified>{time_text}</LastModified>"
                f"<ETag>{escape(versions[-1].etag)}</ETag></Contents>"
            )
        found += [
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders
        ]
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(found)}"
        self._send(200, f"{text}</ListBucketResult>".encode())

    def _object(self, asked: Asked) -> None:
        store, headers = self.store, asked.headers
        fault = ""
        if asked.method == "GET":
            fault = store.faults.popleft() if store.faults else store.always_fault
        if fault in _STATUS:
            self._send(_STATUS[fault], b"<Error><Code>SlowDown</Code></Error>")
            return
        versions = store.objects.get(asked.key, [])
        wanted = [one for one in versions if not asked.version or one.version == asked.version]
        if not wanted:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        found = wanted[-1]
        etag = f"W/{found.etag}" if store.weak else found.etag
        since = headers.get("if-unmodified-since")
        is_older = since and found.written > email.utils.parsedate_to_datetime(since).timestamp()
        if headers.get("if-match", etag) != etag or is_older:
            self._send(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        content, status = found.content, 200
        answer = {
            "ETag": {"other etag": '"another"', "weak": f"W/{found.etag}"}.get(fault, etag),
            "Last-Modified": email.utils.formatdate(found.written, usegmt=True),
        }
        if not found.has_etag:
            del answer["ETag"]
        if found.version:
            answer["x-amz-version-id"] = found.version
        asked_range = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
        if asked_range and fault != "200":
            first, last = int(asked_range[1]), min(int(asked_range[2]), len(content) - 1)
            if first > last:
                self._send(416, b"")
                return
            shift = int(fault == "wrong range")
            answer["Content-Range"] = f"bytes {first + shift}-{last + shift}/{len(content)}"
            content, status = content[first : last + 1], 206
        if fault == "gzip":
            answer["Content-Encoding"] = "gzip"
        if fault == "long":
            content += b"xx"
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        self._send(status, content, answer, cut=fault if fault in ("reset", "short") else "")

    def _send(
        self, status: int, content: bytes, headers: dict[str, str] | None = None, cut: str = ""
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.wfile.flush()
            if cut == "reset":  # instead of an orderly end
                linger = b"\1\0\0\0\0\0\0\0"
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        """Print nothing: clients go away."""


@contextmanager
def object_server(tls: ssl.SSLContext | None = None) -> Iterator[ObjectServer]:
    """Lend a store, which s3:// leads to in this process and those that it starts.

    tls: for a web server, which https:// leads to by its address.
    """
    store = ObjectServer()
    handler = type("Handler", (_Handler,), {"store": store})
    listener = _Listener(("127.0.0.1", 0), handler)
    if tls is not None:
        listener.socket = tls.wrap_socket(listener.socket, server_side=True)
    store.address = f"127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        with s3_at(f"http://{store.address}"):
            yield store
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


@contextmanager
def s3_at(endpoint: str) -> Iterator[None]:
    """Have s3:// lead to an endpoint within the with block."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    own = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "first",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    forget_buckets()
    with mock.patch.dict(os.environ, others | own, clear=True):
        try:
            yield
        finally:
            forget_buckets()


def forget_buckets() -> None:
    """Open buckets again, and list them again."""
    buckets._BUCKETS.clear()
    LISTING.forget()
