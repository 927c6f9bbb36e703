"""What `deploy/` says: expressions of the dashboard, alarms, and the table of the guide that is made from them.

`python -m tests.support.deploy.files` writes that table into the guide.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tests.support.docs.pages import ROOT

DEPLOY = ROOT / "deploy"
GUIDE = "docs/guides/operations.md"
_HEAD = ("| alarm | expression | cause | remedy |", "|---|---|---|---|")


@dataclass(frozen=True, slots=True)
class Alarm:
    """One rule of Prometheus. `expression` has no line breaks."""

    name: str
    expression: str
    summary: str
    cause: str
    remedy: str

    @property
    def row(self) -> str:
        """The alarm in the table of the guide."""
        return f"| {self.summary} | `{self.expression}` | {self.cause} | {self.remedy} |"


def read_yaml(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def read_alarms() -> list[Alarm]:
    """The rules, in order. Each has the same fields."""
    (group,) = read_yaml("prometheus/alarms.yaml")["groups"]
    return [Alarm(rule["alert"], rule["expr"], **rule["annotations"]) for rule in group["rules"]]


def read_dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/acmserve.json").read_text(encoding="utf-8"))
    return found


def dashboard_expressions() -> Iterator[tuple[str, str]]:
    """Title of the panel, and an expression of it."""
    for panel in read_dashboard()["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def table() -> str:
    """The table of alarms as the guide has it."""
    return "\n".join([*_HEAD, *(alarm.row for alarm in read_alarms())])


def with_table(page: str) -> str:
    """The guide with the table of now."""
    before, _, rest = page.partition(_HEAD[0])
    after = rest[rest.index("\n\n") :]
    return f"{before}{table()}{after}"


if __name__ == "__main__":
    path = ROOT / GUIDE
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
