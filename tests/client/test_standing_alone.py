"""The client loads without an engine, and without anything but httpx."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_IMPORT = {"__main__", "__mp_main__", "_distutils_hack", "_virtualenv", "sitecustomize", "usercustomize"}
"""What Python has without an import of ours."""


def loaded(code: str) -> set[str]:
    """Top-level modules beside Python's own, and those of acmserve in full."""
    told = "import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {told}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = done.stdout.split()
    ours = {name for name in names if name.partition(".")[0] == "acmserve"}
    foreign = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - NO_IMPORT - {"acmserve"}
    return ours | {name for name in foreign if "editable" not in name}


def test_the_client_loads_httpx_and_itself() -> None:
    names = loaded("import acmserve.client")
    assert {name for name in names if "." not in name} - loaded("import httpx") == {"acmserve"}
    assert {name for name in names if name.startswith("acmserve.") and not name.startswith("acmserve.client")} == set()


def test_the_monitor_loads_what_the_wheel_brings_alone() -> None:
    """Neither vLLM nor torch, and Rich only where something is drawn."""
    command = loaded("from acmserve.cli import main, COMMANDS")
    screen = loaded("import acmserve.top.screen, acmserve.top.problems, acmserve.client.server")
    assert "acmserve.cli.top" in command
    assert {"rich", "httpx", "vllm", "torch"}.isdisjoint(command)
    assert {name for name in screen if "." not in name} - loaded("import httpx, rich.live, rich.table") == {"acmserve"}


def test_the_engine_is_there_for_those_who_ask() -> None:
    """The control: what is looked for would be seen."""
    names = loaded("import acmserve; acmserve.engine_config()")
    assert {"numpy", "acmserve.engine.config"} <= names


def test_a_wrong_name_is_an_error() -> None:
    import acmserve

    with pytest.raises(AttributeError, match="engine_confg"):
        acmserve.engine_confg  # noqa: B018


@pytest.mark.parametrize(("folder", "limit"), [("acmserve/client/adapters", 100), ("examples", 120)])
def test_adapters_and_examples_are_a_page_each(folder: str, limit: int) -> None:
    lengths = {file.name: len(file.read_text().splitlines()) for file in (ROOT / folder).glob("*.py")}
    assert len(lengths) > 3
    assert {name: length for name, length in lengths.items() if length >= limit} == {}
