"""What of a Python text computes something: its syntax tree without docstrings and comments, which compute nothing.

So words may be mended behind a measurement. Decision: docstrings of `acmserve` reach no model. No prompt, no schema of
a tool and no kernel is made of one.
"""

from __future__ import annotations

import ast
from functools import cache


@cache
def is_same_program(before: str, now: str) -> bool:
    """Whether two texts compute the same. A text that is no Python is another program unless it is the same."""
    try:
        return before == now or program_of(before) == program_of(now)
    except SyntaxError:
        return False


def program_of(text: str) -> str:
    """The tree in words, without strings that stand alone: docstrings, and what is said of a constant."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(body := getattr(node, name, None), list):
                setattr(node, name, [one for one in body if not _is_text(one)] or [ast.Pass()] * bool(body))
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
