"""Real servers and jobs, with the command lines, probes and files that their pods would have."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from client import Credentials, RemoteBatches, Timeouts
from tests.conftest import ROOT, Serve, Server
from tests.deploy.kubernetes.manifests import OBJECT_STORE, OVERLAYS, container, mounted
from tests.faults.credentials import OTHER_TOKEN, TOKEN, Papers, write_papers
from tests.server.ingest import corpus
from tests.support.commands import run
from tests.support.object_server import object_server
from tests.support.waiting import eventually
from tokenfeed.errors import InvalidRequest, Unauthenticated
from tokenfeed.server.storage.objects.slab import FILE, FOLDER

CORPUS = "corpus/train.bin"


def rewritten(words: list[str], root: Path) -> list[str]:
    """A command line, with the paths of a pod as paths below root."""
    return [re.sub("(^|[=:])/(?!/)", rf"\g<1>{root}/", word) for word in words]


class SecretVolume:
    """A mounted Secret as the kubelet writes it: each name is a link through `..data`, a link that
    is replaced when the Secret changes. So no file is ever written to, and all change at once.
    """

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self._folder, self._count = folder, 0
        folder.mkdir(parents=True)
        self.renew(files)
        for name in files:
            (folder / name).symlink_to(f"..data/{name}")

    def renew(self, files: dict[str, bytes]) -> None:
        old = self._folder / f"..{self._count}"
        self._count += 1
        new = self._folder / f"..{self._count}"
        new.mkdir()
        for name, content in files.items():
            (new / name).write_bytes(content)
            # Whole seconds, as after a restore: the time alone must not decide.
            os.utime(new / name, (1, 1))
        (self._folder / "..data_tmp").symlink_to(new.name)
        (self._folder / "..data_tmp").rename(self._folder / "..data")
        if old.exists():
            for path in old.iterdir():
                path.unlink()
            old.rmdir()


class Pod:
    """What a container sees, in a folder of this machine."""

    def __init__(self, overlay: str, root: Path, papers: Papers, serve: Serve) -> None:
        self._root, self._overlay = root, overlay
        for path in mounted(overlay):
            if not path.startswith("/secrets/"):
                self.here(path).mkdir(parents=True)
        path = self.here(f"/data/{CORPUS}")
        path.parent.mkdir(parents=True)
        np.arange(1, 20_000).astype("<u2").tofile(path)
        self.tls = SecretVolume(self.here("/secrets/tls"), pair(papers.cert, papers.key))
        self.tokens = SecretVolume(self.here("/secrets/tokens"), {"tokens": f"{TOKEN}\n".encode()})
        # The port of the metrics is fixed there, and a cache has the size of a node's disk.
        fixed = ("--metrics-", "--object-cache-bytes")
        words = [w for w in container(overlay)["args"] if not w.startswith(fixed)]
        socket = self.here("/dev/shm/tokenfeed.sock")
        self.server: Server = serve("--unix", socket, *rewritten(words, root))

    def here(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def is_ready(self) -> bool:
        """Whether the pod's own probe says so."""
        python, *words = container(self._overlay)["readinessProbe"]["exec"]["command"]
        assert python == "python"
        command = [sys.executable, *rewritten(words, self._root)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=10).returncode == 0

    def read(self, credentials: Credentials) -> int:
        """How many batches a client gets."""
        timeouts = Timeouts(reconnect_seconds=1.0)
        with RemoteBatches(
            self.server.address, 4, 64, rank=0, world_size=1, num_batches=3,
            timeouts=timeouts, credentials=credentials,
        ) as feed:  # fmt: skip
            return sum(1 for _ in feed)


def pair(cert: str, key: str) -> dict[str, bytes]:
    """The files of a Secret of type kubernetes.io/tls."""
    return {"tls.crt": Path(cert).read_bytes(), "tls.key": Path(key).read_bytes()}


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return write_papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def running(tmp_path: Path, papers: Papers, serve: Serve) -> Pod:
    return Pod(OVERLAYS[0], tmp_path / "pod", papers, serve)


def test_the_probe_of_the_pod_follows_the_health_of_its_server(running: Pod) -> None:
    """Without certificate and token. A server that has lost its corpus goes on running, so that
    its log can be read.
    """
    assert running.is_ready()

    os.truncate(running.here(f"/data/{CORPUS}"), 100)

    assert eventually(lambda: not running.is_ready())
    assert running.server.process.poll() is None


def test_renewed_secrets_apply_without_a_restart(running: Pod, papers: Papers) -> None:
    """The kubelet replaces links; files that are polled by name have to be seen through them."""
    trusting = Credentials(tls_ca=papers.ca, token=TOKEN)
    assert running.read(trusting) == 3
    running.tokens.renew({"tokens": f"{OTHER_TOKEN}\n".encode()})
    running.tls.renew(pair(papers.expired_cert, papers.expired_key))

    assert eventually(lambda: "bearer tokens reloaded count=1" in running.server.stderr)
    with pytest.raises(InvalidRequest, match="certificate has expired"):
        running.read(trusting)
    running.tls.renew(pair(papers.cert, papers.key))
    assert running.read(Credentials(tls_ca=papers.ca, token=OTHER_TOKEN)) == 3
    with pytest.raises(Unauthenticated):
        running.read(trusting)


def test_a_pod_of_an_object_store_serves_the_bucket_by_its_cache(
    tmp_path: Path, papers: Papers, serve: Serve
) -> None:
    """With nothing mounted but the cache and Secrets."""
    tokens = np.arange(1, 20_000).astype("<u2")
    with object_server() as store:
        store.put("bucket/corpus/train.bin", tokens.tobytes())
        pod = Pod(OBJECT_STORE, tmp_path / "pod", papers, serve)

        assert pod.read(Credentials(tls_ca=papers.ca, token=TOKEN)) == 3
        assert eventually(lambda: "object cache filled blocks=1 of=1" in pod.server.stderr)
    assert pod.is_ready()
    assert (pod.here("/cache") / FOLDER / FILE).exists()


@pytest.mark.slow
def test_the_jobs_make_what_a_server_finds(serve: Serve, tmp_path: Path) -> None:
    """Text, its tokens, the rows of its documents: each where the next one looks."""
    text = tmp_path / "data" / "text"
    text.mkdir(parents=True)
    corpus.write_jsonl(text / "pages.jsonl", [{"text": page} for page in corpus.documents(300)])
    corpus.make_tokenizer(tmp_path / "data" / "tokenizer.json")

    run("-m", "tokenfeed.server.ingest", *rewritten(container("jobs/ingest")["args"], tmp_path))
    _, *module = container("jobs/pack")["command"]
    run(*module, *rewritten(container("jobs/pack")["args"], tmp_path))

    words = [w for w in container("base")["args"] if not w.startswith("--metrics-")]
    server = serve(*rewritten(words, tmp_path))
    with RemoteBatches(
        server.address, 1, 2048, rank=0, world_size=1, order="packed", num_batches=1
    ) as feed:
        next(feed)
    assert "rows of packed-1 for context length 2048 found dataset=train" in server.stderr
    assert not (tmp_path / "cache").exists(), "there was nothing to make"
