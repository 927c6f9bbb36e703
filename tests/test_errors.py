"""One exception tree: whatever acmserve raises of its own derives from `AcmError`. The client, apart, has its own."""

from __future__ import annotations

import ast
from pathlib import Path

from acmserve import errors
from acmserve.client import errors as of_client

ROOT = Path(__file__).parent.parent
FOLDERS = ("acmserve", "kernels/ops", "benchmarks")
ROOTS = {errors: errors.AcmError, of_client: of_client.AcmClientError}
KINDS = [
    (value, root)
    for module, root in ROOTS.items()
    for value in vars(module).values()
    if isinstance(value, type) and value.__module__ == module.__name__
]
TREE = {kind.__name__ for kind, _ in KINDS}


def is_foreign_exception(base: str) -> bool:
    return base == "BaseException" or (base.endswith(("Error", "Exception", "Warning")) and base not in TREE)


def test_every_exception_derives_from_the_root() -> None:
    assert len(KINDS) > 20
    assert all(issubclass(kind, root) for kind, root in KINDS)


def test_no_exception_stands_beside_the_tree() -> None:
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name not in {"AcmError", "AcmClientError"}:
                bases = {ast.unparse(base) for base in node.bases}
                assert bases & TREE or not any(map(is_foreign_exception, bases)), f"{file}: {node.name}"
