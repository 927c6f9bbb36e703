"""Which metrics and labels an expression of PromQL names, and which of them a scrape does not have.

    sum by (reason) (rate(acmserve:fallbacks_total{instance=~"a"}[5m]))
    metric   acmserve:fallbacks_total     labels   instance, reason

Names alone are read here, and `promtool` reads the grammar. Prometheus adds `up`, `ALERTS`, `job` and `instance`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

GRAFANA = {"$__rate_interval": "5m", "$__range": "1h", "$instance": ".*"}
"""What Grafana puts in for its variables."""
OF_PROMETHEUS = {
    "up": frozenset({"job", "instance"}),
    "ALERTS": frozenset({"alertname", "alertstate", "job", "instance"}),
}
_OF_TARGETS = frozenset({"job", "instance"})
_TOKEN = re.compile(r'"[^"]*"|\[[^\]]*\]|\{[^}]*\}|[A-Za-z_:][\w:]*|\d[\w.]*|\S')
_NAME = re.compile(r"[A-Za-z_:][\w:]*")
_GROUPING = ("by", "without", "on", "ignoring")
_WORDS = ("and", "or", "unless", "bool", "offset", "group_left", "group_right")


@dataclass(frozen=True, slots=True)
class Named:
    """Metrics of an expression with the labels that select them, and the labels that group."""

    metrics: tuple[tuple[str, frozenset[str]], ...]
    grouping: frozenset[str]


def filled_in(expression: str) -> str:
    """An expression of a dashboard, as Grafana sends it."""
    for name, value in GRAFANA.items():
        expression = expression.replace(name, value)
    return expression


def read_names(expression: str) -> Named:
    """See the module."""
    tokens = _TOKEN.findall(filled_in(expression))
    metrics: list[tuple[str, frozenset[str]]] = []
    grouping: set[str] = set()
    for place, token in enumerate(tokens):
        follows = tokens[place + 1] if place + 1 < len(tokens) else ""
        if token in _GROUPING:
            end = tokens.index(")", place)
            grouping |= {word for word in tokens[place + 2 : end] if word != ","}
        elif not _NAME.fullmatch(token) or token in _WORDS or follows in ("(", *_GROUPING) or token in grouping:
            continue
        else:
            selected = re.findall(r"(\w+)\s*[=!]", follows) if follows.startswith("{") else []
            metrics.append((token, frozenset(selected)))
    return Named(tuple(metrics), frozenset(grouping))


def exported(scrape: str) -> dict[str, frozenset[str]]:
    """Every sample of a text of `/metrics`, with its labels."""
    found: dict[str, frozenset[str]] = {}
    for family in text_string_to_metric_families(scrape):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, frozenset()) | frozenset(sample.labels)
    return found


def find_strange(expression: str, known: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Metrics and labels of an expression that a scrape does not have. An expression without a metric is one, too."""
    named = read_names(expression)
    if not named.metrics:
        yield f"no metric in {expression}"
    labels: set[str] = set()
    for metric, selected in named.metrics:
        there = OF_PROMETHEUS.get(metric) or known.get(metric)
        if there is None:
            yield metric
            continue
        labels |= there | _OF_TARGETS
        yield from (f"{metric}{{{label}}}" for label in selected - there - _OF_TARGETS)
    yield from (f"by ({label})" for label in named.grouping - labels)
