"""Holds a handle against its asynchronous twin: names, parameters, and documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any


def check_twins(one: type, other: type, plain: Collection[str] = ()) -> None:
    """Results differ by the name of the class alone. `plain` are methods that nobody awaits."""
    first, second = _public(one), _public(other)
    assert set(first) == set(second)
    for name, method in first.items():
        twin = second[name]
        assert list(inspect.signature(method).parameters.items()) == list(inspect.signature(twin).parameters.items())
        assert method.__doc__ == twin.__doc__
        assert inspect.iscoroutinefunction(twin) == (name not in plain)


def _public(kind: type) -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for base in kind.__mro__
        for name, value in vars(base).items()
        if inspect.isfunction(value) and name[0] != "_"
    }
