"""Conversations of a run that was ended: kept in the file of its partial result, so that the same command goes on.

    conversation 1 ... 30   played: kept
    conversation 31         ended in its middle: played again, with what follows

A conversation is whole or nothing. Tokens depend on code, versions and processor, so a run goes on with those of the
same alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.harness.options import BEGIN_ANEW, write_partial
from acmserve.bench.harness.run_log import RUN
from acmserve.bench.provenance.kept_file import kept_entries
from acmserve.bench.provenance.machine_use import joined_use
from acmserve.bench.provenance.measured import SERVER
from acmserve.bench.provenance.same_run import SAME_PROCESSOR, check_same_run

_ANSWER, _PLAYED, _USE = "answer_tokens", "conversations_played", "use_so_far"


class KeptConversations:
    """`rows` are the records of those that were played, each with answers of `num_answer` tokens.

    `file` is rewritten behind each of them.
    """

    def __init__(self, num_answer: int, file: Path) -> None:
        self._num_answer, self._file, self._machine = num_answer, file, describe_machine()
        self._uses: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []

    def keep(self, row: dict[str, Any]) -> None:
        """A conversation was played. The file has it at once."""
        self.rows.append(row)
        self._note()
        write_partial(self._file, "speculation-tokens", self._machine)

    def resume(self, report: Mapping[str, Any]) -> None:
        """Take what a partial result has. Raises AcmError where it is one of other answers, code or processors."""
        if _PLAYED not in report:
            return
        with kept_entries(self._file, BEGIN_ANEW):
            then = report[_ANSWER]
            others = [] if then == self._num_answer else [f"answers of {then} tokens, now {self._num_answer}"]
            check_same_run(report["machine"], self._machine, SAME_PROCESSOR, SERVER, others)
            self.rows, self._uses = list(report[_PLAYED]), [dict(report[_USE])]
        self._note()

    def use(self) -> dict[str, Any]:
        """The entry `use` of a report that was gone on with. Empty for one that was not."""
        return {"use": self._use()} if self._uses else {}

    def _use(self) -> dict[str, Any]:
        own = RUN.use()
        num_answers = sum(use["answers"] for use in (*self._uses, own))
        return joined_use([*self._uses, own]) | {"answers": num_answers}

    def _note(self) -> None:
        """Whatever ends this run, its partial result has them."""
        RUN.kept = {_ANSWER: self._num_answer, _PLAYED: self.rows, _USE: self._use()}
