"""`acmserve bench learner`: a small model learns to fold, and is judged on tasks that it has not seen.

SmolLM2-135M is trained on scripted sessions of *fold or fail*, as `acmserve export` writes them, on one CPU. Then it
decides by itself, behind the real server, on tasks of other seeds, names and sentences. Nothing asks it for a call. It
is set beside the model as it was, and beside one that was trained on as many folds of the wrong documents.

Decision: minutes are an upper bound, for other work may run on the machine. Rewards and losses depend on none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from acmserve.bench.agent.text_table import text_table
from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.harness.options import add_report_options, as_gate, hand_over, positive, red_gate
from acmserve.bench.harness.run_log import progress
from acmserve.bench.learner.answers import answers_part
from acmserve.bench.learner.gate import RIGHT, SHUFFLED, UNTRAINED, find_failures
from acmserve.bench.learner.judged import JudgedModel, judge
from acmserve.bench.learner.plot import draw
from acmserve.bench.learner.sft import SftOptions
from acmserve.bench.learner.stages import TrainedModel, recipe_digest, train, write_rows
from acmserve.bench.learner.tasks import SAID_TOKENS
from acmserve.bench.learner.work_folder import WorkFolder, default_work
from acmserve.models.smollm2 import prepare

_LEARNED = (RIGHT, SHUFFLED)
_WARMUP = 4
_HEADS = [
    *("model", "tasks", "reward", "95 %", "by answers", "in limit", "right", "calls", "valid"),
    *("folds a task", "decisions"),
]


def main(arguments: Sequence[str]) -> int:
    """Play, train, judge. The exit code is 0 where the gate is green, or nothing is judged."""
    options = _parser().parse_args(arguments)
    machine = describe_machine()
    torch.set_num_threads(options.threads)
    recipe = {name: getattr(options, name) for name in ("training_tasks", "steps", "learning_rate", "tasks")}
    work = WorkFolder(options.work, recipe | {"digest": recipe_digest(_LEARNED, options.training_tasks)})
    with work.timed("rollouts"):
        write_rows(work.path, _LEARNED, options.training_tasks)
    sft = SftOptions(options.steps, learning_rate=options.learning_rate, warmup=_WARMUP)
    if options.train_only:
        print(f"trained: {_model(work, RIGHT, sft).folder}")
        return 0
    judged = {
        name: _judge(work, _model(work, name, sft), options.tasks, machine) for name in (RIGHT, UNTRAINED, SHUFFLED)
    }
    rows = [judged[name] for name in (UNTRAINED, RIGHT, SHUFFLED)]
    report = {"machine": machine, **as_report(rows, recipe), "minutes_at_most": work.minutes()}
    return hand_over(report, as_table, draw, options)


def _model(work: WorkFolder, name: str, sft: SftOptions) -> TrainedModel:
    if name == UNTRAINED:
        return TrainedModel(name, prepare())
    with work.timed(f"training {name}"):
        return train(work.path, name, sft, prepare())


def _judge(work: WorkFolder, model: TrainedModel, num_tasks: int, machine: dict[str, Any]) -> JudgedModel:
    with work.timed(f"judging {model.name}"):
        judged = judge(work.path, model, num_tasks, machine)
    earned = [f"{part} {told['reward']:.2f}" for part, told in judged.as_row()["parts"].items()]
    progress(f"{model.name} earns: {', '.join(earned)}")
    return judged


def as_report(judged: Sequence[JudgedModel], recipe: dict[str, Any]) -> dict[str, Any]:
    """JSON-ready: a row for each model, and what each session came to."""
    rows = [one.as_row() for one in judged]
    return {"gate": as_gate(find_failures(rows)), **recipe, "said_tokens": SAID_TOKENS, "rows": rows}


def as_table(report: dict[str, Any]) -> list[str]:
    """What people read. Where the gate is red, why, and the rewards all the same."""
    rows = []
    for row in report["rows"]:
        for name, part in row["parts"].items():
            num, (low, high) = part["num_tasks"], part["reward_interval"]
            shown = (row["model"], f"{num} {name}", f"{part['reward']:.2f}", f"{low:.2f} to {high:.2f}")
            counts = [part[key] for key in ("within_limit", "right_answers", "num_calls", "num_valid_calls")]
            decisions = f"{part['num_right_decisions']} of {part['num_decisions']}"
            earned = f"{answers_part(row, name)[0]:.2f}"
            rows.append([*shown, earned, *map(str, counts), str(part["folds_per_task"]), decisions])
    return [
        *text_table(_HEADS, rows),
        "",
        *(red_gate(report) or ["gate green: reward rose where folds help, and the control's did not"]),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench learner", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument(
        "--work", type=Path, default=default_work(), metavar="DIR", help="what is made and kept (default %(default)s)"
    )
    parser.add_argument("--training-tasks", type=positive, default=96, metavar="N", help="to learn from (default 96)")
    parser.add_argument("--steps", type=positive, default=48, metavar="N", help="of four rows each (default 48)")
    parser.add_argument("--learning-rate", type=float, default=2e-4, metavar="X", help="the largest one (default 2e-4)")
    parser.add_argument("--threads", type=positive, default=2, metavar="N", help="to train with (default 2)")
    parser.add_argument("--tasks", type=positive, default=40, metavar="N", help="held-out tasks (default 40)")
    parser.add_argument("--train-only", action="store_true", help="train the model, and judge nothing")
    add_report_options(parser)
    return parser


BENCHMARK = Benchmark("learner", "whether a small model learns to fold where it helps, on a CPU", main)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
