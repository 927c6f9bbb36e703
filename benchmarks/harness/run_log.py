"""What the running benchmark has measured so far, and how much of it is left.

    progress(line)                said on stderr, and kept
    counted(3, 20, "cwl, exact")  `3 of 20: cwl, exact; about 4:05 min left`, a line for it
    answered(...)                 one answer of an engine or a server, with its time and its receipt

Decision: the functions that every benchmark asks by note their answers here, so that none has to know of its end. One
process runs one benchmark, so there is one log. A benchmark that is ended leaves this log as its partial result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from acmserve.bench.provenance.machine_use import ProcessorTimes, use_between

_COUNTS = ("prompt_tokens", "kept_tokens", "moved_tokens", "computed_tokens", "fallback_reason")


@dataclass
class RunLog:
    """`ended_by` says what ended the run before its time, "" while nothing has.

    `is_reported`: the benchmark made a report of what it had, by itself. `kept` is what it can go on with.
    """

    began: ProcessorTimes = field(default_factory=ProcessorTimes.now)
    ended_by: str = ""
    is_reported: bool = False
    said: list[str] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    num_done: int = 0
    num_steps: int = 0
    _stepped_at: float = 0.0
    _first: int = 1

    def begin(self) -> None:
        """Another run begins."""
        self.__dict__.update(RunLog().__dict__)

    def say(self, line: str) -> None:
        """One line on stderr, at once."""
        self.said.append(line)
        print(line, file=sys.stderr, flush=True)

    def counted(self, number: int, num_steps: int, what: str) -> str:
        """A line where step `number` of `num_steps` begins. Those before it say how long the rest may take."""
        now = time.monotonic()
        if number == 1 or not self._stepped_at:
            self._stepped_at, self._first = now, number
        self.num_done, self.num_steps = number - 1, num_steps
        num_timed = number - self._first
        left = ""
        if num_timed > 0:
            seconds = (now - self._stepped_at) / num_timed * (num_steps - number + 1)
            left = f"; about {duration(seconds)} left"
        return f"{number} of {num_steps}: {what}{left}"

    def answered(self, seconds: float | None, receipt: Mapping[str, Any] | None, **more: Any) -> None:
        """One answer came. `seconds` to its first token."""
        counts = {} if receipt is None else {name: receipt[name] for name in _COUNTS if name in receipt}
        during = self.said[-1] if self.said else ""
        self.answers.append({"during": during, "first_token_seconds": seconds, **counts, **more})

    def use(self) -> dict[str, Any]:
        """JSON-ready: how long this run has taken, how busy others kept the machine, and how many answers came."""
        return use_between(self.began, ProcessorTimes.now()) | {"answers": len(self.answers)}

    def as_partial(self) -> dict[str, Any]:
        """JSON-ready: what there is of a result that will not be whole."""
        return {
            "partial": True,
            "ended_by": self.ended_by,
            "seconds": round(time.monotonic() - self.began.wall, 1),
            "steps_done": self.num_done,
            "steps": self.num_steps,
            "said": self.said,
            "answers": self.answers,
            **self.kept,
        }


RUN = RunLog()
"""The log of this process."""


def progress(line: str) -> None:
    """One line on stderr, at once."""
    RUN.say(line)


def counted(number: int, num_steps: int, what: str) -> str:
    """See `RunLog.counted`."""
    return RUN.counted(number, num_steps, what)


def duration(seconds: float) -> str:
    """`42 s` or `7:05 min`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 100 else f"{whole // 60}:{whole % 60:02} min"
