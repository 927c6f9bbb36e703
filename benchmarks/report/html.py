"""HTML out of Python values, escaped by construction: only `tag` makes markup, and it escapes every plain string.

    tag("td", "a < b", class_="n")     <td class="n">a &lt; b</td>

A template engine would do as much (jinja2 comes with vLLM), but reports are also read where no vLLM is installed, and
a forgotten filter in a template is what this rules out.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = ("img", "meta")


class Markup(str):
    """Text that is HTML already; every other string is escaped."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str) -> Markup:
    """An element; `class_` stands for the attribute `class`."""
    told = "".join(f' {key.rstrip("_")}="{html.escape(value)}"' for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{told}>")
    return Markup(f"<{name}{told}>{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    """Parts behind each other, each escaped unless it is markup."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(part) for part in parts))
