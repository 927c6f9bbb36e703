"""The guide's table of alarms is made from the rules, and the rules fire when they should."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deploy.files import DEPLOY, GUIDE, read_alarms, table, with_table
from tests.support.docs.pages import read_page

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")

GROWS, STAYS = "0+60x120", "0x120"
MIB = 2**20
_FIRST, _LOCK = "acmserve:first_token_seconds_bucket", "acmserve:session_lock_wait_seconds_bucket"
QUIET = {
    'up{job="acmserve"}': "1x120",
    'acmserve:storage_failures_total{reason="full"}': STAYS,
    "acmserve:session_bytes": f"{200 * MIB}x120",
    'acmserve:requests_total{fidelity="reuse"}': GROWS,
    'acmserve:fallbacks_total{reason="lora"}': "0+6x120",
    'acmserve:fallbacks_total{reason="source_evicted"}': "0+3x120",
    "vllm:kv_cache_usage_perc": "0.9x120",
    "vllm:num_requests_waiting": "4x120",
    f'{_FIRST}{{turn="edited",le="1"}}': GROWS,
    f'{_FIRST}{{turn="edited",le="60"}}': GROWS,
    f'{_FIRST}{{turn="edited",le="+Inf"}}': GROWS,
    f'{_FIRST}{{turn="first",le="1"}}': STAYS,
    f'{_FIRST}{{turn="first",le="+Inf"}}': GROWS,
    f'{_LOCK}{{le="1"}}': GROWS,
    f'{_LOCK}{{le="+Inf"}}': GROWS,
    "acmserve:precomputed_wasted_tokens_total": "0+5x120",
    "acmserve:precomputed_used_tokens_total": "0+6x120",
}
"""A server that works: a value for each minute of two hours."""
TROUBLE = {
    "ServerGone": {'up{job="acmserve"}': "0x120"},
    "SessionsNotSaved": {'acmserve:storage_failures_total{reason="full"}': "0x115 1x5"},
    "SessionMemoryFull": {"acmserve:session_bytes": f"{250 * MIB}x120"},
    "MovesRefused": {'acmserve:fallbacks_total{reason="lora"}': "0+13x120"},
    "SourcesEvicted": {'acmserve:fallbacks_total{reason="source_evicted"}': "0+7x120"},
    "KVCacheFull": {"vllm:kv_cache_usage_perc": "0.99x120"},
    "RequestsWait": {"vllm:num_requests_waiting": "9x120"},
    "EditedTurnsSlow": {f'{_FIRST}{{turn="edited",le="1"}}': STAYS},
    "SessionsWaitForThemselves": {f'{_LOCK}{{le="1"}}': STAYS, f'{_LOCK}{{le="30"}}': GROWS},
    "PrecomputeWasted": {"acmserve:precomputed_wasted_tokens_total": "0+7x120"},
}
"""Alarm -> what differs where it fires, and no other does."""


def test_the_guide_has_the_rules() -> None:
    page = read_page(GUIDE)
    assert with_table(page) == page
    assert len(read_alarms()) == len(table().splitlines()) - 2 == 10
    assert with_table(page.replace("== 0`", "== 1`")) == page


def test_every_alarm_is_tried() -> None:
    assert [alarm.name for alarm in read_alarms()] == list(TROUBLE)


@needs_promtool
def test_promtool_reads_rules_and_configuration(tmp_path: Path) -> None:
    assert promtool("check", "config", str(DEPLOY / "prometheus/prometheus.yaml")).returncode == 0
    rules = (DEPLOY / "prometheus/alarms.yaml").read_text(encoding="utf-8")
    (tmp_path / "broken.yaml").write_text(rules.replace("sum by (reason) (rate(", "sum by (reason) (rate"))
    assert promtool("check", "rules", str(tmp_path / "broken.yaml")).returncode != 0


@needs_promtool
def test_each_alarm_fires_alone_and_none_on_a_quiet_server(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, str], list[str]]] = [({}, [])]
    cases += [(differs, [name]) for name, differs in TROUBLE.items()]
    tried = run_rules(tmp_path, cases)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert run_rules(tmp_path, [(TROUBLE["ServerGone"], [])]).returncode != 0, "an alarm that nobody expects"
    assert run_rules(tmp_path, [({}, ["ServerGone"])]).returncode != 0, "an alarm that does not come"
    unseen = {'acmserve:storage_failures_total{reason="locked"}': "_x115 1x5"}
    assert run_rules(tmp_path, [(unseen, [])]).returncode == 0, "a counter has to be there before its first failure"


def run_rules(folder: Path, cases: list[tuple[dict[str, str], list[str]]]) -> subprocess.CompletedProcess[str]:
    """Whether in each case just the alarms fire that it names, two hours on. Its series differ from the quiet ones."""
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    tests: list[dict[str, Any]] = []
    for differs, names in cases:
        expected = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names]
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in (QUIET | differs).items()],
                "promql_expr_test": [{"expr": firing, "eval_time": "119m", "exp_samples": expected}],
            }
        )
    document = {
        "rule_files": [str(DEPLOY / "prometheus/alarms.yaml")],
        "evaluation_interval": "1m",
        "tests": tests,
    }
    file = folder / "cases.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return promtool("test", "rules", str(file))


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False)
