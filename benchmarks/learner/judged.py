"""A model that was judged: held-out tasks that it played alone, and whether the server said what its weights say.

    work / NAME-judged.jsonl    the sessions with their records
    work / NAME-judged.json     the machine and the commit on which they were played

A row for the report has three parts: all tasks, those that need folds, and those that need none.

Decision: sessions of other code are played anew. Otherwise a report would name a commit that has played none of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from acmserve.bench.agent.estimates import bounded_interval
from acmserve.bench.harness.run_log import progress
from acmserve.bench.learner.agreement import TokenAgreement, compare_tokens, load_float32
from acmserve.bench.learner.answers import ALL, FOLD, HIGHEST, KEEP, LOWEST
from acmserve.bench.learner.sessions import PlayedSession, read_session, session_line
from acmserve.bench.learner.stages import TrainedModel, count_tokens_by, served
from acmserve.bench.learner.tasks import held_out_tasks
from acmserve.bench.provenance.code_state import is_same_code
from acmserve.bench.provenance.kept_file import kept_entries, read_kept, write_whole
from acmserve.bench.provenance.measured import TRAINING
from acmserve.training.record import read_rollout


@dataclass(frozen=True, slots=True)
class JudgedModel:
    """`agreement` is of the first session."""

    model: TrainedModel
    sessions: tuple[PlayedSession, ...]
    agreement: TokenAgreement

    def as_row(self) -> dict[str, Any]:
        """JSON-ready."""
        parts = {
            ALL: self.sessions,
            FOLD: [session for session in self.sessions if session.needs_fold],
            KEEP: [session for session in self.sessions if not session.needs_fold],
        }
        return {
            "model": self.model.name,
            "parts": {name: _part(sessions) for name, sessions in parts.items()},
            "agreement": asdict(self.agreement),
            "losses": list(self.model.losses),
            "sessions": [session.as_dict() for session in self.sessions],
        }


def judge(work: Path, model: TrainedModel, num_tasks: int, machine: Mapping[str, Any]) -> JudgedModel:
    """Held-out tasks, played by the model alone. What was played on the commit that `machine` names is kept."""
    sessions = kept_sessions(work, model.name, machine, lambda: _play(model, num_tasks))
    rollout = read_rollout(sessions[0].record.splitlines())
    return JudgedModel(model, sessions, compare_tokens(load_float32(model.folder), rollout))


def kept_sessions(
    work: Path, name: str, machine: Mapping[str, Any], play: Callable[[], Iterable[PlayedSession]]
) -> tuple[PlayedSession, ...]:
    """Those that lie in `work` where they are of the code of this commit, else those that `play` gives.

    Raises AcmError where what lies there cannot be read.
    """
    file, told = work / f"{name}-judged.jsonl", work / f"{name}-judged.json"
    if not _is_of_this_code(told, machine):
        played = "".join(f"{session_line(one)}\n" for one in play())
        # In this order: sessions without their machine are played again.
        told.unlink(missing_ok=True)
        write_whole(file, played)
        write_whole(told, json.dumps(machine) + "\n")
    with kept_entries(file, _play_anew(told)):
        sessions = tuple(map(read_session, file.read_text(encoding="utf-8").splitlines()))
        # The first one is compared with the weights of its model.
        return (sessions[0], *sessions[1:])


def _is_of_this_code(told: Path, machine: Mapping[str, Any]) -> bool:
    if not told.exists():
        return False
    return is_same_code(read_kept(told, _play_anew(told)), machine.get("commit"), TRAINING)


def _play_anew(told: Path) -> str:
    return f"Remove {told}, and the sessions are played again."


def _play(model: TrainedModel, num_tasks: int) -> Iterable[PlayedSession]:
    with served(model) as player:
        tasks = held_out_tasks(num_tasks, count_tokens_by(model.folder), player.count_prompt())
        progress(f"{model.name}: {num_tasks} held-out tasks")
        return player.play_all(model.name, tasks)


def _part(sessions: Sequence[PlayedSession]) -> Mapping[str, Any]:
    rewards = [session.reward for session in sessions]
    return {
        "num_tasks": len(sessions),
        "reward": round(fmean(rewards), 4),
        "reward_interval": bounded_interval(rewards, LOWEST, HIGHEST),
        "within_limit": sum(session.violation is None for session in sessions),
        "right_answers": sum(session.is_right for session in sessions),
        "num_calls": sum(session.num_calls for session in sessions),
        "num_valid_calls": sum(session.num_valid for session in sessions),
        "folds_per_task": round(fmean(len(session.folds) for session in sessions), 2),
        "num_decisions": sum(session.num_documents for session in sessions),
        "num_right_decisions": sum(session.num_right_decisions for session in sessions),
    }
