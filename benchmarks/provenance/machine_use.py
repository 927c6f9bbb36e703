"""How much of the machine a run had for itself: what this process and its children used, and what others used.

The load average of a start tells of the minutes before it, and in `bench all` these are the run before. So processor
time is counted from begin to end, `/proc/stat` less what is our own. That is this process and all that it started,
ended or not: a server lives on while one of its rounds is over. An engine that outlives its server is waited for by
nobody, and takes its time with it. `ended_kept` counts that.

It does not know whether a busy machine matters: counts of tokens are the same on any.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_OTHER_SHARE = 0.1
"""More of the processors than this in other hands: the machine was busy, and its times are not published."""
_NUM_LOOKS, _LOOK_SECONDS = 12, 5.0
_STAT = Path("/proc/stat")
_IDLE = (3, 4)
_STEAL = 7
_NUM_TIMES = 8


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Seconds since some start. `busy` of all processors, `stolen` by other machines of the host, `own` of ours.

    `num` counts processors, 0 where the operating system tells none of it.
    """

    wall: float
    busy: float
    stolen: float
    own: float
    num: int

    @classmethod
    def now(cls) -> ProcessorTimes:
        """As they are. It never raises."""
        own = _own_seconds() + _UNWAITED.seconds
        lines = _STAT.read_text(encoding="ascii").splitlines() if _STAT.exists() else []
        found = [line.split() for line in lines if line.startswith("cpu")]
        if not found:
            return cls(time.monotonic(), 0.0, 0.0, own, 0)
        ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in found[0][1 : _NUM_TIMES + 1]]
        busy = sum(ticks) - sum(ticks[place] for place in _IDLE) - ticks[_STEAL]
        return cls(time.monotonic(), busy, ticks[_STEAL], own, len(found) - 1)


@dataclass(slots=True)
class _Unwaited:
    """Processor time of those that have ended, and that nobody waited for."""

    seconds: float = 0.0


_UNWAITED = _Unwaited()


@contextmanager
def ended_kept() -> Iterator[None]:
    """What ends in here stays counted as ours."""
    before = _own_seconds()
    try:
        yield
    finally:
        _UNWAITED.seconds += max(0.0, before - _own_seconds())


def _own_seconds() -> float:
    """Processor time of this process, of what lives under it, and of what was waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + _living_seconds()


def _living_seconds() -> float:
    """Processor time of all living descendants, with what their own children had that have ended.

    Read from `/proc`, since `make gpu` has no psutil.
    """
    children: dict[int, list[tuple[int, int]]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name of a process stands in parentheses, and may hold spaces.
            words = file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            ticks = sum(map(int, words[11:15]))
            children.setdefault(int(words[1]), []).append((int(file.parent.name), ticks))
    total, unseen = 0.0, [os.getpid()]
    while unseen:
        for pid, ticks in children.get(unseen.pop(), ()):
            total += ticks / os.sysconf("SC_CLK_TCK")
            unseen.append(pid)
    return total


def use_between(begin: ProcessorTimes, end: ProcessorTimes) -> dict[str, Any]:
    """JSON-ready: `seconds`, and the shares of the processors that were ours, others' and stolen, None if unknown."""
    wall = end.wall - begin.wall
    found: dict[str, Any] = {"seconds": round(wall, 1), "own_share": None, "other_share": None, "stolen_share": None}
    if not end.num or wall <= 0:
        return found
    own, busy, stolen = end.own - begin.own, end.busy - begin.busy, end.stolen - begin.stolen
    for name, used in (("own", own), ("other", max(0.0, busy - own)), ("stolen", stolen)):
        found[f"{name}_share"] = round(used / (wall * end.num), 3)
    return found


def joined_use(uses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The use of several parts of a run, as `use_between` tells each: all seconds, and shares by how long each took.

    `is_any_busy` says whether one part was busy, and the average of all may hide that.
    """
    joined: dict[str, Any] = {"seconds": round(sum(use["seconds"] for use in uses), 1)}
    for name in ("own_share", "other_share", "stolen_share"):
        known = [(use["seconds"], use[name]) for use in uses if use[name] is not None]
        seconds = sum(took for took, _ in known)
        joined[name] = round(sum(took * share for took, share in known) / seconds, 3) if seconds else None
    return joined | {"is_any_busy": is_any_busy(uses)}


def is_any_busy(uses: Sequence[Mapping[str, Any]]) -> bool:
    """Whether other work took too much of the machine in one of these parts of a run. A quiet rest mends nothing."""
    return any(is_busy({"use": use}) for use in uses)


def is_busy(report: Mapping[str, Any]) -> bool:
    """Whether other work took too much of the machine while this report, or a part of it, was measured.

    False where nobody noted it.
    """
    use = report.get("use", {})
    shares = (use.get(f"{name}_share") or 0.0 for name in ("other", "stolen"))
    return use.get("is_any_busy", False) or any(share > MAX_OTHER_SHARE for share in shares)


def is_quiet_result(file: Path) -> bool:
    """Whether there is such a result, and other work let its times be published."""
    return file.is_file() and not is_busy(json.loads(file.read_text(encoding="utf-8")))


def is_quiet_now() -> bool:
    """Whether others leave the machine alone, in some seconds of the next minute. What is short disturbs nobody."""
    for _ in range(_NUM_LOOKS):
        begin = ProcessorTimes.now()
        time.sleep(_LOOK_SECONDS)
        if not is_busy({"use": use_between(begin, ProcessorTimes.now())}):
            return True
    return False


def busy_line(report: Mapping[str, Any]) -> str:
    """What people read of a busy machine."""
    use = report["use"]
    other, stolen = (use.get(f"{name}_share") or 0.0 for name in ("other", "stolen"))
    told = f"other work took {100 * other:.0f} % of the processors meanwhile, and the host {100 * stolen:.0f} %"
    is_quiet_on_average = max(other, stolen) <= MAX_OTHER_SHARE
    return f"{told}, in a part of the run more than {100 * MAX_OTHER_SHARE:.0f} %" if is_quiet_on_average else told
