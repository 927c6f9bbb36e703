"""A result that was measured in several sittings: which machine and commit it is of, and how busy that was. Pure.

    sitting 1   commit a, 35 minutes, busy        machine   that of the first
    sitting 2   commit b, 60 minutes        -->   use       95 minutes, shares by how long each took
                                                  sittings  both

A sitting that was killed told no use. Its samples count all the same, and its minutes do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SHARES = ("own_share", "other_share", "stolen_share")


def of_sittings(sittings: Sequence[Mapping[str, Any]], num_answers: int) -> dict[str, Any]:
    """The entries `machine`, `use` and `sittings` of a report, from what the journal has of each. At least one."""
    uses = [sitting["use"] for sitting in sittings if "use" in sitting]
    use: dict[str, Any] = {"seconds": round(sum(use["seconds"] for use in uses), 1)}
    for name in _SHARES:
        known = [(use["seconds"], use[name]) for use in uses if use[name] is not None]
        seconds = sum(took for took, _ in known)
        use[name] = round(sum(took * share for took, share in known) / seconds, 3) if seconds else None
    told = [
        {
            "date": sitting["machine"]["date"],
            "commit": sitting["machine"]["commit"],
            "num_played": sitting.get("num_played"),
            "use": sitting.get("use"),
        }
        for sitting in sittings
    ]
    return {"machine": sittings[0]["machine"], "use": use | {"answers": num_answers}, "sittings": told}
