"""Counted cases of a run that was ended: kept in the file of its partial result, so that the same command goes on.

    case 1 ... 7    counted: kept
    case 8          ended in its middle: counted again, with what follows

A case is whole or nothing. Each began in a fork of its own, so it does not matter which process counted the others.
Counts depend on the code and on the processor, so a run goes on with those of the same alone. It knows no program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.harness.options import BEGIN_ANEW, write_partial
from acmserve.bench.harness.run_log import RUN, counted, progress
from acmserve.bench.overhead.cases import CountedCase
from acmserve.bench.provenance.code_state import ROOT
from acmserve.bench.provenance.kept_file import kept_entries
from acmserve.bench.provenance.measured import SERVER
from acmserve.bench.provenance.same_run import SAME_PROCESSOR, check_same_run

_PLANNED, _COUNTED = "cases_planned", "cases_counted"


class KeptCases:
    """`planned` are the words of all cases in their order, `cases` those that were counted. `file` is rewritten."""

    def __init__(self, planned: Sequence[tuple[str, ...]], file: Path) -> None:
        self._planned, self._file, self._machine = list(planned), file, describe_machine()
        self.cases: list[CountedCase] = []

    def left(self) -> list[tuple[str, ...]]:
        """The words of the cases that are to be counted."""
        return self._planned[len(self.cases) :]

    def keep(self, case: CountedCase) -> None:
        """A case is counted. The file has it at once."""
        self.cases.append(case)
        self._note()
        self.say_next()
        write_partial(self._file, "request-instructions", self._machine)

    def say_next(self) -> None:
        """Which case is counted now, and how long the rest may take."""
        if left := self.left():
            progress(counted(len(self.cases) + 1, len(self._planned), " ".join(left[0])))

    def resume(self, report: Mapping[str, Any], root: Path = ROOT) -> None:
        """Take what a partial result has. Raises AcmError where it is one of other cases, code or processors."""
        if _COUNTED not in report:
            return
        with kept_entries(self._file, BEGIN_ANEW):
            is_other = [tuple(words) for words in report[_PLANNED]] != self._planned
            others = ["other cases"] if is_other else []
            check_same_run(report["machine"], self._machine, SAME_PROCESSOR, SERVER, others, root)
            self.cases = [CountedCase(tuple(one["words"]), one["parts"], one["said"]) for one in report[_COUNTED]]
        self._note()

    def _note(self) -> None:
        """Whatever ends this run, its partial result has them."""
        RUN.kept = {_PLANNED: self._planned, _COUNTED: [asdict(case) for case in self.cases]}
