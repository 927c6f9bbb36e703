"""A model that was judged: held-out tasks that it played alone, and whether the server said what its weights say.

    work / NAME-judged.jsonl    the sessions with their records

A row for the report has three parts: all tasks, those that need folds, and those that need none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from acmserve.bench.agent.estimates import bounded_interval
from acmserve.bench.harness.run_log import progress
from acmserve.bench.learner.agreement import TokenAgreement, compare_tokens, load_float32
from acmserve.bench.learner.sessions import PlayedSession, read_session, session_line
from acmserve.bench.learner.stages import TrainedModel, count_tokens_by, served
from acmserve.bench.learner.tasks import held_out_tasks
from acmserve.training.record import read_rollout

ALL, FOLD, KEEP = "all", "fold", "keep"
LOWEST, HIGHEST = -1.0, 1.0


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


def judge(work: Path, model: TrainedModel, num_tasks: int) -> JudgedModel:
    """Held-out tasks, played by the model alone. What was played is kept."""
    file = work / f"{model.name}-judged.jsonl"
    if not file.exists():
        with served(model) as player:
            tasks = held_out_tasks(num_tasks, count_tokens_by(model.folder), player.count_prompt())
            progress(f"{model.name}: {num_tasks} held-out tasks")
            played = player.play_all(model.name, tasks)
        file.write_text("".join(f"{session_line(one)}\n" for one in played), encoding="utf-8")
    sessions = tuple(map(read_session, file.read_text(encoding="utf-8").splitlines()))
    rollout = read_rollout(sessions[0].record.splitlines())
    return JudgedModel(model, sessions, compare_tokens(load_float32(model.folder), rollout))


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
