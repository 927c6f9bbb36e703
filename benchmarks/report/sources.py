"""Where each file of results comes from: the command that makes it, and what of the product it measures.

Most are runs of a `BENCHMARK`. What a make target or a module of its own writes is listed here, and nowhere else.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from acmserve.bench.harness.benchmark import find_benchmarks
from acmserve.bench.provenance.measured import CHATS, ENGINE, KERNELS, SERVER, SETUP, TRAINING
from acmserve.bench.report.all import command_of

_NAMES = ("name", "server", "fidelity", "variant", "way")
_EXACT = "exact"
_RECEIPTS = ("receipts", "all_receipts", "receipt", "follow_up_receipt", "attack")


@dataclass(frozen=True, slots=True)
class ResultSource:
    """`name` is the file without `.json`. `needs_gpu`: a CUDA device. Other fields are those of a `BenchmarkRun`.

    `takes_limit`: its benchmark has `--max-minutes` of its own. `goes_on`: what was ended is not lost.
    """

    name: str
    command: str
    measures: Sequence[str]
    is_timed: bool = True
    no_exact: str = ""
    repeats: str = ""
    needs_gpu: bool = False
    minutes: float | None = None
    takes_limit: bool = False
    goes_on: bool = False
    with_amx: bool | None = None


ELSEWHERE = (
    ResultSource("audit", "make audit", ENGINE, False, "keys of model classes, no requests"),
    ResultSource("clients", "make clients", SERVER, False, "agents of others, all under `exact`"),
    ResultSource(
        *("eval-learner", "make eval-learner", TRAINING, False, "answers of ways, all under `exact`"),
        takes_limit=True,
        goes_on=True,
    ),
    ResultSource(
        "eval-rlm",
        "acmserve bench eval --ways rlm rlm-map --tasks oolong --set oolong.questions=8 --samples 4",
        *(SERVER, False, "answers of two ways, all under `exact`"),
        takes_limit=True,
        goes_on=True,
    ),
    ResultSource("first-receipt", "make first-receipt", SETUP, True, "an installation, no fidelity compared"),
    ResultSource("gpu", "acmserve bench gpu", ENGINE, needs_gpu=True, minutes=45, takes_limit=True, goes_on=True),
    ResultSource(
        *("gpu-kernel", "python -m benchmarks.gpu.kernel.main", KERNELS, True, "one operation, no fidelity"),
        needs_gpu=True,
    ),
    ResultSource("hops", "python -m benchmarks.micro.rotation_error", KERNELS, False, "keys alone, no requests"),
    ResultSource(
        "learner", "make train", TRAINING, False, "a model is trained, all is served under `exact`", minutes=50
    ),
    ResultSource(
        "soak", "make soak", SERVER, False, "each answer is compared with that of its own fidelity", minutes=32
    ),
    ResultSource("templates", "make templates", CHATS, False, "prompts that are counted, no engine"),
    ResultSource(
        *("victim", "make worst-step", SERVER, True, "what one client does to another, no fidelity compared"),
        minutes=75,
    ),
    ResultSource(
        *("worst-step", "make worst-step", ENGINE, True, "the worst of hostile requests, no fidelity compared"),
        minutes=75,
    ),
)


@cache
def find_sources() -> dict[str, ResultSource]:
    """Every source by the name of its file, in their order."""
    runs = [
        ResultSource(
            *(run.name, shlex.join(command_of(run, is_quick=False)), run.measures, run.is_timed, run.no_exact),
            run.repeats,
            minutes=run.minutes,
            takes_limit=benchmark.takes_limit,
            goes_on=run.resume_flags is not None,
            with_amx=run.with_amx,
        )
        for benchmark in (file.load() for file in find_benchmarks().values())
        for run in benchmark.runs
        if run.is_recorded
    ]
    return {one.name: one for one in sorted([*runs, *ELSEWHERE], key=lambda one: one.name)}


def has_exact(report: Mapping[str, Any]) -> bool:
    """Whether a result has a row of `exact`: a name or a key of that word, outside of receipts."""
    waiting: list[Any] = [report]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            names = [str(part.get(name, "")).partition(",")[0] for name in _NAMES]
            if part.get(_EXACT) or _EXACT in names:
                return True
            waiting += [value for name, value in part.items() if name not in _RECEIPTS]
        elif isinstance(part, list):
            waiting += part
    return False
