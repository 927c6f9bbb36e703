"""Whole repetitions of a run that was ended: kept in the file of its partial result, so that the same command goes on.

    repetition 1, 2   every server has replayed every part: kept
    repetition 3      ended by a signal: replayed again, with what follows

Decision: a repetition is whole or nothing, since rows are pairs of repetitions. One that others disturbed is replayed
again. So is the last one, behind which servers answer for the gate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.harness.options import BEGIN_ANEW, write_partial
from acmserve.bench.harness.run_log import RUN
from acmserve.bench.provenance.code_state import ROOT
from acmserve.bench.provenance.kept_file import kept_entries
from acmserve.bench.provenance.machine_use import ProcessorTimes, is_any_busy, is_busy, joined_use, use_between
from acmserve.bench.provenance.measured import SERVER
from acmserve.bench.provenance.same_run import SAME_MACHINE, check_same_run
from acmserve.bench.trace.load import AnsweredTurn, Load, PlannedSession, SessionReplay
from acmserve.bench.trace.peer_servers import Cached
from acmserve.bench.trace.plan import PolicyPart

Key = tuple[str, str]
"""A server's name, and a policy."""
_WHOLE, _ABOUT = "whole_repetitions", "repetitions_of"


class KeptRepetitions:
    """`about` are the settings of the run. `file` is where its partial result goes, None for nowhere."""

    def __init__(self, about: Mapping[str, Any], file: Path | None = None) -> None:
        self._about: dict[str, Any] = json.loads(json.dumps(about))
        self._file, self._machine = file, describe_machine()
        self._whole: dict[int, dict[str, Any]] = {}
        self._uses: dict[int, dict[str, Any]] = {}
        self._resumed: list[int] = []
        self._began = ProcessorTimes.now()

    def resume(self, report: Mapping[str, Any], root: Path = ROOT) -> None:
        """Take what a partial result has. Raises AcmError where it is one of other settings or another machine, or of
        other code than the checkout `root` has.
        """
        if _WHOLE not in report:
            return
        with self._entries():
            pairs = {name: (report[_ABOUT].get(name), value) for name, value in self._about.items()}
            others = [f"{name} {then}, now {now}" for name, (then, now) in pairs.items() if then != now]
            check_same_run(report["machine"], self._machine, SAME_MACHINE, SERVER, others, root)
            self._whole = {one["number"]: one for one in report[_WHOLE] if not is_busy(one)}
        self._resumed = list(self._whole)
        self._uses = {number: one["use"] for number, one in self._whole.items()}
        self._note()

    def keep(self, number: int, loads: Mapping[Key, Load], *, is_last: bool = False) -> None:
        """A repetition is whole. The file has it at once, unless a session of it failed, or it is the last one."""
        now = ProcessorTimes.now()
        use, self._began = use_between(self._began, now), now
        self._uses[number] = use
        if is_last or any(replay.failure for load in loads.values() for replay in load.replays):
            return
        told = [{"server": key[0], "policy": key[1], **_as_told(load)} for key, load in loads.items()]
        self._whole[number] = {"number": number, "use": use, "loads": told}
        self._note()
        if self._file is not None:
            write_partial(self._file, "trace", self._machine)

    def _note(self) -> None:
        """Whatever ends this run, its partial result has them."""
        RUN.kept = {_ABOUT: self._about, _WHOLE: [self._whole[one] for one in sorted(self._whole)]}

    def loads(self, parts: Sequence[PolicyPart]) -> dict[int, dict[Key, Load]]:
        """What need not be replayed, by repetition."""
        by_policy = {part.policy: part.repetitions for part in parts}
        with self._entries():
            return {
                number: {
                    (told["server"], told["policy"]): _read(told, by_policy[told["policy"]][number])
                    for told in one["loads"]
                }
                for number, one in self._whole.items()
            }

    def _entries(self) -> AbstractContextManager[None]:
        """Around what reads a partial result. One that lacks something is told by its name."""
        return kept_entries(self._file or Path("the partial result"), BEGIN_ANEW)

    def use(self) -> dict[str, Any] | None:
        """That of all repetitions together, and of each by itself. None where no repetition is whole.

        One that others disturbed makes the run busy: the average of five would hide it.
        """
        if not self._uses:
            return None
        joined = joined_use([*(self._uses[one] for one in self._resumed), RUN.use()])
        uses = [self._uses[number] for number in sorted(self._uses)]
        return joined | {"is_any_busy": joined["is_any_busy"] or is_any_busy(uses), "by_repetition": uses}


def _as_told(load: Load) -> dict[str, Any]:
    replays = [[asdict(turn) for turn in replay.turns] for replay in load.replays]
    return {"seconds": load.seconds, "replays": replays}


def _read(told: Mapping[str, Any], sessions: Sequence[PlannedSession]) -> Load:
    replays = (
        SessionReplay(session, [_read_turn(turn) for turn in turns])
        for session, turns in zip(sessions, told["replays"], strict=True)
    )
    return Load(tuple(replays), told["seconds"])


def _read_turn(told: Mapping[str, Any]) -> AnsweredTurn:
    answer = told["answer"] if isinstance(told["answer"], str) else tuple(told["answer"])
    read: dict[str, Any] = {**told, "answer": answer, "cached": Cached(**told["cached"])}
    return AnsweredTurn(**read)
