"""A result that was measured in several sittings: which machine and commit it is of, and how busy that was. Pure.

    sitting 1   commit a, 35 minutes, busy        machine   that of the first
    sitting 2   commit b, 60 minutes        -->   use       95 minutes, shares by how long each took
                                                  sittings  both

A sitting that was killed told no use. Its samples count all the same, and its minutes do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.provenance.machine_use import joined_use


def of_sittings(sittings: Sequence[Mapping[str, Any]], num_answers: int) -> dict[str, Any]:
    """The entries `machine`, `use` and `sittings` of a report, from what the journal has of each. At least one."""
    uses = [sitting["use"] for sitting in sittings if "use" in sitting]
    told = [
        {
            "date": sitting["machine"]["date"],
            "commit": sitting["machine"]["commit"],
            "num_played": sitting.get("num_played"),
            "use": sitting.get("use"),
        }
        for sitting in sittings
    ]
    return {"machine": sittings[0]["machine"], "use": joined_use(uses) | {"answers": num_answers}, "sittings": told}
