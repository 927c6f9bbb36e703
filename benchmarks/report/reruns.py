"""`acmserve bench reruns`: what is stale, by which paths, and what it takes to measure it again.

    ledger rows, sources  --plan_reruns-->  one line a command: minutes, machine, results, what changed

Counts may be measured beside other work, so they come first. What took longest comes last. A command that makes several
files is told once. Minutes are those of the recorded run, and nothing is guessed where none are recorded. A result that
was never recorded has a line, too.
"""

from __future__ import annotations

import argparse
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.run_log import duration
from acmserve.bench.report.ledger import OLDER, ROOT, UNKNOWN, LedgerRow, read_ledger
from acmserve.bench.report.sources import ResultSource, find_sources

NEVER = "never recorded"


@dataclass(frozen=True, slots=True)
class Rerun:
    """One command. `seconds` is None where no run recorded them. `why` names changed paths, or the ledger's state."""

    command: str
    names: tuple[str, ...]
    seconds: float | None
    is_timed: bool
    why: str

    def lines(self) -> list[str]:
        """The command with its minutes and machine, and below it what it makes and why."""
        took = UNKNOWN if self.seconds is None else duration(self.seconds)
        machine = "quiet" if self.is_timed else "any"
        return [f"{took:>12}  {machine:<5}  {self.command}", f"{'':<21}{', '.join(self.names)}: {self.why}"]


def plan_reruns(rows: Mapping[str, LedgerRow], sources: Mapping[str, ResultSource], root: Path = ROOT) -> list[Rerun]:
    """A rerun for each command whose results are stale or missing, in the order to run them."""
    by_command: dict[str, list[ResultSource]] = {}
    for name, source in sources.items():
        if name not in rows or rows[name].is_stale:
            by_command.setdefault(source.command, []).append(source)
    found = []
    for command, some in by_command.items():
        there = [rows[source.name] for source in some if source.name in rows]
        known = [row.seconds for row in there if row.seconds is not None]
        why = dict.fromkeys(part for row in there for part in _why(row, root))
        found.append(
            Rerun(
                command=command,
                names=tuple(source.name for source in some),
                seconds=max(known, default=None),
                is_timed=any(source.is_timed for source in some),
                why=", ".join(why) or NEVER,
            )
        )
    return sorted(found, key=lambda one: (one.is_timed, one.seconds is None, one.seconds or 0.0, one.command))


def _why(row: LedgerRow, root: Path) -> list[str]:
    """How many files changed below each measured path. The state where that says it all."""
    if row.state != OLDER:
        return [row.state]
    git = ["git", "-C", str(root), "diff", "--name-only", row.revision, "--", *row.source.measures]
    files = subprocess.run(git, check=True, capture_output=True, text=True).stdout.splitlines()
    below = Counter(path for file in files for path in row.source.measures if file.startswith(f"{path}/"))
    return [f"{path} {below[path]}" for path in row.source.measures if below[path]]


def rerun_lines(reruns: Sequence[Rerun]) -> list[str]:
    """Each of them, and what all of it takes as far as that is recorded."""
    lines = [line for one in reruns for line in one.lines()]
    for is_timed, machine in ((False, "any machine"), (True, "a quiet machine")):
        some = [one.seconds for one in reruns if one.is_timed is is_timed]
        known = [seconds for seconds in some if seconds is not None]
        lines.append(f"{machine}: {duration(sum(known))} in {len(known)} of {len(some)} that recorded it")
    return lines


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench reruns`: 0, whatever is stale."""
    parser = argparse.ArgumentParser(
        prog="acmserve bench reruns",
        description="Prints each command whose results are stale or missing: minutes that it took, whether it needs a "
        "quiet machine, and how many files changed below each path that it measures.",
    )
    parser.parse_args(argv)
    print("\n".join(rerun_lines(plan_reruns(read_ledger(), find_sources()))))
    return 0


BENCHMARK = Benchmark("reruns", "what to measure again: why, for how long, and whether on a quiet machine", main)
