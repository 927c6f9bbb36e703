"""Compose files, the systemd unit, the chart's values and Grafana's files fit their schemas, and fit together."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import jsonschema
import pytest
import yaml

from acmserve.server.routes.health import HEALTH_PATH
from tests.support.deploy.commands import CHART, COMPOSE_FILES, UNIT
from tests.support.deploy.files import DEPLOY, read_dashboard, read_yaml

CHECKER = shutil.which("check-jsonschema")
SYSTEMD = shutil.which("systemd-analyze")
CHART_FOLDER = os.environ.get("ACMSERVE_STACK_CHART", "")
"""The folder `helm` of a checkout of the vLLM production stack."""


@pytest.mark.skipif(CHECKER is None, reason="check-jsonschema is not installed (`make deploy` installs it)")
def test_compose_files_fit_their_schema(tmp_path: Path) -> None:
    files = [DEPLOY / name for name in COMPOSE_FILES]
    assert _check_compose(*files).returncode == 0
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(files[0].read_text(encoding="utf-8").replace("ports:", "port:"), encoding="utf-8")
    assert _check_compose(wrong).returncode != 0


def _check_compose(*files: Path) -> subprocess.CompletedProcess[str]:
    command = [str(CHECKER), "--builtin-schema", "vendor.compose-spec", *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_services_reach_each_other_and_nobody_else_does() -> None:
    document = read_yaml("compose.yaml")
    services = document["services"]
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", ()))
    ports = {name: service["ports"][0].rpartition(":")[2] for name, service in services.items()}
    (scraped,) = read_yaml("prometheus/prometheus.yaml")["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"acmserve:{ports['acmserve']}"]}]
    assert scraped["job_name"] == "acmserve"
    (source,) = read_yaml("grafana/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == f"http://prometheus:{ports['prometheus']}"
    for service in services.values():
        for place in service["volumes"]:
            name = place.partition(":")[0]
            assert (DEPLOY / name).is_dir() if name.startswith("./") else name in document["volumes"], name
    for name in COMPOSE_FILES:
        build = read_yaml(name)["services"]["acmserve"]["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_grafana_finds_its_dashboard_and_its_source() -> None:
    mounts = dict(place.split(":")[:2] for place in read_yaml("compose.yaml")["services"]["grafana"]["volumes"])
    (provider,) = read_yaml("grafana/dashboards/provider.yaml")["providers"]
    inside = PurePosixPath(provider["options"]["path"]).relative_to(mounts["./grafana"])
    assert [path.name for path in (DEPLOY / "grafana" / inside).glob("*.json")] == ["acmserve.json"]
    (source,) = read_yaml("grafana/datasources/prometheus.yaml")["datasources"]
    dashboard = read_dashboard()
    asked = [*dashboard["templating"]["list"], *dashboard["panels"]]
    assert {one["datasource"]["uid"] for one in asked} == {source["uid"]}


def test_panels_have_a_place_of_their_own() -> None:
    panels = read_dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [cell for panel in panels for cell in _cells(panel["gridPos"])]
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) < 24


def _cells(at: dict[str, int]) -> Iterator[tuple[int, int]]:
    yield from ((at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"]))


@pytest.mark.skipif(SYSTEMD is None, reason="systemd-analyze is not installed (Debian: systemd)")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / UNIT).read_text(encoding="utf-8").replace("/opt/acmserve/bin/acmserve", "/bin/true")
    for wrong, is_right in (("Restart=", True), ("Restrat=", False)):
        file = tmp_path / UNIT
        file.write_text(unit.replace("Restart=", wrong), encoding="utf-8")
        command = [str(SYSTEMD), "verify", "--man=no", "--recursive-errors=no", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = [line for line in (done.stdout + done.stderr).splitlines() if UNIT in line]
        assert (said == []) == is_right, said


def test_the_chart_asks_the_server_how_it_is_and_one_server_has_the_file() -> None:
    spec = read_yaml(CHART)["servingEngineSpec"]
    assert spec["startupProbe"]["httpGet"] == {"path": HEALTH_PATH, "port": spec["containerPort"]}
    assert spec["strategy"] == {"type": "Recreate"}
    assert {model["replicaCount"] for model in spec["modelSpec"]} == {1}
    router = read_yaml(CHART)["routerSpec"]
    assert (router["routingLogic"], router["sessionKey"].lower()) == ("session", "x-session-id")


@pytest.mark.skipif(not CHART_FOLDER, reason="ACMSERVE_STACK_CHART names no folder with the chart's schema")
def test_values_fit_the_chart() -> None:
    schema = json.loads((Path(CHART_FOLDER) / "values.schema.json").read_text(encoding="utf-8"))
    defaults = yaml.safe_load((Path(CHART_FOLDER) / "values.yaml").read_text(encoding="utf-8"))
    ours = read_yaml(CHART)
    jsonschema.validate(ours, schema)
    assert list(find_unknown_values(ours, schema, defaults)) == []
    ours["routerSpec"]["sesionKey"] = ours["servingEngineSpec"].pop("strategy")
    assert list(find_unknown_values(ours, schema, defaults)) == ["routerSpec.sesionKey"]


def find_unknown_values(ours: Any, schema: Any, defaults: Any, place: str = "") -> Iterator[str]:
    """Keys that neither the chart's schema nor its default values have. A chart ignores such keys."""
    if isinstance(ours, dict):
        if defaults == {}:
            return
        known = (schema or {}).get("properties", {})
        listed = defaults if isinstance(defaults, dict) else {}
        for key, value in ours.items():
            name = f"{place}{key}"
            if key not in known and key not in listed:
                yield name
            else:
                yield from find_unknown_values(value, known.get(key), listed.get(key), f"{name}.")
    elif isinstance(ours, list) and defaults != []:
        first = defaults[0] if isinstance(defaults, list) else None
        for value in ours:
            yield from find_unknown_values(value, (schema or {}).get("items"), first, place)
