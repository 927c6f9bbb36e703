"""Which commands measure stale results again, in which order, and which of them fits into the time that is left. Pure
but for git.

    ledger rows, sources  --plan_reruns-->  commands: minutes, machine, results, what changed  --next_rerun-->  one

What needs a quiet machine comes first: who has one uses it for that, and counts may be had beside other work. What
nobody knows the time of comes first of these, while much time is left, and what took longest comes last. A command that
makes several files is told once, for each kind of processor that they are of. Minutes are those of the recorded run,
else those that its source expects. A result that was never recorded has a line, too.
"""

from __future__ import annotations

import math
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from acmserve.bench.harness.machine import is_of_processor, left_out_line
from acmserve.bench.harness.run_log import duration
from acmserve.bench.provenance.code_state import OLDER, ROOT, UNKNOWN
from acmserve.bench.report.ledger import LedgerRow
from acmserve.bench.report.sources import ResultSource

NEVER = "never recorded"
SITTING_MINUTES = 170
"""Of one sitting of `make evidence`, as its help says."""
_MARGIN, _START_SECONDS = 1.15, 60.0
"""A run may take so much longer than the last one, and its first engine some time to start."""
_LEAST_UNKNOWN_SECONDS = 600.0
"""What has to be left for a command of which nobody knows how long it takes."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """One command. `seconds` is None where no run recorded them, and its source expects none.

    `why` names changed paths, or the ledger's state. The others are those of its sources.
    """

    command: str
    names: tuple[str, ...]
    seconds: float | None
    is_timed: bool
    why: str
    needs_gpu: bool = False
    takes_limit: bool = False
    goes_on: bool = False
    with_amx: bool | None = None

    def limit_minutes(self, seconds_left: float) -> float | None:
        """What it is to limit itself to. None where it takes no limit, or ends without one."""
        if not self.takes_limit or math.isinf(seconds_left) or (self.seconds is not None and ends(self, seconds_left)):
            return None
        return (seconds_left - _START_SECONDS) / _MARGIN / 60

    def lines(self) -> list[str]:
        """The command with its minutes and machine, and below it what it makes and why."""
        took = UNKNOWN if self.seconds is None else duration(self.seconds)
        machine = "gpu" if self.needs_gpu else "quiet" if self.is_timed else "any"
        where = f", on a processor with{'' if self.with_amx else 'out'} AMX" if self.with_amx is not None else ""
        return [f"{took:>12}  {machine:<5}  {self.command}", f"{'':<21}{', '.join(self.names)}: {self.why}{where}"]


def plan_reruns(
    rows: Mapping[str, LedgerRow],
    sources: Mapping[str, ResultSource],
    root: Path = ROOT,
    *,
    took: Mapping[str, float] | None = None,
    only: Collection[str] = (),
) -> list[Rerun]:
    """A rerun for each command whose results are stale or missing, in order. `only` those of these names, () for all.

    `took` has seconds of results, where their rows have none.
    """
    by_command: dict[tuple[str, bool | None], list[ResultSource]] = {}
    for name, source in sources.items():
        if (not only or name in only) and (name not in rows or rows[name].is_stale):
            by_command.setdefault((source.command, source.with_amx), []).append(source)
    found = []
    for (command, with_amx), some in by_command.items():
        there = [rows[source.name] for source in some if source.name in rows]
        recorded = [row.seconds for row in there] + [(took or {}).get(source.name) for source in some]
        known = [one for one in recorded if one is not None]
        expected = [60 * source.minutes for source in some if source.minutes is not None]
        why = dict.fromkeys(part for row in there for part in _why(row, root))
        found.append(
            Rerun(
                command=command,
                names=tuple(source.name for source in some),
                seconds=max(known or expected, default=None),
                is_timed=any(source.is_timed for source in some),
                why=", ".join(why) or NEVER,
                needs_gpu=any(source.needs_gpu for source in some),
                takes_limit=all(source.takes_limit for source in some),
                goes_on=all(source.goes_on for source in some),
                with_amx=with_amx,
            )
        )
    return sorted(found, key=lambda one: (not one.is_timed, one.seconds is not None, one.seconds or 0.0, one.command))


def next_rerun(waiting: Sequence[Rerun], seconds_left: float, is_quiet: Callable[[], bool]) -> Rerun | None:
    """The first that ends in the time, else one that fits all the same. On a machine that is not quiet, of counts."""
    fitting = [one for one in waiting if fits(one, seconds_left)]
    if not (any(one.is_timed for one in fitting) and is_quiet()):
        fitting = [one for one in fitting if not one.is_timed]
    return min(fitting, key=lambda one: (not ends(one, seconds_left), not one.is_timed), default=None)


def fits(one: Rerun, seconds_left: float) -> bool:
    """Whether it may begin with so many seconds left, by what it took before.

    What goes on where it was ended may begin in any rest. So may what has whole results of fewer samples. Times that
    limit themselves need no margin, but in less time they have too few repetitions to be published.
    """
    if ends(one, seconds_left):
        return True
    if one.goes_on or (one.takes_limit and not one.is_timed):
        return seconds_left >= _LEAST_UNKNOWN_SECONDS
    return one.takes_limit and one.seconds is not None and seconds_left >= one.seconds + _START_SECONDS


def ends(one: Rerun, seconds_left: float) -> bool:
    """Whether it can end in so many seconds. Of what nobody knows the time of, ten minutes are asked."""
    return seconds_left >= (_LEAST_UNKNOWN_SECONDS if one.seconds is None else _MARGIN * one.seconds + _START_SECONDS)


def _why(row: LedgerRow, root: Path) -> list[str]:
    """How many files changed below each measured path. The state where that says it all."""
    if row.state != OLDER:
        return [row.state]
    git = ["git", "-C", str(root), "diff", "--name-only", row.revision, "--", *row.source.measures]
    files = subprocess.run(git, check=True, capture_output=True, text=True).stdout.splitlines()
    below = Counter(path for file in files for path in row.source.measures if file.startswith(f"{path}/"))
    return [f"{path} {below[path]}" for path in row.source.measures if below[path]]


def without_gpu(reruns: Sequence[Rerun]) -> tuple[list[Rerun], str]:
    """Those that this machine can run though it has no CUDA device, and a sentence about the others, "" for none."""
    out = [name for one in reruns if one.needs_gpu for name in one.names]
    told = f"Left out, since no CUDA device is here: {', '.join(out)}." if out else ""
    return [one for one in reruns if not one.needs_gpu], told


def of_processor(reruns: Sequence[Rerun], vectors: str | None) -> tuple[list[Rerun], str]:
    """Those that a processor of such vectors may make, and a sentence about the others, "" for none."""
    out = [name for one in reruns if not is_of_processor(one.with_amx, vectors) for name in one.names]
    return [one for one in reruns if is_of_processor(one.with_amx, vectors)], left_out_line(out)


def rerun_lines(reruns: Sequence[Rerun], vectors: str | None) -> list[str]:
    """Each of them, and what all of it takes as far as that is recorded. `vectors` are those of this processor."""
    of_here, _ = of_processor(reruns, vectors)
    own, _ = without_gpu(of_here)
    lines = [line for one in reruns for line in one.lines()]
    if len(of_here) < len(reruns):
        lines.append(_sum_line("another kind of processor", [one for one in reruns if one not in of_here]))
    if len(own) < len(of_here):
        lines.append(_sum_line("a machine with a GPU", [one for one in of_here if one.needs_gpu]))
    lines.append(_sum_line("a quiet machine", [one for one in own if one.is_timed]))
    return [*lines, _sum_line("any machine", [one for one in own if not one.is_timed])]


def _sum_line(machine: str, some: Sequence[Rerun]) -> str:
    known = [one.seconds for one in some if one.seconds is not None]
    return f"{machine}: {duration(sum(known))} in {len(known)} of {len(some)} that recorded it"


def sittings_line(reruns: Sequence[Rerun], vectors: str | None, minutes: int = SITTING_MINUTES) -> str:
    """All minutes that are recorded, of what this processor makes without a GPU, and how many sittings at least."""
    own, _ = without_gpu(of_processor(reruns, vectors)[0])
    known = [one.seconds for one in own if one.seconds is not None]
    total = sum(known) / 60
    sittings = math.ceil(total / minutes)
    return (
        f"without a GPU, on this kind of processor: {total:,.0f} minutes in {len(known)} of {len(own)} that recorded "
        f"it, at least {sittings} sitting{'s' * (sittings != 1)} of {minutes} minutes"
    )
