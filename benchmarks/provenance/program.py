"""Whether two texts of a Python file are one program: docstrings and comments compute nothing.

So words may be mended behind a measurement. Decision: docstrings of `acmserve` reach no model. No prompt, no schema of
a tool and no kernel is made of one.
"""

from __future__ import annotations

import ast


def is_same_program(before: str, now: str) -> bool:
    """By their syntax trees without docstrings. A text that is no Python is another program unless it is the same."""
    try:
        return before == now or _program_of(before) == _program_of(now)
    except SyntaxError:
        return False


def _program_of(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    """A text that stands alone. Behind a constant it is that one's docstring."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
