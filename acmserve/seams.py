"""A seam is a private part of another library that acmserve relies on. The probe says which do not fit.

A method is compared by its leading parameters, an attribute by its presence. An attribute of an object counts as
present if its class has the name, annotates it, or assigns `self.NAME` in `__init__`.

Knows no library: the tables stand in `engine/vllm/seams.py` and `server/vllm/seams.py`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, is_dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Seam:
    """`place` is `module:Class.name` or `module:name`. `parameters` are None for an attribute or a class.

    `elsewhere` are the places of the same thing in other versions of the library.
    """

    place: str
    parameters: tuple[str, ...] | None = None
    elsewhere: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What a person reads: `Class.name`."""
        return self.place.partition(":")[2]


def methods(owner: str, **parameters: str) -> tuple[Seam, ...]:
    """Seams of a class: each method with its leading parameters, separated by spaces."""
    return tuple(Seam(f"{owner}.{name}", tuple(found.split())) for name, found in parameters.items())


def attributes(owner: str, names: str) -> tuple[Seam, ...]:
    """Seams of a class: attributes, separated by spaces."""
    return tuple(Seam(f"{owner}.{name}") for name in names.split())


def place_of(seam: Seam) -> str:
    """The first place of `seam` that is installed. Its own place where none is."""
    if not seam.elsewhere:
        return seam.place
    return next((place for place in (seam.place, *seam.elsewhere) if _has_name(place)), seam.place)


def load(seam: Seam) -> Any:
    """What stands at a seam, for a name that versions keep in different modules."""
    return _at(place_of(seam))


def broken_seams(seams: Iterable[Seam]) -> list[str]:
    """What of `seams` does not fit what is installed, one line each: the name, and what was found in its place."""
    return [f"{seam.name} {problem}" for seam in seams if (problem := _problem(seam)) is not None]


def _problem(seam: Seam) -> str | None:
    module_name, _, path = place_of(seam).partition(":")
    owner_name, _, name = path.rpartition(".")
    try:
        owner: Any = importlib.import_module(module_name)
    except ImportError as error:
        return f"is gone ({error})"
    if owner_name:
        owner = getattr(owner, owner_name, None)
        if owner is None:
            return f"is gone with {owner_name}"
    if seam.parameters is None:
        return None if _has_attribute(owner, name) else "is gone"
    function = getattr(owner, name, None)
    if not callable(function):
        return "is gone"
    found = tuple(inspect.signature(function).parameters)
    if found[: len(seam.parameters)] != seam.parameters:
        return f"has the parameters {found}, expected {seam.parameters}"
    return None


def _has_name(place: str) -> bool:
    try:
        _at(place)
    except (ImportError, AttributeError):
        return False
    return True


def _at(place: str) -> Any:
    module, _, path = place.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def _has_attribute(owner: Any, name: str) -> bool:
    if hasattr(owner, name) or not isinstance(owner, type):
        return hasattr(owner, name)
    if any(name in vars(base).get("__annotations__", {}) for base in owner.__mro__):
        return True
    return any(
        re.search(rf"(?m)^\s*self\.{name}: |\bself\.{name}\b[^=\n]*=[^=]", _source_of(vars(base)["__init__"]))
        for base in owner.__mro__[:-1]
        if "__init__" in vars(base) and not is_dataclass(base)
    )


@functools.cache
def _source_of(function: Any) -> str:
    """Seams share their classes, and to find where a function ends is most of what a probe takes."""
    return inspect.getsource(function)
