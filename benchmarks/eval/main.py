"""`acmserve eval URL`: do edited contexts give right answers, on the papers' own tasks, and at what cost?

    URL --> what can it do? --> samples x ways --> journal.jsonl --> results.json, page.md, page.html

It speaks to any server with OpenAI's chat completions. Ways that need acmserve are skipped elsewhere, and named.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from acmserve.bench.eval.baselines.way_limits import add_limit_options, limits_of
from acmserve.bench.eval.page import as_html, as_markdown
from acmserve.bench.eval.prices import PriceRatios, add_price_options, prices_of
from acmserve.bench.eval.run import EvalPlan, make_plan, play_all
from acmserve.bench.eval.schedule.journal import Journal
from acmserve.bench.eval.schedule.pace import EvalPace
from acmserve.bench.eval.summary import by_setting, num_unscored, summarise
from acmserve.bench.eval.target import Target
from acmserve.bench.eval.tasks.registry import DEFAULT_TASKS, TASKS, check_parameters, find_task, make_samples
from acmserve.bench.eval.tasks.task import EvalSample
from acmserve.bench.eval.ways import DEFAULT_WAYS, WAYS
from acmserve.bench.harness.options import minutes, positive
from acmserve.bench.harness.run_log import progress
from acmserve.bench.provenance.kept_file import write_whole
from acmserve.errors import AcmError, InvalidRequest

_KEYS = ("ACMSERVE_API_KEY", "OPENAI_API_KEY")
DESCRIPTION = (
    "Plays tasks of the papers on a server with OpenAI's chat completions: with the whole context, with context tools, "
    "under budgets, with branches and with a map. Tells scores with intervals, tokens, tool calls, time and cost. "
    "A run that was cut off goes on: give the same command again."
)
EPILOG = """\
examples:
  acmserve eval http://localhost:8000/v1 --quick
  acmserve eval http://localhost:8000/v1 --tasks pi-llm --set pi-llm.updates=2,8,32 --samples 5
  acmserve eval https://api.example.com/v1 --model m --tasks mrcr --data mrcr=mrcr.jsonl --price-base 3

tasks:
{}

