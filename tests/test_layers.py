"""The import rule as one table, and what a room may look like: no circle, no upward import, no crowded folder.

An import counts wherever it stands: at the top of a file, in a function, or under `TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pytest

from tests.support.docs.syntax import statements

ROOT = Path(__file__).parent.parent
MAX_FILES, MAX_LINES, MAX_FUNCTION_LINES = 15, 320, 60
PACKAGES = {"acmserve": "acmserve", "acmserve.kernels": "kernels/ops", "acmserve.bench": "benchmarks"}

LAYERS = (
    "errors extras seams validation _native",
    "models",
    "context.schema context.transcript",
    "context.alignment context.accounting",
    "context.episodes context.session context.maps",
    "context.eviction context.edits",
    "context.tools context.precompute context.anthropic",
    "context.storage",
    "plan",
    "kernels.rope kernels.runs kernels.recurrent",
    "kernels.layout kernels.layer_group kernels.layouts kernels.movers kernels.stored_type",
    "kernels.dispatch",
    "engine.config engine.groups",
    "engine.vllm",
    "engine.requests engine.worker",
    "engine.scheduling",
    "engine.plugin",
    "server.vllm server.http server.inspector",
    "server.identity server.speculation",
    "server.options server.exchange server.budget",
    "server.models",
    "server.maps",
    "server.sessions",
    "server.precompute",
    "server.context",
    "server.chat server.routes",
    "server.messages",
    "server.responses",
    "server.siblings",
    "server.app",
    "training",
    "client",
    "top",
    "cli",
    "bench",
)
"""Rooms from the lowest to the highest. A room imports from its own line and from those above it in this table."""

STRANGERS = {
    "context": {"plan", "kernels", "engine", "server", "cli", "bench", "models"},
    "plan": {"context", "kernels", "engine", "server", "cli", "bench", "models"},
    "kernels": {"context", "plan", "engine", "server", "cli", "bench", "models"},
    "engine": {"context", "server", "cli", "bench", "models"},
    "server": {"kernels", "cli", "bench", "engine.vllm", "engine.requests", "engine.worker", "engine.scheduling"},
    "models": {"context", "plan", "kernels", "engine", "server", "cli", "bench"},
    "training": {"context", "plan", "kernels", "engine", "server", "cli", "bench", "models"},
    "client": {room for row in LAYERS for room in row.split()} - {"client"},
    "top": {room for row in LAYERS for room in row.split()} - {"client", "top"},
}
"""What a layer must not know, although it lies lower. The command finds benchmarks by reading their folder.

