"""`acmserve bench eval`: the table of every task and way of `acmserve eval`, on SmolLM2 behind a server of our own.

    server --> samples x ways, side by side --> journal in --work --> JSON, the tables of the page of benchmarks

It is `acmserve eval` with its defaults, but for seven things. It starts the server. It takes every way that runs no
code, and those with `--code`. Contexts are so small that a model of 135M parameters can answer at all. Answers are
bounded, since the model does not stop where it has nothing to say, and have four tool calls at most. Retrieval and a
memory take less at once than such a context has, and agents few steps. Samples are asked side by side, which the engine
batches. Where ablations of maps are recorded, a map has so few tokens that the items of a small model fill it.

It ends in time. Round by round each setting has one more context, in every way, so a run that ends has all cells with
fewer samples. The same command goes on with it. The report leaves the answers out. They stay in the journal, whose name
ends in `.played.jsonl` when all is played.

Decision: a run that goes on may do so on another commit or on a busy machine. So every sitting is told, and the machine
of the report is that of the first: the result is as old as its oldest samples. Where the measured code is no longer
that of the first sitting, the journal is set aside under its commit, and all is played anew.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from acmserve.bench.agent.result_table import run_benchmark
from acmserve.bench.eval.baselines.way_limits import WayLimits, limits_of
from acmserve.bench.eval.main import as_report, json_fields, parser, samples_of
from acmserve.bench.eval.prices import prices_of
from acmserve.bench.eval.run import EvalPlan, make_plan, play_all
from acmserve.bench.eval.schedule.journal import Journal
from acmserve.bench.eval.schedule.pace import EvalPace
from acmserve.bench.eval.schedule.sittings import of_sittings
from acmserve.bench.eval.table import TABLES
from acmserve.bench.eval.target import Target
from acmserve.bench.eval.tasks.registry import DEFAULT_TASKS, TASKS
from acmserve.bench.eval.ways import CODE_WAYS, DEFAULT_WAYS, NAMED, WAYS
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.harness.options import add_model_option, add_report_options, as_gate, minutes, positive
from acmserve.bench.harness.run_log import RUN, progress
from acmserve.bench.harness.server_process import ServerProcess
from acmserve.bench.models.model_folder import LEARNER, prepare_model
from acmserve.bench.provenance.code_state import ROOT, commit_of, is_same_code
from acmserve.bench.provenance.measured import SERVER, TRAINING
from acmserve.models.smollm2 import TOOLS_TEMPLATE

NUM_SAMPLES, ANSWER_TOKENS = 16, 64
NUM_QUICK, QUICK_ANSWER_TOKENS = 1, 48
QUICK_WAYS = frozenset({*DEFAULT_WAYS, "budget:cwl", "shared", "rag"})
MINUTES, QUICK_MINUTES = 115.0, 9.0
"""Behind them no sample begins: two hours and ten minutes, with what was begun and the end of the server."""
SIZES: Mapping[str, Mapping[str, Sequence[int]]] = {
    "pi-llm": {"keys": (4,), "updates": (4, 8)},
    "needlebench": {"needles": (2, 3), "tokens": (250,)},
    "mrcr": {"tokens": (200, 400)},
    "mrcr-v2": {"tokens": (200, 400)},
    "oolong": {"tokens": (300,)},
    "babilong": {"tokens": (125, 250)},
    "gsm-infinite": {"ops": (1, 2), "tokens": (200,)},
    "frames": {"articles": (2, 3), "tokens": (250,)},
    "longbench-v2": {"tokens": (125, 250)},
    "terminal": {"tasks": (2,)},
}
"""Two settings of each task, or one with four questions about each context: so all cells grow alike.

The tasks in a shell are two, so that their session fits the window beside the steps of the other agents.
"""
LIMITS = WayLimits(retrieved=45, part=100, step_tokens=512, steps=4, printed=600)
"""The least of the contexts has 78 words and 127 tokens, as tokens are told by characters. A third of a long one is
retrieved, with the chunk that reaches the limit, and it has four parts. A block of code has its closing fence within
512 tokens. Four such steps with all that they print fit the window, a map beside them.
"""
BUDGET = "60%"
"""Of what a policy may take. The last three of eight results stay under `clear_tool_uses`, which is 38 % of that."""
SESSION_SIZES = {"terminal": {"tasks": (20,)}}
SESSION_LIMITS = replace(LIMITS, step_tokens=ANSWER_TOKENS, steps=2, printed=100)
SESSION_BUDGET = "4000"
"""Where tasks in a shell are all that is played: the twenty of them, as in the evaluation of CWL.

