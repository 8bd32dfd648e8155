"""SeaweedFS, a production object store, on free ports of the loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.support.object_server import s3_at
from tests.support.ports import free_port
from tests.support.waiting import eventually

BUCKET = "bucket"
_READY_SECONDS = 60.0
"""It takes 4 s on an idle machine."""
_PORTS = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc"),
    *("filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc"),
    *("s3.port.iceberg", "s3.port.lance"),
)


@dataclass(frozen=True)
class Seaweed:
    """A running store.  store: of obstore, for its only bucket.  process: may be stopped."""

    endpoint: str
    store: S3Store
    process: subprocess.Popen[bytes]

    def put_folder(self, folder: Path, prefix: str) -> None:
        """Store all files of a folder, as PREFIX/NAME."""
        for path in folder.rglob("*"):
            if path.is_file():
                obstore.put(self.store, f"{prefix}/{path.relative_to(folder)}", path.read_bytes())


@contextmanager
def seaweed(folder: Path, volume_mib: int = 64) -> Iterator[Seaweed]:
    """Lend a store, which s3:// leads to in this process and those that it starts.  folder: for
    its data.  volume_mib: of each of 8 volumes, which limit it.
    """
    ports = dict[str, int]()
    while len(set(ports.values())) < len(_PORTS):
        ports = {name: free_port() for name in _PORTS}
    data = folder / "seaweed"
    data.mkdir()
    command = [
        shutil.which("weed", path=os.path.dirname(sys.executable)) or "weed",
        *("server", "-s3", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *(f"-master.volumeSizeLimitMB={volume_mib}", "-master.telemetry=false"),
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    # Whose credentials are in its environment may do everything.
    with s3_at(endpoint), (folder / "seaweed.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        with s3_at(endpoint):
            store = S3Store(BUCKET, client_options={"allow_http": True})
            eventually(lambda: _takes(store, process), _READY_SECONDS)
            yield Seaweed(endpoint, store, process)
    finally:
        process.kill()  # it would drain for seconds
        process.wait()
        for port in ports.values():
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                path.unlink(missing_ok=True)


def _takes(store: S3Store, process: subprocess.Popen[bytes]) -> bool:
    """Whether it stores an object; a bucket is made with the first one."""
    assert process.poll() is None, "weed has ended"
    with suppress(BaseError, OSError):
        obstore.put(store, "first", b"1")
        return bytes(obstore.get(store, "first").bytes()) == b"1"
    return False
