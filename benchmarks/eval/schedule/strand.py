"""The order in which strands begin. As many as the pace allows are played side by side. Pure.

    round 0    baseline: a1 a2 a3   map: a1 a2 a3   tools: a1 a2 a3   ...
               baseline: b, c       tools: b, c     ...   the first setting of each task
               baseline: d, e       tools: d, e     ...   the second
    round 1    ...

A strand is one sample in one way, or all questions about one context, which follow each other. A round has one context
of each setting, in every way. So a run that ends early has every task in every way, with fewer samples. A round begins
where the one before has no strand left that nobody plays.

Decision: the longest strands of a round begin first. So few of them are played by themselves at the end, while an
engine waits that could answer sixteen. Then ways stand together: the samples of one way begin with the same tools.

Where a way learns, the server knows what it learned from the first samples of a strand, and another server does not. A
Python session ends with the run. So what was cut off there is played anew, and no end of time cuts it off.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from acmserve.bench.eval.schedule.journal import Played
from acmserve.bench.eval.tasks.task import EvalSample
from acmserve.bench.eval.ways import EvalWay


@dataclass(frozen=True, slots=True)
class Strand:
    """`samples` are of one context, in the order in which they are asked. There is at least one.

    `setting` is the place of their setting among those of the task.
    """

    way: EvalWay
    samples: tuple[EvalSample, ...]
    setting: int = 0

    @property
    def round(self) -> int:
        """Which context of its setting it is about, from 0."""
        return self.samples[0].round

    def left(self, played: Container[Played]) -> list[EvalSample]:
        """The samples that are to be played."""
        found = [sample for sample in self.samples if (sample.task, sample.name, self.way.name) not in played]
        return list(self.samples) if found and self.way.learns else found


def plan_strands(samples: Sequence[EvalSample], ways: Sequence[EvalWay]) -> list[Strand]:
    """All strands in their order."""
    contexts: dict[tuple[str, str, str], list[EvalSample]] = {}
    for sample in samples:
        contexts.setdefault((sample.task, sample.group, "" if sample.group else sample.name), []).append(sample)
    settings: dict[str, list[str]] = {}
    for sample in samples:
        if sample.setting not in (known := settings.setdefault(sample.task, [])):
            known.append(sample.setting)
    strands = [
        Strand(way, tuple(played), settings[played[0].task].index(played[0].setting))
        for way in ways
        for context in contexts.values()
        if (played := [sample for sample in context if not way.refuses(sample)])
    ]
    return sorted(strands, key=_place)


def _place(strand: Strand) -> tuple[int, int, int]:
    return strand.round, -len(strand.samples), strand.setting