ways: {}
"""


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    tasks = "\n".join(f"  {task.name:<14}{task.paper}" for task in TASKS.values())
    flags = argparse.ArgumentParser(
        prog="acmserve eval",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=DESCRIPTION,
        epilog=EPILOG.format(tasks, ", ".join(WAYS)),
    )
    flags.add_argument("url", metavar="URL", help="the server, such as http://localhost:8000/v1")
    flags.add_argument("--model", metavar="NAME", help="default: the first that the server lists")
    flags.add_argument("--api-key", metavar="KEY", default=_key(), help=f"default: ${_KEYS[0]}, then ${_KEYS[1]}")
    flags.add_argument("--tasks", type=_names, default=DEFAULT_TASKS, metavar="A,B", help="default: all but terminal")
    flags.add_argument(
        "--ways", type=_names, default=DEFAULT_WAYS, metavar="A,B", help=f"default: {','.join(DEFAULT_WAYS)}"
    )
    flags.add_argument(
        "--samples", type=positive, metavar="N", help="contexts for each setting, or rows of a file (5, or 1 if quick)"
    )
    flags.add_argument("--seed", type=int, default=0, metavar="N", help="draws the samples (%(default)s)")
    flags.add_argument("--set", action="append", default=[], metavar="TASK.NAME=1,2", help="a parameter of a task")
    flags.add_argument("--published", action="store_true", help="the parameters of the papers instead of small ones")
    flags.add_argument("--data", action="append", default=[], metavar="TASK=FILE", help="your file of a task")
    flags.add_argument(
        "--budget", type=_budget, default=0.5, metavar="N", help="tokens, or a share of what may go (default 50%%)"
    )
    flags.add_argument(
        "--parallel", type=positive, default=1, metavar="N", help="samples that are asked side by side (%(default)s)"
    )
    flags.add_argument(
        "--max-minutes",
        type=minutes,
        metavar="N",
        help="behind them no sample begins. The report has those that were played, and the command goes on",
    )
    flags.add_argument(
        "--max-tokens",
        type=positive,
        metavar="N",
        help="of each answer, for a model that reasons first (the task's own)",
    )
    flags.add_argument(
        "--context-limit",
        type=positive,
        metavar="TOKENS",
        help="of which the main thread of `branches` is to stay below half (the window that the server tells)",
    )
    flags.add_argument("--request", type=json_fields, default={}, metavar="JSON", help="fields of every request")
    flags.add_argument(
        "--map", type=json_fields, default={}, metavar="JSON", help="fields of acm.map, for ways with a map"
    )
    flags.add_argument("--quick", action="store_true", help="one context for each setting: a look, not a result")
    flags.add_argument(
        "--output", type=Path, default=Path("eval"), metavar="FOLDER", help="journal, results and page (%(default)s)"
    )
    add_limit_options(flags)
    add_price_options(flags)
    return flags


def main(argv: Sequence[str]) -> int:
    """Play what is not played yet, and write the report. 0 when it is written, 1 when a scorer failed."""
    options = parser().parse_args(argv)
    samples = samples_of(options)
    target = Target.find(options.url, options.model, options.api_key, {"temperature": 0, **options.request})
    try:
        plan = make_plan(target, samples, options.ways, options.budget, options.map, limits_of(options))
        for way, reason in plan.skipped.items():
            progress(f"skipped: {way}: {reason}")
        if not plan.ways:
            raise InvalidRequest("--ways", "leaves nothing to play: each way is skipped.", "Name 'baseline'.")
        limit = options.context_limit or target.window()
        _make_folder(options.output)
        journal = Journal(options.output / "journal.jsonl", plan.digest)
        records = play_all(plan, target, journal, progress, pace_of(options))
    finally:
        target.close()
    report = as_report(plan, records, prices_of(options), options.seed, has_acm=target.has_acm, context_limit=limit)
    page = as_markdown(report)
    for name, text in (
        ("results.json", json.dumps(report, indent=1) + "\n"),
        ("page.md", page),
        ("page.html", as_html(report)),
    ):
        write_whole(options.output / name, text)
    print(page)
    unscored = num_unscored(records)
    refused = [record["error"] for record in records if record["error"] and not record.get("unscored")]
    if refused:
        progress(
            f"{len(refused):,} of {len(records):,} samples were refused and count as wrong. The first: {refused[0]}"
        )
    if unscored:
        progress(f"the scorer failed on {unscored:,} answers. They are kept: the same command scores them again.")
    return int(unscored > 0)


def as_report(
    plan: EvalPlan,
    records: Sequence[Mapping[str, Any]],
    prices: PriceRatios,
    seed: int,
    *,
    has_acm: bool,
    context_limit: int | None = None,
) -> dict[str, Any]:
    """The one JSON: how it was run, the rows, and every record."""
    baselines = {way.name: way.baseline for way in plan.ways}
    return {
        "run": plan.digest,
        "model": plan.model,
        "has_acm": has_acm,
        "seed": seed,
        "num_samples": len(plan.samples),
        "num_planned": len(plan.pairs()),
        "num_played": len(records),
        "budget": plan.budget,
        "map": dict(plan.map_options),
        "limits": asdict(plan.limits),
        "prices": asdict(prices),
        "ways": {way.name: way.title for way in plan.ways},
        "skipped": dict(plan.skipped),
        "rows": summarise(records, baselines, prices, context_limit),
        "settings": by_setting(records),
        "records": list(records),
    }


def samples_of(options: argparse.Namespace) -> list[EvalSample]:
    """The samples that the flags ask for."""
    tasks = [find_task(name) for name in dict.fromkeys(options.tasks)]
    paths = dict(_pair(text, "--data") for text in options.data)
    given: dict[str, dict[str, tuple[int, ...]]] = {}
    for text in options.set:
        place, values = _pair(text, "--set")
        name, _, parameter = place.partition(".")
        given.setdefault(find_task(name).name, {})[parameter] = _numbers(text, values)
    for name in [*paths, *given]:
        if find_task(name) not in tasks:
            raise InvalidRequest("--tasks", f"does not name {name!r}, for which something is given.")
    num = options.samples or (1 if options.quick else 5)
    found = []
    for task in tasks:
        grid = check_parameters(task, given.get(task.name, {}))
        if options.published:
            grid = {**task.published, **given.get(task.name, {})}
        path = Path(paths[task.name]) if task.name in paths else None
        found += make_samples(task, num, options.seed, grid, path)
    most = options.max_tokens
    return (
        found
        if most is None
        else [replace(one, max_tokens=most, memory_tokens=min(most, one.memory_tokens)) for one in found]
    )


def pace_of(options: argparse.Namespace) -> EvalPace:
    """How the flags want it to go, from now on."""
    until = None if options.max_minutes is None else time.monotonic() + 60 * options.max_minutes
    return EvalPace(options.parallel, until)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AcmError(f"--output {path} cannot be made: {error.strerror}. Name a folder of your own.") from error


def _key() -> str | None:
    return next((os.environ[name] for name in _KEYS if os.environ.get(name)), None)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _pair(text: str, flag: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name or not value:
        raise InvalidRequest(flag, f"{text!r} has no name and value.", "Give NAME=VALUE.")
    return name, value


def _numbers(text: str, values: str) -> tuple[int, ...]:
    try:
        return tuple(int(value) for value in values.split(","))
    except ValueError:
        raise InvalidRequest("--set", f"{text!r} holds no whole numbers.", "Give for instance 2,4,8.") from None


def _budget(text: str) -> float:
    share = text.endswith("%")
    try:
        value = float(text.removesuffix("%")) / (100 if share else 1)
    except ValueError:
        value = 0.0
    if not (0 < value < 1 if share else value >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is neither tokens nor a share below 100%")
    return value


def json_fields(text: str) -> dict[str, Any]:
    """Argument type: a JSON object, of fields of `acm.map` or of a request."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return fields
