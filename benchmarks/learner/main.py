"""`acmserve bench learner`: a small model learns to fold, and is judged on tasks that it has not seen.

SmolLM2-135M is trained on scripted sessions of *fold or fail*, as `acmserve export` writes them, on one CPU. Then it
decides by itself, behind the real server, on tasks of other seeds, names and sentences. Nothing asks it for a call. It
is set beside the model as it was, and beside one that was trained on as many folds of the wrong documents.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from acmserve.bench.agent.estimates import bootstrap_interval
from acmserve.bench.agent.text_table import text_table
from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.harness.options import add_report_options, as_gate, hand_over, positive, progress, red_gate
from acmserve.bench.learner.sessions import PlayedSession
from acmserve.bench.learner.sft import SftOptions
from acmserve.bench.learner.stages import TrainedModel, count_tokens_by, served, train, write_rows
from acmserve.bench.learner.tasks import held_out_tasks
from acmserve.models.smollm2 import prepare

RIGHT, SHUFFLED, UNTRAINED = "right", "shuffled", "untrained"
WORK = Path.home() / ".cache" / "acmserve" / "learner"
_HEADS = ["model", "reward", "95 %", "kept the limit", "right answers", "calls", "valid", "folds a task"]


def main(arguments: Sequence[str]) -> int:
    """Play, train, judge. The exit code is 0 where the gate is green."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    write_rows(options.work, (RIGHT, SHUFFLED), options.training_tasks)
    sft = SftOptions(options.steps, learning_rate=options.learning_rate, warmup=5)
    models = [TrainedModel(UNTRAINED, prepare())]
    models += [train(options.work, policy, sft) for policy in (RIGHT, SHUFFLED)]
    report = as_report([(model, judge(model, options.tasks)) for model in models], options)
    return hand_over(report, as_table, None, options)


def judge(model: TrainedModel, num_tasks: int) -> list[PlayedSession]:
    """Held-out tasks, played by the model alone."""
    with served(model) as player:
        tasks = held_out_tasks(num_tasks, count_tokens_by(model.folder), player.count_prompt())
        progress(f"{model.name}: {num_tasks} held-out tasks")
        return player.play_all(model.name, tasks)


def as_report(
    judged: Sequence[tuple[TrainedModel, list[PlayedSession]]], options: argparse.Namespace
) -> dict[str, Any]:
    """JSON-ready: a row for each model, and what each session came to."""
    rows = [_row(model, sessions) for model, sessions in judged]
    return {
        "machine": describe_machine(),
        "gate": as_gate(find_failures(rows)),
        "training_tasks": options.training_tasks,
        "steps": options.steps,
        "learning_rate": options.learning_rate,
        "rows": rows,
    }


def find_failures(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Why the numbers say nothing: the trained model has to gain beyond its interval, and the control must not."""
    by_name = {row["model"]: row for row in rows}
    before, after, control = (by_name[name]["reward_interval"] for name in (UNTRAINED, RIGHT, SHUFFLED))
    failures = []
    if after[0] <= before[1]:
        failures.append(f"the trained model earns {after}, and {before} before")
    if control[1] >= after[0]:
        failures.append(f"the control earns {control}, and what was trained on right folds {after}")
    return failures


def _row(model: TrainedModel, sessions: Sequence[PlayedSession]) -> dict[str, Any]:
    rewards = [session.reward for session in sessions]
    num_calls = sum(session.num_calls for session in sessions)
    return {
        "model": model.name,
        "num_tasks": len(sessions),
        "reward": round(fmean(rewards), 4),
        "reward_interval": bootstrap_interval(rewards, fmean),
        "within_limit": sum(session.violation is None for session in sessions),
        "right_answers": sum(session.is_right for session in sessions),
        "num_calls": num_calls,
        "num_valid_calls": sum(session.num_valid for session in sessions),
        "folds_per_task": round(fmean(len(session.folds) for session in sessions), 2),
        "losses": list(model.losses),
        "sessions": [session.as_dict() for session in sessions],
    }


def as_table(report: dict[str, Any]) -> list[str]:
    """What people read. Nothing where the gate is red but why, and the rewards."""
    rows = []
    for row in report["rows"]:
        low, high = row["reward_interval"]
        num = row["num_tasks"]
        shown = (row["model"], f"{row['reward']:.2f}", f"{low:.2f} to {high:.2f}", f"{row['within_limit']} of {num}")
        counts = (f"{row['right_answers']} of {num}", row["num_calls"], row["num_valid_calls"], row["folds_per_task"])
        rows.append([*shown, *map(str, counts)])
    return [
        *text_table(_HEADS, rows),
        "",
        *(red_gate(report) or ["gate green: reward rose, and the control's did not"]),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench learner", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument(
        "--work", type=Path, default=WORK, metavar="DIR", help="what is made and kept (default %(default)s)"
    )
    parser.add_argument("--training-tasks", type=positive, default=60, metavar="N", help="to learn from (default 60)")
    parser.add_argument("--steps", type=positive, default=60, metavar="N", help="of four rows each (default 60)")
    parser.add_argument("--learning-rate", type=float, default=2e-4, metavar="X", help="the largest one (default 2e-4)")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="to train with (default 2)")
    parser.add_argument("--tasks", type=positive, default=40, metavar="N", help="held-out tasks (default 40)")
    add_report_options(parser, plot=False)
    return parser


BENCHMARK = Benchmark("learner", "whether a small model learns to fold where it helps, on a CPU", main)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
