"""Statements of Python code. `ast.walk` looks at each expression, too, which takes ten times as long."""

from __future__ import annotations

import ast

_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


def statements(tree: ast.Module) -> list[ast.AST]:
    """The module, its statements, and what holds some: functions, handlers, cases. No expression holds one."""
    found: list[ast.AST] = [tree]
    for node in found:
        for block in _BLOCKS:
            found += getattr(node, block, ())
    return found