Their session fits the window with two short steps for each. A budget has room for the twenty tasks, which are words of
the user, and for half of the rest.
"""
NUM_PARALLEL = 16
"""A step of a small model costs about the same for sixteen sequences as for one."""
_WINDOW, _KV_GIB = 8_192, 3
NUM_TOOL_CALLS = 4
"""At most, of one answer: a model that learned to call tools may go on calling them on tasks that it does not know."""
MAP_TOKENS = 512
"""At most, of one answer of the models that keep a map."""
SMALL_MAP = '{"budget": 160}'
"""Fields of `acm.map` where its ablations are recorded. The headers of a map have 126 tokens of SmolLM2, and the items
that it writes about a text have about a hundred together. So 1,024 tokens are never full, and an ablation of eviction
shows nothing. Here one or two items fill a map, and `map:b256` has room for several.
"""
_SIDE_FLAGS = (
    *("--max-summary-tokens", "128", "--max-map-tokens", str(MAP_TOKENS)),
    *("--max-tool-calls", str(NUM_TOOL_CALLS)),
)


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench eval`. 0 when the gate is green, 1 when it is red."""
    return run_benchmark(_parser(), argv, measure, *TABLES)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Start the server and play what the journal does not have."""
    pace, folder = _pace(options), prepare_model(options.model)
    name = LEARNER if options.model == LEARNER else folder.name
    flags = [
        *("--served-model-name", name, "--dtype", "float32", "--max-model-len", str(_WINDOW), *_SIDE_FLAGS),
        *("--chat-template", str(TOOLS_TEMPLATE), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]
    progress(f"{name}: starting the server (about half a minute)")
    with ServerProcess(folder, flags, _KV_GIB) as server:
        return play(server.wait_ready(), options, pace)


def play(url: str, options: argparse.Namespace, pace: EvalPace) -> dict[str, Any]:
    """The report of a server that runs. A sample that it refuses makes the gate red: the table would lack it."""
    wanted = parser().parse_args(_arguments(url, options))
    target = Target.find(wanted.url, wanted.model, wanted.api_key, {"temperature": 0})
    try:
        plan = make_plan(target, samples_of(wanted), wanted.ways, wanted.budget, wanted.map, limits_of(wanted))
        options.work.mkdir(parents=True, exist_ok=True)
        run = f"{plan.digest}-{NUM_TOOL_CALLS}"
        path = options.work / f"{run}.jsonl"
        journal = _journal(path, run, TRAINING if options.model == LEARNER else SERVER)
        limit = wanted.context_limit or target.window()
        with _sitting(journal):
            records = _records(plan, target, journal, pace)
    finally:
        target.close()
    report = as_report(plan, records, prices_of(wanted), wanted.seed, has_acm=target.has_acm, context_limit=limit)
    del report["records"]
    report["run"] = run
    if len(records) == report["num_planned"]:
        # The next run is another one: it plays everything anew.
        path.replace(path.with_suffix(".played.jsonl"))
    else:
        progress(f"{len(records):,} of {report['num_planned']:,} were played. The same command goes on with {path}.")
    refused = [f"{one['task']} {one['sample']}, {one['way']}: {one['error']}" for one in records if one["error"]]
    told = {"gate": as_gate(refused), "is_quick": options.quick, "max_tokens": wanted.max_tokens}
    return told | report | of_sittings(list(journal.sittings.values()), num_answers=_num_requests(records))


def _journal(path: Path, run: str, measures: Sequence[str], root: Path = ROOT) -> Journal:
    """That of this run. One whose first sitting was of other code is set aside: its samples count with no others."""
    journal = Journal(path, run)
    first = journal.sittings.get(1, {}).get("machine")
    if first is None or is_same_code(first, commit_of(root)[0], measures, root):
        return journal
    aside = path.with_suffix(f".{str(first.get('commit'))[:8]}.jsonl")
    progress(f"{path.name} was begun on other code, so it is {aside.name} now, and all is played anew")
    path.replace(aside)
    return Journal(path, run)


def _arguments(url: str, options: argparse.Namespace) -> list[str]:
    """What `acmserve eval` is asked for."""
    num = options.samples or (NUM_QUICK if options.quick else NUM_SAMPLES)
    most = QUICK_ANSWER_TOKENS if options.quick else ANSWER_TOKENS
    tasks = options.tasks or (tuple(TASKS) if options.code else DEFAULT_TASKS)
    left_out = NAMED if options.code else NAMED | CODE_WAYS
    ways = options.ways or [name for name in WAYS if name not in left_out]
    if options.quick and not options.ways:
        ways = [name for name in ways if name in QUICK_WAYS]
    is_session = set(tasks) == SESSION_SIZES.keys()
    budget, limits = (SESSION_BUDGET, SESSION_LIMITS) if is_session else (BUDGET, LIMITS)
    asked = [url, "--samples", str(num), "--max-tokens", str(most), "--budget", budget, "--ways", ",".join(ways)]
    asked += ["--tasks", ",".join(tasks)]
    for name, limit in asdict(limits).items():
        asked += [f"--{name.replace('_', '-')}", str(limit)]
    for task in tasks:
        for name, values in (SESSION_SIZES if is_session else SIZES).get(task, {}).items():
            asked += ["--set", f"{task}.{name}={','.join(map(str, values))}"]
    for text in options.set:
        asked += ["--set", text]
    return [*asked, "--map", json.dumps(options.map)]


def _pace(options: argparse.Namespace) -> EvalPace:
    """From now on: of the minutes, the server takes some to start."""
    most = options.max_minutes or (QUICK_MINUTES if options.quick else MINUTES)
    return EvalPace(NUM_PARALLEL, time.monotonic() + 60 * most)


def _records(plan: EvalPlan, target: Target, journal: Journal, pace: EvalPace) -> list[dict[str, Any]]:
    """What was played, also where a signal ended it: the report is then a part, and says so."""
    try:
        return play_all(plan, target, journal, progress, pace)
    except KeyboardInterrupt:
        return [journal.records[pair] for pair in plan.pairs() if pair in journal.records]


@contextmanager
def _sitting(journal: Journal) -> Iterator[None]:
    """Tell the journal of the machine and the commit, and at the end what the run took of the machine."""
    machine, num_before, number = describe_machine(), len(journal.records), len(journal.sittings) + 1
    journal.tell(number, {"machine": machine})
    try:
        yield
    finally:
        num_played = len(journal.records) - num_before
        journal.tell(number, {"machine": machine, "use": RUN.use(), "num_played": num_played})


def _num_requests(records: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(record["completions"]) for record in records)


def _parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="acmserve bench eval", description=(__doc__ or "").partition("\n")[0])
    add_model_option(flags)
    flags.add_argument("--samples", type=positive, metavar="N", help=f"contexts for each setting ({NUM_SAMPLES})")
    flags.add_argument("--tasks", nargs="+", choices=TASKS, metavar="NAME", help="default: all that run no code")
    flags.add_argument("--set", nargs="+", default=[], metavar="TASK.NAME=1,2", help="a parameter of a task")
    flags.add_argument(
        "--ways", nargs="+", choices=WAYS, metavar="NAME", help="default: all but maps of other kinds, and code"
    )
    flags.add_argument(
        "--map", type=json_fields, default={}, metavar="JSON", help="fields of acm.map, for ways with a map"
    )
    flags.add_argument("--code", action="store_true", help="also ways and tasks that run code which the model writes")
    flags.add_argument(
        "--max-minutes",
        type=minutes,
        metavar="N",
        help=f"behind them no sample begins, and every cell has fewer ({MINUTES:g}, or {QUICK_MINUTES:g} if quick)",
    )
    flags.add_argument(
        "--work", type=Path, default=Path("bench-eval"), metavar="DIR", help="journals, to go on with (%(default)s)"
    )
    add_report_options(flags, quick="one context for each setting, short answers, fewer ways", plot=False)
    return flags


def _of_one_task(name: str, *flags: str) -> BenchmarkRun:
    """A run of about an hour, which `bench all --quick` leaves out."""
    return BenchmarkRun(
        name,
        ("eval", *flags),
        can_plot=False,
        measures=SERVER,
        is_timed=False,
        no_exact="answers of ways, all under `exact`",
        resume_flags=(),
        minutes=60,
    )


BENCHMARK = Benchmark(
    "eval",
    "right answers on the papers' tasks in every way, on SmolLM2",
    main,
    (
        BenchmarkRun(
            "eval",
            ("eval",),
            quick=("eval", "--quick"),
            can_plot=False,
            measures=SERVER,
            is_timed=False,
            no_exact="answers of ways, all under the default, `exact`",
            resume_flags=(),
            minutes=130,
        ),
        _of_one_task(
            "eval-terminal",
            *("--code", "--tasks", "terminal", "--samples", "8"),
            *("--ways", "shell-isolated", "shell", "shell:cwl", "shell:recency", "shell:compact"),
        ),
        _of_one_task(
            "eval-maps",
            *("--ways", "map", "map:no-eviction", "map:monolithic", "map:b256", "map:m1", "map:m-all"),
            *("--tasks", "oolong", "--set", "oolong.questions=8", "--samples", "2", "--map", SMALL_MAP),
        ),
    ),
    takes_limit=True,
)
