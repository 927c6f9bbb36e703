"""A real Prometheus that scrapes one server, configured as in `deploy/` but for the target and a short interval."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support import http
from tests.support.deploy.files import DEPLOY, read_yaml
from tests.support.server.running_server import free_port

_SECONDS = 300


@dataclass(frozen=True)
class Prometheus:
    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """What the API answers. Raises where it refuses."""
        answer = http.get(f"{self.url}/api/v1/{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, expression: str) -> list[Any]:
        """The samples of an expression now."""
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found


@contextmanager
def running_prometheus(binary: str, server_url: str, folder: Path) -> Iterator[Prometheus]:
    """Yields when the server was scraped three times, so that rates have samples."""
    config = read_yaml("prometheus/prometheus.yaml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus/alarms.yaml")]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [server_url.removeprefix("http://")]
    file, port = folder / "prometheus.yaml", free_port()
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    flags = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    flags.append(f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([binary, *flags], stdout=log, stderr=subprocess.STDOUT)
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        _wait_for_scrapes(prometheus, process, folder / "prometheus.log")
        yield prometheus
    finally:
        process.terminate()
        process.wait()


def _wait_for_scrapes(prometheus: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            (sample,) = prometheus.query('sum_over_time(up{job="acmserve"}[1h])') or [None]
            rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
            is_evaluated = bool(rules) and all(rule["health"] != "unknown" for rule in rules)
            if sample is not None and float(sample["value"][1]) >= 3 and is_evaluated:
                return
        except (httpx.TransportError, AssertionError):
            pass  # it starts
        time.sleep(0.2)
    raise AssertionError(f"Prometheus has not scraped the server:\n{log.read_text()[-2000:]}")
