"""One exception tree: whatever acmserve raises of its own derives from `AcmError`."""

from __future__ import annotations

import ast
from pathlib import Path

from acmserve import errors

ROOT = Path(__file__).parent.parent
FOLDERS = ("acmserve", "kernels/ops", "benchmarks")
TREE = {name for name, value in vars(errors).items() if isinstance(value, type)}


def is_foreign_exception(base: str) -> bool:
    return base == "BaseException" or (base.endswith(("Error", "Exception", "Warning")) and base not in TREE)


def test_every_exception_derives_from_the_root() -> None:
    assert all(issubclass(vars(errors)[name], errors.AcmError) for name in TREE)


def test_no_exception_stands_beside_the_tree() -> None:
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name != "AcmError":
                bases = {ast.unparse(base) for base in node.bases}
                assert bases & TREE or not any(map(is_foreign_exception, bases)), f"{file}: {node.name}"
