"""Every package that a source imports is one that pip installs for it: a dependency, an extra, or a part of vLLM."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest

from tests.support.docs.syntax import statements

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

WITH_VLLM = {
    "fastapi",
    "jinja2",
    "openai",
    "pillow",
    "prometheus-client",
    "pydantic",
    "pydantic-core",
    "safetensors",
    "starlette",
    "tokenizers",
    "torch",
    "torchvision",
    "transformers",
    "triton",
    "uvicorn",
    "uvloop",
}
"""What vLLM brings. acmserve asks for none of them, because vLLM knows which versions fit."""

ENGINE = ("cpu", "gpu", "semantic")
ADAPTERS = "acmserve/client/adapters"
FOLDERS = {
    "acmserve": ENGINE,
    ADAPTERS: ("langgraph", "agents", "litellm"),
    "examples": ("langgraph", "agents", "litellm"),
    "kernels": ENGINE,
    "benchmarks": (*ENGINE, "bench", "gpu-check"),
    "tests": (*ENGINE, "bench", "dev"),
}
"""A folder, and the extras that its sources may count on."""

OURS = {"acmserve", "tests"}
STRANGERS = {ROOT / "tests" / "support" / room / "programs" for room in ("client", "clients")}
"""Agents of other frameworks, which `make clients` and `make examples` run in environments of their own."""
DISTRIBUTIONS = {
    "xdist": "pytest-xdist",
    "PIL": "pillow",
    "agents": "openai-agents",
    "markdown_it": "markdown-it-py",
    "langchain_core": "langchain",
    "langchain_openai": "langchain",
    "yaml": "pyyaml",
}
"""Import names that no distribution has, or that come with another one."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of(requirements: Iterable[str]) -> set[str]:
    """`["fastapi[standard]>=1; python_version > '3'"]` -> `{"fastapi"}`."""
    return {normal(found[0]) for line in requirements if (found := re.match(r"[A-Za-z0-9._-]+", line))}


def imported(source: str) -> Iterator[str]:
    """Top-level names of absolute imports wherever they stand, and of `import_module` with a literal."""
    tree = ast.parse(source)
    for node in ast.walk(tree) if "import_module" in source else statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module":
            literals = (str(one.value) for one in node.args if isinstance(one, ast.Constant))
            yield from (name.partition(".")[0] for name in literals)


def undeclared(source: str, declared: set[str]) -> set[str]:
    foreign = set(imported(source)) - OURS - sys.stdlib_module_names
    return {name for name in foreign if normal(DISTRIBUTIONS.get(name, name)) not in declared | WITH_VLLM}


def declared_for(folder: str) -> set[str]:
    return names_of(PROJECT["dependencies"]).union(*(names_of(EXTRAS[extra]) for extra in FOLDERS[folder]))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_import_is_declared(folder: str) -> None:
    found = (path for path in (ROOT / folder).rglob("*.py") if folder != "acmserve" or not _is_elsewhere(path))
    files = sorted(path for path in found if STRANGERS.isdisjoint(path.parents))
    assert len(files) > 3
    missing = {
        path.relative_to(ROOT).as_posix(): names
        for path in files
        if (names := undeclared(path.read_text(encoding="utf-8"), declared_for(folder)))
    }
    assert missing == {}


def _is_elsewhere(path: Path) -> bool:
    """Whether a file stands behind a link, or among the adapters."""
    resolved = path.resolve()
    return not resolved.is_relative_to((ROOT / "acmserve").resolve()) or resolved.is_relative_to(ROOT / ADAPTERS)


@pytest.mark.parametrize(
    "source",
    [
        "import tabulate",
        "def late():\n    from tabulate.core import table",
        "if TYPE_CHECKING:\n    import tabulate as t",
        "importlib.import_module('tabulate')",
    ],
)
def test_an_undeclared_import_is_found(source: str) -> None:
    assert undeclared(f"import os, torch\nimport httpx\nfrom . import near\n{source}\n", declared_for("acmserve")) == {
        "tabulate"
    }
    assert undeclared(source, declared_for("acmserve") | {"tabulate"}) == set()


def test_an_extra_counts_only_where_it_may() -> None:
    for source, allowed in (("import matplotlib", {"benchmarks", "tests"}), ("import hypothesis", {"tests"})):
        assert {folder for folder in FOLDERS if not undeclared(source, declared_for(folder))} == allowed


def asked_by(name: str, extras: Collection[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """What an installed package with these extras requires, each with the extras that it asks for."""
    try:
        lines = requires(name) or ()
    except PackageNotFoundError:
        return
    for line in lines:
        (wanted,) = names_of([line])
        if (extra := re.search(r"extra == ['\"]([^'\"]+)", line)) is None or extra[1] in extras:
            named = re.match(r"[^;\[]*\[([^\]]*)\]", line)
            yield wanted, frozenset(re.split(r"\s*,\s*", named[1])) if named else frozenset()


def test_what_is_said_to_come_with_vllm_does() -> None:
    """By the metadata of what is installed: what vLLM requires, and what that requires."""
    (engine,) = (line.partition("==")[0] for line in EXTRAS["cpu"] if line.startswith("vllm"))
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [(normal(engine), frozenset[str]())]
    while waiting:
        asked = set(asked_by(*waiting.pop()))
        waiting += asked - found
        found |= asked
    assert WITH_VLLM - {name for name, _ in found} == set()
