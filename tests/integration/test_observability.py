"""deploy/observability/docker-compose.yml: the stack, and a Prometheus that scrapes it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.integration.engine import BUILD_SECONDS, docker, wait_until
from tests.integration.stack import IMAGES, SERVER_IMAGE, Stack
from tests.support import prometheus
from tests.support.prometheus import Prometheus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]

IMAGE = IMAGES["TOKENFEED_PROMETHEUS_IMAGE"]
# Like prom/prometheus, which no registry brings here: its user, its folder, its entry point.
DOCKERFILE = f"""\
FROM {SERVER_IMAGE}
USER root
COPY prometheus /bin/prometheus
WORKDIR /prometheus
RUN chown 65534:65534 /prometheus
USER 65534
HEALTHCHECK NONE
ENTRYPOINT ["/bin/prometheus"]
"""
FILES = ("docker-compose.yml", "observability/docker-compose.yml")
BATCHES = 50
READ = f"""
from client import NumpyBatches
with NumpyBatches(["server-a:50051", "server-b:50051"], 4, 64, num_batches={BATCHES}) as feed:
    print(sum(len(x) for x, y in feed))
"""


@pytest.fixture(scope="module")
def watched(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The two servers, with metrics, and nothing else yet."""
    prometheus.require_installed()
    tmp_path = tmp_path_factory.mktemp("prometheus")
    shutil.copy(str(shutil.which("prometheus")), tmp_path)
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    docker("build", "--quiet", f"--tag={IMAGE}", str(tmp_path), seconds=BUILD_SECONDS)
    made = Stack("watched", *FILES)
    try:
        made.up("server-a", "server-b")
        made.wait_until_healthy()
        yield made
    finally:
        made.down()
        docker("rmi", IMAGE)


def test_prometheus_sees_both_servers_and_their_rows(watched: Stack) -> None:
    """As its user starts it: the configuration, the rules and the ports of the compose file."""
    answer = watched.run("python", "-c", READ)
    assert answer.stdout.strip() == str(4 * BATCHES), answer.stderr
    watched.up("prometheus")
    container = watched.container("prometheus")
    watcher = Prometheus(docker("port", container.name, "9090/tcp").splitlines()[0])

    # Until Prometheus has come up, nothing answers there; then a scrape comes every 15 s.
    wait_until(watcher.is_ready, "a Prometheus that answers")
    wait_until(lambda: len(watcher.query('up{job="tokenfeed"} == 1')) == 2, "two servers")
    (rows,) = watcher.query("sum(tokenfeed_rows_sent_total)")
    assert rows.value == 4 * BATCHES
    assert len(watcher.alerting_rules()) == 13
    assert watcher.firing() == []


def test_only_the_network_of_the_stack_reaches_the_metrics(watched: Stack) -> None:
    """The port has neither TLS nor tokens, so it must not be published."""
    for replica in watched.replicas:
        ports = replica.inspect()["NetworkSettings"]["Ports"]
        assert [port for port, published in ports.items() if published] == ["50051/tcp"]
        assert "metrics address=http://0.0.0.0:9464/metrics" in replica.log()


def test_tls_and_metrics_go_together(images: None) -> None:
    """The options of one file must not replace those of another."""
    with_tls = Stack("config", FILES[0], "docker-compose.tls.yml", FILES[1])
    words = " ".join(with_tls.compose("config").decode().split())

    assert words.count("--tls-cert /secrets/server/server.crt") == 2
    assert words.count("--metrics-port 9464") == 2
