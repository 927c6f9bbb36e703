"""`acmserve bench llama`: which tokens llama.cpp's server evaluates for the edits of `bench edit`, in three ways.

Its store of older prompts in host memory is on by default, and decides what a restore costs. So the server at its
defaults stands beside its best, and beside its best without that store. The latter is the control: an option that
changes no count is no option. Tokens alone are counted, as the server tells them, so a busy machine does not matter.

The prompts are token ids, the same as those of `bench edit`, and each way has a server of its own, one after the other.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable, run_benchmark
from acmserve.bench.edit.kinds import KINDS, QUICK, EditSizes, KindEdit, plan_edits
from acmserve.bench.edit.main import LLAMA_WINDOW, read_text
from acmserve.bench.edit.run import RESTORED
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.llama_cpp import (
    BEST,
    NO_STORE,
    NOT_FOUND,
    WAYS,
    Evaluated,
    LlamaProcess,
    find_llama_server,
    read_version,
)
from acmserve.bench.harness.markdown_text import count
from acmserve.bench.harness.options import add_report_options, as_gate
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.provenance.measured import PROMPTS
from acmserve.errors import AcmError

Counts = Mapping[tuple[str, str], Evaluated]
"""What each way evaluated of each kind of edit."""


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench llama`. 0 when the gate is green, 1 when it is red."""
    return run_benchmark(_parser(), argv, measure, WAYS_TABLE)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every kind of edit in every way. Raises AcmError where there is no llama.cpp."""
    from acmserve.models.smollm2 import MODEL, prepare

    server = find_llama_server(options.llama_server)
    if server is None:
        raise AcmError(NOT_FOUND)
    sizes = QUICK if options.quick else EditSizes()
    (edits,) = plan_edits(read_text(prepare(progress=progress)), 0, sizes, num_rounds=1)
    gguf, num_threads = MODEL.take_gguf(progress=progress), len(os.sched_getaffinity(0))
    counts: dict[tuple[str, str], Evaluated] = {}
    for way in WAYS:
        with LlamaProcess(server, gguf, LLAMA_WINDOW, num_threads, way) as llama:
            llama.wait_ready()
            for kind, edit in edits.items():
                progress(counted(len(counts) + 1, len(WAYS) * len(KINDS), f"{way.title}, {kind}"))
                for tokens in edit.turns:
                    llama.ask(tokens)
                counts[way.name, kind] = llama.ask(edit.prompt)
    return as_report(counts, edits) | {"sizes": asdict(sizes), "version": read_version(server)}


def as_report(counts: Counts, edits: Mapping[str, KindEdit]) -> dict[str, Any]:
    """JSON-ready: a row for each kind of edit, with what each way kept and computed."""
    rows = [
        {
            "kind": kind,
            "prompt_tokens": len(edit.prompt),
            "new_tokens": edit.num_new,
            "ways": {way.name: _counts(counts[way.name, kind]) for way in WAYS},
        }
        for kind, edit in edits.items()
    ]
    return {
        "gate": as_gate(check_counts(rows)),
        "flags": {way.name: " ".join(way.flags) for way in WAYS},
        "rows": rows,
    }


def _counts(found: Evaluated) -> dict[str, int]:
    return {"kept_tokens": found.num_kept, "computed_tokens": found.num_computed}


def check_counts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why these counts may not be reported. A store that changes nothing was not switched on, or not switched off."""
    failures = [
        f"{row['kind']}, {name}: {sum(found.values())} tokens are counted, {row['prompt_tokens']} were sent"
        for row in rows
        for name, found in row["ways"].items()
        if sum(found.values()) != row["prompt_tokens"]
    ]
    (restored,) = (row["ways"] for row in rows if row["kind"] == RESTORED)
    with_store, without = (restored[way.name]["computed_tokens"] for way in (BEST, NO_STORE))
    if with_store >= without:
        failures.append(
            f"the store changes nothing: a restore evaluates {with_store} tokens with it, {without} without"
        )
    return failures


def _ways(report: Report) -> Iterator[list[str]]:
    for row in report["rows"]:
        told = [count(row["ways"][way.name]["computed_tokens"]) for way in WAYS]
        yield [
            row["kind"].replace("two-holes", "two folds"),
            count(row["prompt_tokens"]),
            str(row["new_tokens"]),
            *told,
        ]


WAYS_TABLE = ResultTable(
    ("edit", "prompt", "new tokens", "evaluated at its best", "at its own defaults", "at its best without its store"),
    _ways,
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench llama", description=__doc__.split("\n\n")[1])
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help="llama.cpp's server (default: on PATH)")
    add_report_options(parser, quick="shorter contexts: no result to quote", plot=False)
    return parser


BENCHMARK = Benchmark(
    "llama",
    "the tokens that llama.cpp's server evaluates for each kind of edit, in three ways to run it",
    main,
    (
        BenchmarkRun(
            "llama",
            ("llama",),
            can_plot=False,
            measures=PROMPTS,
            is_timed=False,
            no_exact="another engine, which has no fidelities",
        ),
    ),
)
