"""The rule of `auto` as a digest, so that a result tells which rule it judged.

A rule is fixed before held-out cases are run. The digest is over the statements of its modules: text for people does
not count, numbers do.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import acmserve.plan

MODULES = ("auto", "ngrams", "repair")


def rule_digest(folder: Path | None = None) -> str:
    """16 hex digits. `folder` is that of the modules, by default the product's."""
    digest = hashlib.sha256()
    for name in MODULES:
        source = ((folder or Path(acmserve.plan.__path__[0])) / f"{name}.py").read_text(encoding="utf-8")
        digest.update(ast.dump(_without_texts(ast.parse(source))).encode())
    return digest.hexdigest()[:16]


def _without_texts(tree: ast.Module) -> ast.Module:
    """The tree without strings that stand alone: docstrings, and what is said of a constant."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(body := getattr(node, name, None), list):
                setattr(node, name, [one for one in body if not _is_text(one)] or [ast.Pass()] * bool(body))
    return tree


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
