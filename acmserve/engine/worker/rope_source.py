"""Reads how an attention module uses its rotary embedding, in the source of its `forward`.

A rotary embedding beside an attention layer does not prove that the cached keys carry its rotation. Some models apply
it to some layers only. Some change the keys behind it (a norm with weights does not commute with a rotation). So the
code itself is asked. Only this shape is accepted. Anything else is refused rather than guessed:

    def forward(self, positions, ...):
        ...
        q, k = self.rotary_emb(positions, q, k)      once; plain, or under one `if self.<attribute>:`
        ...                                          k may be reshaped, not changed
        self.attn(q, k, v)

Some fifty attention classes of vLLM 0.32 have it. Knows Python syntax only: no frequencies, no modules.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from acmserve.errors import MoveRefused

SHAPE_ONLY = frozenset({"view", "reshape", "contiguous", "flatten", "unflatten"})


@dataclass(frozen=True, slots=True)
class RopeUse:
    """`forward` applies `self.<attribute>` to the keys. If `condition` is set, only where `self.<condition>` holds."""

    attribute: str
    condition: str | None


def rope_use(attention_class: type, attention_attribute: str) -> RopeUse:
    """How `attention_class.forward` rotates the keys that it hands to `self.<attention_attribute>`.

    Raises MoveRefused, naming the class, where the source is not there or does not have the accepted shape.
    """
    name = attention_class.__name__
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(attention_class.forward)))  # type: ignore[attr-defined]
    except (AttributeError, OSError, TypeError, SyntaxError) as error:
        raise MoveRefused(f"positions: the source of {name}.forward cannot be read") from error
    function = tree.body[0]
    if not isinstance(function, ast.FunctionDef):
        raise MoveRefused(f"positions: {name}.forward is not a plain function")
    return _Forward(name, function).rope_use(attention_attribute)


class _Forward:
    """One `forward`, as syntax."""

    def __init__(self, name: str, function: ast.FunctionDef) -> None:
        self._name, self._function = name, function
        self._parameters = {argument.arg for argument in function.args.args}

    def rope_use(self, attention_attribute: str) -> RopeUse:
        attends = self._calls(lambda attribute: attribute == attention_attribute)
        rotates = self._calls(lambda attribute: "rope" in attribute or "rotary" in attribute)
        if not rotates:
            raise MoveRefused(f"positions: {self._name} applies no rotary embedding to its keys")
        if len(rotates) != 1 or len(attends) != 1:
            raise self._refusal(
                f"calls its rotary embedding {len(rotates)} times and its attention {len(attends)} times"
            )
        (rotate, attribute), (attend, _) = rotates[0], attends[0]
        key = self._key_of(attend)
        condition = self._place(rotate, key)
        self._check_unchanged(key, rotate, attend)
        return RopeUse(attribute, condition)

    def _calls(self, wanted: Callable[[str], bool]) -> list[tuple[ast.Call, str]]:
        found = [(node, _self_attribute(node.func)) for node in ast.walk(self._function) if isinstance(node, ast.Call)]
        return [(node, attribute) for node, attribute in found if attribute and wanted(attribute)]

    def _key_of(self, attend: ast.Call) -> str:
        key = _name(attend.args[1]) if len(attend.args) >= 3 else None
        if key is None:
            raise self._refusal("hands its attention an expression as keys")
        return key

    def _place(self, rotate: ast.Call, key: str) -> str | None:
        """Find `q, k = self.rope(positions, q, k)` in the body, or one `if` deep. Return the attribute tested there."""
        for statement in self._function.body:
            if self._is_rotation(statement, rotate, key):
                return None
            if isinstance(statement, ast.If) and any(self._is_rotation(s, rotate, key) for s in statement.body):
                tested = None if statement.orelse else _tested(statement.test)
                if tested is not None:
                    return tested
        raise self._refusal("applies its rotary embedding under a condition or in another form")

    def _is_rotation(self, statement: ast.stmt, rotate: ast.Call, key: str) -> bool:
        if not isinstance(statement, ast.Assign) or statement.value is not rotate or rotate.keywords:
            return False
        target, arguments = statement.targets[0], rotate.args
        positions = arguments[0].id if arguments and isinstance(arguments[0], ast.Name) else None
        return (
            isinstance(target, ast.Tuple)
            and len(target.elts) == 2
            and len(arguments) == 3
            and [_name(target.elts[1]), _name(arguments[2])] == [key, key]
            and positions in self._parameters
            and not any(positions in _assigned(node) for node in ast.walk(self._function))
        )

    def _check_unchanged(self, key: str, rotate: ast.Call, attend: ast.Call) -> None:
        """Between the two calls the keys are neither bound anew, nor changed in place, nor handed to anybody."""
        for node in ast.walk(self._function):
            line = getattr(node, "lineno", 0)
            if line <= (rotate.end_lineno or rotate.lineno) or line > attend.lineno:
                continue
            changed = key in _assigned(node) and not _keeps_values(node, key)
            handed_out = isinstance(node, ast.Call) and node is not attend and _takes(node, key)
            if changed or handed_out:
                raise self._refusal("changes its keys behind the rotary embedding")

    def _refusal(self, what: str) -> MoveRefused:
        return MoveRefused(f"positions: {self._name}.forward {what}")


def _self_attribute(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute) and _name(node.value) == "self":
        return node.attr
    return None


def _name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _tested(test: ast.expr) -> str | None:
    """The attribute x of the conditions `self.x` and `self.x is not None`."""
    if isinstance(test, ast.Compare):
        none = ast.unparse(test).endswith(" is not None") and len(test.ops) == 1
        return _self_attribute(test.left) if none else None
    return _self_attribute(test)


def _assigned(node: ast.AST) -> set[str]:
    """Names that this statement binds or changes in place."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For):
        targets = [node.target]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        targets = [node.value.func.value]
    return {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}


def _takes(call: ast.Call, name: str) -> bool:
    """The call has this variable among its arguments."""
    return any(_name(argument) == name for argument in [*call.args, *(keyword.value for keyword in call.keywords)])


def _keeps_values(node: ast.AST, key: str) -> bool:
    """`k = k.view(...)` and chains of such calls."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or _name(node.targets[0]) != key:
        return False
    value = node.value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in SHAPE_ONLY:
        value = value.func.value
    return _name(value) == key
