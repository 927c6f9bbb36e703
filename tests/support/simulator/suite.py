"""Runs many scripts in one mode and sums up what happened."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.support.simulator.failure import Kind, SimulationFailure
from tests.support.simulator.machine import Factory
from tests.support.simulator.report import Report
from tests.support.simulator.scripts import Script, random_script
from tests.support.simulator.simulation import Simulation


@dataclass(frozen=True)
class Mode:
    """One kind of engine: which scheduler and which model runner."""

    async_scheduling: bool
    runner_v2: bool

    def __str__(self) -> str:
        return f"{'async' if self.async_scheduling else 'sync'}-V{1 + self.runner_v2}"


FACTOR = int(os.environ.get("ACMSERVE_SIMULATOR_FACTOR", "1"))

MODES = tuple(Mode(is_async, is_v2) for is_async in (False, True) for is_v2 in (False, True))


def seeds(num_scripts: int) -> range:
    """The first `num_scripts` seeds, times the factor in `ACMSERVE_SIMULATOR_FACTOR` for a long run by hand."""
    return range(num_scripts * FACTOR)


def dealt_seeds(num_scripts: int, dear: Sequence[int], case: object, cases: Sequence[object] = MODES) -> Sequence[int]:
    """The same seeds for one of the cases of a test, but of `dear` scripts each goes to one case alone.

    They take most of the time, and each case reaches what it is for without them. A long run has all in each case.
    """
    if FACTOR > 1:
        return seeds(num_scripts)
    others = {seed for number, seed in enumerate(dear) if cases[number % len(cases)] != case}
    return [seed for seed in range(num_scripts) if seed not in others]


def script_of(mode: Mode, seed: int, *, acmserve: bool = True) -> Script:
    """The random script of a seed, for such an engine."""
    return random_script(seed, async_scheduling=mode.async_scheduling, runner_v2=mode.runner_v2, acmserve=acmserve)


def first_failure(run: Callable[[int], object], num_scripts: int = 30, likely: Sequence[int] = ()) -> Kind | None:
    """How the first of the seeds fails that `run` is called with, for the negative controls. None where none fails.

    Those that are likely to fail come first.
    """
    for seed in (*likely, *seeds(num_scripts)):
        try:
            run(seed)
        except SimulationFailure as failure:
            return failure.kind
    return None


def run_scripts(
    factory: Factory,
    mode: Mode,
    script_seeds: Iterable[int],
    *,
    acmserve: bool,
    adapt: Callable[[Script], Script] = lambda script: script,
) -> Report:
    """Run every script, as `adapt` makes it, also behind a failing one. Raise all failures together."""
    report, errors = Report(), []
    for seed in script_seeds:
        script = adapt(script_of(mode, seed, acmserve=acmserve))
        try:
            report += Simulation(script, factory).run()
        except Exception as error:  # noqa: BLE001 - every script runs, and all failures are raised below
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} scripts failed in mode {mode}", errors[:5])
    return report
