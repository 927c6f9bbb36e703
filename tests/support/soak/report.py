"""How long a soak goes on, and what `make soak` leaves: `benchmarks/results/soak.json`, with seed and commit."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acmserve.bench.provenance.kept_file import write_whole

if TYPE_CHECKING:
    from tests.support.soak.soak import Found

MINUTES = float(os.environ.get("ACMSERVE_SOAK_MINUTES", "0"))
SEED = int(os.environ.get("ACMSERVE_SOAK_SEED", "0"))
NUM_PHASES = 5
"""Two models under two policies, and the storm over HTTP. Each has its share of the time."""
MIN_CHECKED = 10_000
RESULT = Path(__file__).parents[3] / "benchmarks" / "results" / "soak.json"


class SoakReport:
    """One phase after the other. Without minutes, phases are as short as their tests ask, and nothing is written."""

    def __init__(self) -> None:
        self._phases: dict[str, Any] = {}
        self._machine = _describe_machine() if MINUTES else {}
        self._start = self._phase_start = time.monotonic()

    def goes_on(self, num_done: int, num_at_least: int) -> bool:
        """Whether the phase is to do more than the `num_done` that it did."""
        in_time = time.monotonic() - self._phase_start < 60 * MINUTES / NUM_PHASES
        return num_done < num_at_least or (MINUTES > 0 and in_time)

    def add(self, phase: str, found: Found) -> None:
        """Keep what a phase found. The next one begins."""
        self._phase_start = time.monotonic()
        self._phases[phase] = dict(sorted(found.counts.items())) | {
            "largest_difference": found.largest_difference,
            "mismatches": found.mismatches[:20],
            "num_mismatches": len(found.mismatches),
        }

    def write(self) -> None:
        """Write the phases, green where enough answers were checked and none is wrong."""
        if not MINUTES or not self._phases:
            return
        totals = {
            name: sum(phase.get(name, 0) for phase in self._phases.values())
            for name in ("answers", "checked", "num_mismatches", "aborts", "preemptions", "disconnects")
        }
        is_green = (
            totals["checked"] >= MIN_CHECKED and totals["num_mismatches"] == 0 and len(self._phases) == NUM_PHASES
        )
        report = {
            "gate": {"green": is_green},
            "seed": SEED,
            "minutes": round((time.monotonic() - self._start) / 60, 1),
            "totals": totals,
            "phases": self._phases,
            "machine": self._machine,
        }
        write_whole(RESULT, json.dumps(report, indent=1) + "\n")
        assert is_green, f"see {RESULT.name}: {totals}"


def _describe_machine() -> dict[str, Any]:
    from acmserve.bench.harness.machine import describe_machine

    return describe_machine()
