"""Every expression of the dashboard and of the alarms names metrics and labels that the server really exports."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest

from acmserve.engine.scheduling.source_gone import SOURCE_GONE
from tests.support import http
from tests.support.deploy.files import dashboard_expressions, read_alarms
from tests.support.deploy.promql import exported, find_strange, read_names
from tests.support.deploy.traffic import send_traffic

EXPRESSIONS = [*dashboard_expressions(), *((alarm.name, alarm.expression) for alarm in read_alarms())]
SHOWN = (
    *("kept_tokens_total", "moved_tokens_total", "computed_tokens_total", "saved_seconds_total", "fallbacks_total"),
    *("evictions_total", "evicted_tokens_total", "budget_unmet_total", "sessions", "session_bytes"),
    *("harm_nats", "harm_tokens_total", "auto_level", "auto_level_changes_total"),
    *("precomputed_tokens_total", "precomputed_used_tokens_total", "precomputed_wasted_tokens_total"),
)
"""What operators ask a dashboard for."""


@pytest.fixture(scope="module")
def known(scripted_server: str) -> Mapping[str, frozenset[str]]:
    send_traffic(scripted_server, f"deploy-{uuid.uuid4().hex}")
    return exported(http.get(f"{scripted_server}/metrics").text)


def test_every_name_of_an_expression_is_in_a_scrape(known: Mapping[str, frozenset[str]]) -> None:
    strange = {(where, name) for where, expression in EXPRESSIONS for name in find_strange(expression, known)}
    assert strange == set()


def test_the_dashboard_shows_what_operators_ask_for() -> None:
    shown = {metric for _, expression in dashboard_expressions() for metric, _ in read_names(expression).metrics}
    assert {f"acmserve:{name}" for name in SHOWN} - shown == set()


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("rate(acmserve:fallback_total[5m])", ["acmserve:fallback_total"]),
        ("acmserve:first_token_seconds > 1", ["acmserve:first_token_seconds"]),
        ('sum(acmserve:fallbacks_total{resaon="x", instance=~"$instance"})', ["acmserve:fallbacks_total{resaon}"]),
        ("sum by (le, tun) (rate(acmserve:first_token_seconds_bucket[$__rate_interval]))", ["by (tun)"]),
        ('up{job="a"} == 0 and vllm:no_such_gauge > 1', ["vllm:no_such_gauge"]),
        ("vector(0)", ["no metric in vector(0)"]),
    ],
)
def test_a_misspelt_name_is_found(expression: str, found: list[str], known: Mapping[str, frozenset[str]]) -> None:
    assert list(find_strange(expression, known)) == found


def test_a_reason_that_an_alarm_selects_is_one_of_the_engine() -> None:
    (alarm,) = (alarm for alarm in read_alarms() if "{reason=" in alarm.expression)
    assert f'{{reason="{SOURCE_GONE}"}}' in alarm.expression
