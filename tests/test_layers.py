"""The layers import downwards only, and vLLM's private parts are reached from one file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "acmserve/plan": ("vllm", "torch", "acmserve.engine", "acmserve.server", "acmserve.kernels", "acmserve.context"),
    "acmserve/context": (
        "vllm",
        "torch",
        "fastapi",
        "starlette",
        "transformers",
        "acmserve.engine",
        "acmserve.server",
        "acmserve.cli",
        "acmserve.kernels",
        "acmserve.plan",
    ),
    "acmserve/engine": ("fastapi", "starlette", "acmserve.server", "acmserve.context", "acmserve.cli"),
    "kernels/ops": ("vllm", "acmserve.plan", "acmserve.engine", "acmserve.server", "acmserve.cli"),
    "acmserve/server": ("acmserve.kernels", "acmserve.cli", "vllm.v1.core"),
}
COMPAT = "acmserve/engine/vllm/compat.py"


def imports(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_a_layer_imports_only_what_lies_below(layer: str) -> None:
    files = sorted((ROOT / layer).rglob("*.py"))
    assert files, f"{layer} is empty"
    for file in files:
        found = [name for name in imports(file) if name.startswith(FORBIDDEN[layer])]
        assert not found, f"{file.relative_to(ROOT)} imports {found}"


def test_only_compat_changes_vllm() -> None:
    """Nobody else assigns into vLLM's classes or overrides its scheduler."""
    for file in sorted((ROOT / "acmserve").rglob("*.py")):
        if str(file.relative_to(ROOT)) == COMPAT:
            continue
        text = file.read_text()
        assert "_block_hasher" not in text.replace("`Request._block_hasher`", ""), file
        assert "vllm.v1.core.sched.scheduler import" not in text, file
        assert "setattr(" not in text, file


def test_no_package_named_kernels_at_the_top() -> None:
    """It would shadow Hugging Face's `kernels` and break transformers when run from the repository root."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
