"""`acmserve bench memory`: what a session takes of the block pool and of host memory, beside stock vLLM.

One conversation of appends and folds, the same prompts for stock, `exact` and `reuse`. First an engine serves
each, whose pool is looked at behind every step (`pool_watch.py`). Then a server does, whose processes are looked at
(`resident.py`).

Blocks and bytes alone are told, so a busy machine does not matter. Nothing is told where `exact` is not stock vLLM by
32 tokens and their log-probabilities. Neither is anything told where moved KV would pass for exact KV, or where a
control sees nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable, run_benchmark
from acmserve.bench.edit.gate import check_control, compare_answers
from acmserve.bench.edit.main import read_text
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.markdown_text import count
from acmserve.bench.harness.options import add_report_options, as_gate
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.memory.conversation import QUICK, MemorySizes, plan_turns
from acmserve.bench.memory.pool_watch import EXACT, REUSE, STOCK, UNHELD, WAYS, WatchedWay, watch_way
from acmserve.bench.memory.resident import BALLAST_BYTES, SERVED, see_ballast, serve_way
from acmserve.bench.models.model_folder import kv_bytes, prepare_model
from acmserve.bench.provenance.measured import SERVER

_BALLAST_SHARE = 0.1
_TITLES = {STOCK: "stock vLLM", EXACT: "`exact`", REUSE: "`reuse`", UNHELD: "control: `reuse`, sources not held"}


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench memory`. 0 when the gate is green, 1 when it is red."""
    return run_benchmark(_parser(), argv, measure, BLOCKS, BYTES)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every way once in an engine, and once in a server, one after the other."""
    folder, sizes = prepare_model(options.model), QUICK if options.quick else MemorySizes()
    turns = plan_turns(read_text(folder), sizes)
    num_steps, watched = len(WAYS) + len(SERVED), dict[str, WatchedWay]()
    for name in WAYS:
        progress(counted(len(watched) + 1, num_steps, f"blocks of {name}"))
        watched[name] = watch_way(name, folder, turns)
    served = dict[str, tuple[int, int]]()
    for name in SERVED:
        progress(counted(len(watched) + len(served) + 1, num_steps, f"memory of a server, {name}"))
        served[name] = serve_way(name, folder, turns)
    about = {
        "model": folder.name,
        "sizes": asdict(sizes),
        "num_turns": len(turns),
        "kv_bytes_a_token": kv_bytes(folder),
    }
    return as_report(watched, served, see_ballast()) | about


def as_report(
    watched: Mapping[str, WatchedWay], served: Mapping[str, tuple[int, int]], seen_bytes: int
) -> dict[str, Any]:
    """JSON-ready: a row for each way, the control among them. None behind a red gate."""
    failures = check_ways(watched, seen_bytes)
    rows = []
    for name, way in watched.items():
        ready, after = served.get(name, (None, None))
        rows.append(way.as_dict() | {"ready_bytes": ready, "after_bytes": after})
    return {
        "gate": as_gate(failures),
        "ballast": {"held_bytes": BALLAST_BYTES, "seen_bytes": seen_bytes},
        "rows": [] if failures else rows,
    }


def check_ways(watched: Mapping[str, WatchedWay], seen_bytes: int) -> list[str]:
    """Why nothing may be told."""
    failures = [f"{name}: {failure}" for name, way in watched.items() for failure in way.failures]
    failures += [
        f"{name}: {way.most_idle_blocks} blocks are held between turns"
        for name, way in watched.items()
        if way.most_idle_blocks
    ]
    stock, exact, reuse = (watched[name].last for name in (STOCK, EXACT, REUSE))
    assert stock is not None
    assert exact is not None
    assert reuse is not None
    if not (found := compare_answers(exact, stock)).is_same:
        failures.append(f"exact answers otherwise than stock vLLM: {found}")
    failures += check_control([compare_answers(reuse, stock)])
    copied = {name: way.most_copied_blocks for name, way in watched.items()}
    if not copied[REUSE] or copied[STOCK] or copied[UNHELD]:
        failures.append(f"the watch cannot tell sources that are held from none: {copied}")
    if abs(seen_bytes - BALLAST_BYTES) > _BALLAST_SHARE * BALLAST_BYTES:
        failures.append(f"of {BALLAST_BYTES:,} bytes that were held {seen_bytes:,} are seen")
    return failures


def _blocks(report: Report) -> Iterator[list[str]]:
    for row in report["rows"]:
        held = (row[f"most_{name}_blocks"] for name in ("held", "copied", "idle"))
        tokens = (count(row["tokens"][f"{name}_tokens"]) for name in ("kept", "moved", "computed"))
        yield [_TITLES[row["name"]], *(str(number) for number in held), count(row["cached_blocks"]), *tokens]


def _bytes(report: Report) -> Iterator[list[str]]:
    for row in report["rows"]:
        if row["ready_bytes"] is not None:
            ready, after = row["ready_bytes"], row["after_bytes"]
            grown = mebibytes(after - ready)
            yield [_TITLES[row["name"]], mebibytes(ready), mebibytes(after), grown, kibibytes(row["store_bytes"])]


def mebibytes(number: int) -> str:
    """`1,234 MiB`."""
    return f"{number / 2**20:,.0f} MiB"


def kibibytes(number: int) -> str:
    """`12 KiB`, or nothing for 0."""
    return f"{number / 2**10:,.0f} KiB" if number else ""


BLOCKS = ResultTable(
    (
        *("", "most blocks held in a step", "of these sources of copies", "held between turns", "cached at the end"),
        *("kept", "moved", "computed"),
    ),
    _blocks,
    "Blocks of the pool, and tokens of all prompts.",
)
BYTES = ResultTable(
    ("", "server when it is ready", "behind the conversation", "grown by", "of it token ids and hashes of sources"),
    _bytes,
    "Memory of the server's processes.",
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench memory", description=__doc__.split("\n\n")[1])
    parser.add_argument("--model", default="smollm2", metavar="M", help="smollm2 (default), or a Hugging Face folder")
    add_report_options(parser, quick="a short conversation: a look, not a measurement", plot=False)
    return parser


BENCHMARK = Benchmark(
    "memory",
    "blocks of the pool and host memory that a session takes, beside stock vLLM",
    main,
    (
        BenchmarkRun(
            "memory",
            ("memory",),
            quick=("memory", "--quick"),
            can_plot=False,
            measures=SERVER,
            is_timed=False,
        ),
    ),
)