The client is installed where nothing else of the product works. It is so high that the command alone imports it.
"""

FOREIGN = {
    "vllm": ("engine.vllm", "engine.plugin", "engine.worker", "server.vllm", "server.app", "cli", "bench"),
    "torch": ("kernels", "engine", "models", "training.losses", "cli", "bench"),
    "fastapi": ("server", "bench"),
    "starlette": ("server", "bench"),
    "transformers": ("server.models", "models", "cli", "bench", "engine.worker"),
    "langchain": ("client.adapters",),
    "langgraph": ("client.adapters",),
    "agents": ("client.adapters",),
    "litellm": ("client.adapters",),
    "rich": ("top", "cli.top"),
}
"""A library, and the only rooms that may import it."""

LONG_FUNCTIONS = {
    "kernels.movers.triton.move_kernel": "A split of what Triton compiles as one kernel is checked on a card alone.",
}
"""A function that may be longer than the others, and why. It leaves the table when it is not."""


@cache
def modules() -> dict[str, Path]:
    """Import name -> file, for every Python file of the product."""
    found = {}
    for name, folder in PACKAGES.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            if name == "acmserve" and parts[0] in {"kernels", "bench"}:
                continue
            found[".".join([name, *(part for part in parts if part != "__init__")])] = file
    return found


@dataclass(frozen=True, slots=True)
class Facts:
    """What a module imports by full name, its classes, and the lines of each function, inner ones included."""

    imports: frozenset[str]
    classes: tuple[str, ...]
    functions: tuple[tuple[str, int], ...]


@cache
def facts(name: str) -> Facts:
    """Each module is read once. Trees that were kept would be looked through for garbage again and again."""
    found, functions = set(), []
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            functions.append((node.name, node.end_lineno - node.lineno + 1))
    classes = tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return Facts(frozenset(found), classes, tuple(functions))


def imports(name: str) -> frozenset[str]:
    """Every module or name that a module imports, by its full name."""
    return facts(name).imports


@cache
def ours(name: str) -> frozenset[str]:
    """The modules of the product that a module imports. A package is imported where nothing in it is named."""
    found = set()
    for target in imports(name):
        for candidate in (target, target.rpartition(".")[0]):
            if candidate in modules() or candidate == "acmserve._native":
                found.add(candidate)
                break
    return frozenset(found - {name})


def room(module: str) -> str:
    """`acmserve.context.eviction.cwl` -> `context.eviction.cwl`."""
    return module.removeprefix("acmserve").removeprefix(".")


def lies_in(module: str, place: str) -> bool:
    return room(module) == place or room(module).startswith(f"{place}.")


@cache
def height(module: str) -> int | None:
    """The row of a module in `LAYERS`, or None for the packages themselves and the roots."""
    rows = [row for row, places in enumerate(LAYERS) if any(lies_in(module, place) for place in places.split())]
    return rows[0] if rows else None


def folders() -> Iterator[Path]:
    for root in ("acmserve", "kernels/ops", "benchmarks", "tests"):
        for folder in [ROOT / root, *sorted((ROOT / root).rglob("*/"))]:
            if any(folder.glob("*.py")) and "__pycache__" not in folder.parts:
                yield folder


def test_every_room_has_its_place_in_the_table() -> None:
    homeless = [name for name in modules() if height(name) is None and modules()[name].name != "__init__.py"]
    assert homeless == ["acmserve.__main__"]


def test_nothing_imports_upwards() -> None:
    upwards = [
        f"{room(name)} -> {room(target)}"
        for name in modules()
        for target in ours(name)
        if (here := height(name)) is not None and (there := height(target)) is not None and there > here
        if not (lies_in(name, "cli") and lies_in(target, "bench"))
    ]
    assert sorted(upwards) == []


@pytest.mark.parametrize("layer", STRANGERS)
def test_a_layer_does_not_know_its_strangers(layer: str) -> None:
    met = [
        f"{room(name)} -> {room(target)}"
        for name in modules()
        if lies_in(name, layer)
        for target in ours(name)
        if any(lies_in(target, stranger) for stranger in STRANGERS[layer])
    ]
    assert sorted(met) == []


@pytest.mark.parametrize("library", FOREIGN)
def test_a_library_is_imported_where_it_belongs(library: str) -> None:
    outside = [
        room(name)
        for name in modules()
        if any(target.split(".")[0] == library for target in imports(name))
        if not any(lies_in(name, place) for place in FOREIGN[library])
    ]
    assert sorted(outside) == []


@pytest.mark.parametrize(
    ("gate", "imported"),
    [
        (test_nothing_imports_upwards, "acmserve.server.app.x"),
        (partial(test_a_layer_does_not_know_its_strangers, "context"), "acmserve.server.app.x"),
        (partial(test_a_library_is_imported_where_it_belongs, "torch"), "torch.nn"),
    ],
    ids=["upwards", "stranger", "library"],
)
def test_a_wrong_import_is_found(gate: Callable[[], None], imported: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controls, on one file of the context."""
    monkeypatch.setattr(f"{__name__}.modules", lambda: {"acmserve.context.schema.x": Path()})
    for name in ("ours", "imports"):
        monkeypatch.setattr(f"{__name__}.{name}", lambda _: frozenset({imported}))
    with pytest.raises(AssertionError):
        gate()


def test_no_circle_between_files() -> None:
    assert circles({name: ours(name) for name in modules()}) == []


def test_a_circle_is_found() -> None:
    graph = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a"), "d": frozenset("a")}
    assert circles(graph) == [["a", "b", "c"]]


def circles(graph: dict[str, frozenset[str]]) -> list[list[str]]:
    """Groups of modules of which each reaches every other: components of more than one, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def test_no_class_name_means_two_things() -> None:
    places = defaultdict(list)
    for name in modules():
        for one in facts(name).classes:
            places[one].append(room(name))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_file_is_too_long() -> None:
    files = [file for folder in folders() if not folder.is_relative_to(ROOT / "tests") for file in folder.glob("*.py")]
    lengths = {str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {file: length for file, length in lengths.items() if length > MAX_LINES} == {}


def test_no_function_is_too_long() -> None:
    """From `def` to the last line, docstring and inner functions included, decorators not."""
    long = {
        f"{room(name)}.{function}"
        for name in modules()
        for function, num_lines in facts(name).functions
        if num_lines > MAX_FUNCTION_LINES
    }
    assert long == LONG_FUNCTIONS.keys()


def test_no_folder_is_crowded() -> None:
    sizes = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders()}
    assert {folder: size for folder, size in sizes.items() if size > MAX_FILES} == {}


def test_no_file_is_told_apart_by_the_name_of_its_folder() -> None:
    files = [file for folder in folders() for file in folder.glob("*.py")]
    assert [str(file.relative_to(ROOT)) for file in files if file.name.startswith(f"{file.parent.name}_")] == []


def test_no_package_named_kernels_at_the_top() -> None:
    """It would shadow Hugging Face's `kernels` and break transformers when run from the repository root."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
