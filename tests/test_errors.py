"""One exception tree: whatever acmserve raises of its own derives from `AcmError`. The client, apart, has its own."""

from __future__ import annotations

import ast
from pathlib import Path

from acmserve import errors
from acmserve.client import errors as of_client
from tests.support.docs.syntax import statements

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


def beside_the_tree(source: str) -> list[str]:
    """Exceptions that do not derive from one of the tree."""
    found = []
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name not in {"AcmError", "AcmClientError"}:
            bases = {ast.unparse(base) for base in node.bases}
            found += [node.name] if not bases & TREE and any(map(is_foreign_exception, bases)) else []
    return found


def test_every_exception_derives_from_the_root() -> None:
    assert len(KINDS) > 20
    assert all(issubclass(kind, root) for kind, root in KINDS)


def test_no_exception_stands_beside_the_tree() -> None:
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    assert files
    found = {str(file): beside_the_tree(file.read_text(encoding="utf-8")) for file in files}
    assert {file: names for file, names in found.items() if names} == {}
    wrong = "class A(ValueError): ...\nclass B(AcmError, ValueError): ...\nclass C(dict): ..."
    assert beside_the_tree(wrong) == ["A"], "the control"
