"""A real Prometheus scrapes the server, evaluates the alarms, and answers every query of the dashboard."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deploy.files import dashboard_expressions, read_alarms
from tests.support.deploy.prometheus import Prometheus, running_prometheus
from tests.support.deploy.promql import filled_in
from tests.support.deploy.traffic import send_traffic

BINARY = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(BINARY is None, reason="prometheus is not installed (Debian: prometheus)")


@pytest.fixture(scope="module")
def prometheus(scripted_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    assert BINARY is not None
    send_traffic(scripted_server, f"scraped-{uuid.uuid4().hex}")
    folder: Path = tmp_path_factory.mktemp("prometheus")
    with running_prometheus(BINARY, scripted_server, folder) as running:
        yield running


def test_every_query_of_the_dashboard_has_an_answer(prometheus: Prometheus) -> None:
    empty = [title for title, query in dashboard_expressions() if not prometheus.query(filled_in(query))]
    assert empty == []
    assert prometheus.query("sum(rate(acmserve:no_such_metric_total[5m]))") == []


def test_what_was_served_is_what_was_scraped(prometheus: Prometheus) -> None:
    for name in ("evictions_total", "evicted_tokens_total"):
        (sample,) = prometheus.query(f'acmserve:{name}{{kind="caller"}}')
        assert float(sample["value"][1]) > 0, name
    assert prometheus.query("acmserve:fallbacks_total > 0")


def test_every_alarm_is_evaluated(prometheus: Prometheus) -> None:
    (group,) = prometheus.ask("rules")["groups"]
    assert {rule["name"]: rule["health"] for rule in group["rules"]} == {a.name: "ok" for a in read_alarms()}
