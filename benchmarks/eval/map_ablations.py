"""The ablations of the PEEK paper (arXiv 2605.19932, section 4.5), one line each: the only list. Pure data.

    map              the default: two calls, eviction by priority, 1,024 tokens, 4 updates
    map:no-eviction  the map freezes when it is full
    map:monolithic   one call does what Distiller and Cartographer do
    map:b512         another budget. 256 is for models whose items are few and short
    map:m1           another number of updates. `m-all` is any number

Each is a way of its own, of a plain question (`map:NAME`) and of the paper's agent (`rlm-map:NAME`). They are played
only where they are named, since each learns a map of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAP_ABLATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "no-eviction": ("frozen when full", {"update": {"evict": False}}),
    "monolithic": ("updated in one call", {"update": {"calls": 1}}),
    "b256": ("of 256 tokens", {"budget": 256}),
    "b512": ("of 512 tokens", {"budget": 512}),
    "b2048": ("of 2,048 tokens", {"budget": 2048}),
    "m1": ("taught by one question", {"evolve_steps": 1}),
    "m16": ("taught by sixteen questions", {"evolve_steps": 16}),
    "m-all": ("taught by every question", {"evolve_steps": 1_000_000}),
}
"""Title, and the fields of `acm.map`. `evolve_steps` is the paper's m."""


def with_ablation(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Fields of `acm.map` under an ablation, whose own fields win. "" is none."""
    if not name:
        return dict(options)
    _, fields = MAP_ABLATIONS[name]
    joined = {**options, **fields}
    if "update" in fields:
        joined["update"] = {**(options.get("update") or {}), **fields["update"]}
    return joined
