"""What `make templates` leaves: `benchmarks/results/templates.json`, with the counts of each template and the commit.

A turn is judged by the test, and counted here. Without ACMSERVE_TEMPLATE_TURNS nothing is written.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acmserve.bench.provenance.kept_file import write_whole
from tests.support.templates.fixtures import NAMES, rules

LEAST_TURNS = 10_000
IS_LONG = "ACMSERVE_TEMPLATE_TURNS" in os.environ
NUM_TURNS = int(os.environ.get("ACMSERVE_TEMPLATE_TURNS", "240"))
"""Of all twelve together."""
RESULT = Path(__file__).parents[3] / "benchmarks" / "results" / "templates.json"
KINDS = ("evictions", "with_reasoning", "with_images")
"""What each template has to have been seen with. One that knows tools has to have seen them change, too."""


@dataclass(frozen=True, slots=True)
class ToldTurn:
    """One turn: tokens told before and after it was served, tokens served, and those of the prompt without eviction.

    `num_unknown`: images that nobody has served, those that went included. `num_of_users`: tokens of users that went.
    """

    told: int
    settled: int
    served: int
    max_tokens: int
    unmet: dict[str, Any] | None
    evicted: int
    num_saved: int
    unevicted: int
    num_unknown: int
    was_evicted: bool
    num_of_users: int
    has_reasoning: bool
    has_images: bool
    has_new_tools: bool


class TemplateReport:
    """Counts of every template, turn by turn. `machine` and its commit are those of the beginning."""

    def __init__(self, machine: Mapping[str, Any] | None = None) -> None:
        self._machine = machine
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._largest: Counter[str] = Counter()
        self._start = time.monotonic()

    def add(self, name: str, turn: ToldTurn, faults: Sequence[str]) -> None:
        """Count a turn of the template `name`, and what was told wrong of it."""
        found = {
            "turns": True,
            "evictions": turn.was_evicted,
            "with_reasoning": turn.has_reasoning,
            "with_images": turn.has_images,
            "tools_changed": turn.has_new_tools,
            "evictions_with_an_image_never_served": turn.was_evicted and turn.num_unknown > 0,
            "unmet_and_told": turn.unmet is not None,
            "faults": bool(faults),
        }
        self._counts[name].update({kind: int(is_so) for kind, is_so in found.items()})
        if turn.was_evicted and not turn.num_unknown:
            self._largest[name] = max(self._largest[name], abs(turn.told - turn.served))

    def refuse(self, name: str) -> None:
        """Count a prompt that the template refused."""
        self._counts[name]["refused"] += 1

    def as_json(self) -> dict[str, Any]:
        """Green where enough turns were played with all twelve, each with every kind of turn, and without a fault."""
        totals: Counter[str] = Counter()
        for counts in self._counts.values():
            totals.update(counts)
        missing = [f"{name}: no {kind}" for name in NAMES for kind in self._missing(name)]
        is_green = totals["turns"] >= LEAST_TURNS and not totals["faults"] and not totals["refused"] and not missing
        templates = {
            name: dict(counts) | {"refused": counts["refused"], "largest_difference_tokens": self._largest[name]}
            for name, counts in self._counts.items()
        }
        return {
            "gate": {"green": is_green, "failures": missing},
            "totals": dict(totals) | {"refused": totals["refused"]},
            "templates": templates,
        }

    def _missing(self, name: str) -> list[str]:
        counts: Mapping[str, int] = self._counts.get(name, {})
        kinds = (*KINDS, "tools_changed") if rules(name).tools else KINDS
        return [kind for kind in kinds if not counts.get(kind)]

    def write(self, file: Path = RESULT) -> None:
        """Write the counts beside machine and time. Fails where they are not green."""
        report = self.as_json()
        use = {"seconds": round(time.monotonic() - self._start, 1)}
        write_whole(file, json.dumps(report | {"use": use, "machine": self._machine}, indent=1) + "\n")
        assert report["gate"]["green"], f"see {file.name}: {report['gate']} {report['totals']}"
