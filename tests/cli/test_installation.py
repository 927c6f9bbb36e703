"""An installation that cannot work is told in one line with its remedy, whatever the command."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from acmserve.cli import COMMANDS, main
from acmserve.cli.command import Command
from acmserve.cli.installation import missing_package

ROOT = Path(__file__).parent.parent.parent
BROKEN = 'raise RuntimeError("operator torchvision::nms does not exist")'
REMEDY = "pip uninstall -y torchvision torchaudio torchcodec"
TORCH = version("torch")
LINE = f"torchvision 0.28.0+other does not fit torch {TORCH} (operator torchvision::nms does not exist)"


class Installed:
    """Puts a torchvision in front of all others."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch

    def torchvision(self, label: str, source: str) -> None:
        (self._folder / "torchvision.py").write_text(source, encoding="utf-8")
        metadata = self._folder / "torchvision-0.28.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: torchvision\nVersion: 0.28.0{label}\n", encoding="utf-8")
        self._monkeypatch.delitem(sys.modules, "torchvision", raising=False)
        self._monkeypatch.syspath_prepend(str(self._folder))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    yield Installed(tmp_path, monkeypatch)
    # What a test imported is forgotten. pytest puts back a module of the environment after this line.
    sys.modules.pop("torchvision", None)


STOPPED = [
    ["serve", "smollm2"],
    ["demo"],
    ["model", "smollm2"],
    ["calibrate", "smollm2"],
    ["bench"],
    ["bench", "edit", "--quick"],
    ["eval", "a"],
    ["export", "a"],
    ["top"],
]


@pytest.mark.parametrize("command", STOPPED)
def test_a_torchvision_of_another_build_stops_every_command_in_one_line(
    command: list[str], installed: Installed, capsys: pytest.CaptureFixture[str]
) -> None:
    installed.torchvision("+other", BROKEN)
    assert main(command) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"acmserve: error: {LINE}; acmserve needs no torchvision: {REMEDY}\n"


def test_no_command_is_left_out() -> None:
    """The doctor has the same check among its findings."""
    assert {*(command[0] for command in STOPPED), "doctor"} == set(COMMANDS)


def test_the_doctor_reports_it_as_its_finding(installed: Installed, capsys: pytest.CaptureFixture[str]) -> None:
    installed.torchvision("+other", BROKEN)
    assert main(["doctor", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["topic"], finding["status"]) == ("torch", "broken")
    assert finding["detail"].startswith(LINE)
    assert finding["detail"].endswith(REMEDY)


def test_a_torchvision_that_can_be_imported_is_welcome(
    installed: Installed, capsys: pytest.CaptureFixture[str]
) -> None:
    installed.torchvision("+other", "")
    assert main(["bench"]) == 0
    assert "edit" in capsys.readouterr().out
    assert "torchvision" in sys.modules


def test_a_torchvision_with_the_label_of_torch_is_not_even_imported(installed: Installed) -> None:
    installed.torchvision("".join(TORCH.partition("+")[1:]), BROKEN)
    assert main(["bench"]) == 0


@pytest.mark.parametrize("name", ["vllm", "psutil"])
def test_a_package_that_is_not_there_is_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: list[str]) -> int:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setitem(COMMANDS, "serve", Command("", run))
    assert main(["serve"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"acmserve: error: the package {name!r} is not installed; in a checkout `make setup`")
    assert shown.count("\n") == 1
    assert "pip install '.[cpu,bench]' --extra-index-url https://" in shown
    assert shown.endswith("or pip install '.[gpu,bench]'\n")


def test_no_message_installs_acmserve_from_an_index() -> None:
    """It is on none: whoever obeyed was told that there is no such package. Extras that are named exist."""
    sources = [path for folder in ("acmserve", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(sources) > 300
    wrong = [path for path in sources if re.search(r"pip install '?acmserve|'acmserve\[", path.read_text("utf-8"))]
    assert wrong == []
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = re.findall(r"install_extras\(([^)]*)\)", "".join(path.read_text("utf-8") for path in sources))
    extras = {extra.strip("'\"") for names in named for extra in names.split(", ") if not extra.startswith("*")}
    assert {"cpu", "gpu", "bench", "semantic"} <= extras <= declared.keys()


def test_a_module_that_vllm_has_lost_is_no_missing_package() -> None:
    for name in ("vllm.entrypoints.gone", "acmserve", None):
        assert missing_package(ModuleNotFoundError("gone", name=name)) is None
