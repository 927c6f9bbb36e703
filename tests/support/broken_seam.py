"""Breaks a seam: deletes or renames an attribute, or gives a method other parameters. The patch undoes it."""

from __future__ import annotations

import importlib
import inspect
import linecache
import re
import textwrap
from typing import Any

import pytest

from acmserve.seams import Seam, broken_seams, place_of


def owner_of(seam: Seam) -> Any:
    module, _, path = place_of(seam).partition(":")
    owner = importlib.import_module(module)
    return getattr(owner, path.rpartition(".")[0]) if "." in path else owner


def rename_in_init(owner: type, name: str, patch: pytest.MonkeyPatch) -> None:
    """An `__init__` whose source assigns another attribute. It is never called."""
    base = next(b for b in owner.__mro__ if "__init__" in vars(b) and f"self.{name}" in inspect.getsource(b.__init__))
    source = re.sub(rf"\bself\.{name}\b", f"self.{name}_renamed", textwrap.dedent(inspect.getsource(base.__init__)))
    file = f"<broken {owner.__name__}.{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope = dict(vars(importlib.import_module(base.__module__)))
    exec(compile(source, file, "exec", flags=annotations.compiler_flag), scope)
    patch.setattr(base, "__init__", scope["__init__"])


def break_seam(seam: Seam, patch: pytest.MonkeyPatch) -> None:
    owner, name = owner_of(seam), place_of(seam).replace(":", ".").rpartition(".")[2]
    if seam.parameters is not None:
        patch.setattr(owner, name, lambda renamed, *others: None)
        return
    for base in getattr(owner, "__mro__", (owner,)):
        if name in vars(base):
            patch.delattr(base, name)
        if name in vars(base).get("__annotations__", {}):
            patch.delitem(base.__annotations__, name)
    if not broken_seams([seam]):
        rename_in_init(owner, name, patch)
