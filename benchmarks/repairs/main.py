"""`acmserve bench repairs`: is a repaired cache right for a question that the repair did not see?

Edits as agents make them: lists inside prose whose older rounds are folded, updates (PI-LLM), cleared tool results, and
stripped reasoning. Others are a chain of dropped thoughts, most of a page removed, coreference, needles, and unrelated
folds. Each repaired cache is asked the question behind the edit, later ones, and the first in other words. The control
is a repair that computes what has words in common with the first question. Where the benchmark does not catch that
repair, there are no numbers.

Rules are made on `train` cases. Held-out cases are for a rule that is fixed: the report has its digest. Under another
rule nothing is served, unless `--seeds` names them. A quick look takes `train` cases, where no others are asked for.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.edit.exact_check import check_exact
from acmserve.bench.edit.main import read_text
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.engine import LocalEngine
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_model_option, add_report_options, as_gate, hand_over, positive
from acmserve.bench.harness.run_log import progress
from acmserve.bench.models.model_folder import prepare_model
from acmserve.bench.provenance.measured import ENGINE
from acmserve.bench.repairs.cases import NEWEST, SEED_SETS, TRAIN, make_cases
from acmserve.bench.repairs.rule import breach, rule_digest
from acmserve.bench.repairs.table import as_table
from acmserve.bench.repairs.ways import CHEAP, WAYS, Way
from acmserve.bench.tasks.generators.case import digest
from acmserve.bench.tasks.prompt import tokenize_cases
from acmserve.errors import AcmError

NUM_CASES, NUM_QUICK = 20, 1
KV_GIB = 2
FORCED_MODEL = "acmserve.bench.models.forced_model:ForcedModel"


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench repairs`. Returns 0 when the gate is green, 1 when it is red."""
    options = _parser().parse_args(argv)
    folder = prepare_model(options.model)
    machine = describe_machine()
    print(one_line(machine), flush=True)
    num_each = options.cases or (NUM_QUICK if options.quick else NUM_CASES)
    ways = WAYS + CHEAP * options.cheap
    report = measure(folder, num_each, _seeds(options), options.family, ways, may_breach=options.seeds is not None)
    report["machine"] = machine
    return hand_over(report, as_table, None, options)


def measure(
    folder: Path,
    num_each: int,
    seeds: str,
    family: str | None = None,
    ways: Sequence[Way] = WAYS,
    *,
    may_breach: bool = False,
) -> dict[str, Any]:
    """Serve `num_each` cases of every family, or of one. No numbers when the gate is red.

    Raises AcmError for seeds that are kept for another rule, unless it `may_breach`. So nothing reads them by mistake.
    """
    rule = rule_digest()
    if told := breach(seeds, rule):
        if not may_breach:
            raise AcmError(f"{told} Announce this rule in the log and in FIXED_RULES, or name the seeds with --seeds.")
        progress(told)
    cases = make_cases(num_each, seeds, read_library(), family)
    progress(f"{folder.name}: rule {rule}; starting the engine (about half a minute)")
    engine = LocalEngine(folder, with_acmserve=True, kv_gib=KV_GIB, logits_processors=[FORCED_MODEL])
    # Behind the engine, which sets what vLLM reads when it is first imported.
    from acmserve.bench.repairs.run import run_cases
    from acmserve.bench.repairs.summary import SEED, control, control_failures, harm, mix_of, summarise
    from acmserve.bench.tasks.floor import above_floor, answerable, at_floor, kinds_at_floor
    from acmserve.bench.tasks.run import TasksOutcome

    outcome = TasksOutcome()
    try:
        checked = check_exact(engine.ask, read_text(folder))
        run_cases(engine, tokenize_cases(cases, engine.tokenizer), outcome, ways, say=progress)
    except KeyboardInterrupt:
        if not outcome.records:
            raise
        progress(f"stopped: {len(outcome.records)} cases are reported")
    finally:
        engine.close()
    kept = above_floor(outcome.records)
    mix = mix_of(kept, SEED_SETS[seeds] + num_each)
    failures = checked.failures + outcome.failures + ([] if outcome.refusal else control_failures(mix, SEED))
    if not kept:
        failures.append("exact answers too few questions of every size, so nothing is told")
    is_green = not failures
    return {
        "model": folder.name,
        "seeds": seeds,
        "num_cases": len(outcome.records),
        "planned": dict(Counter(case.task for case in cases)),
        "digest": digest(cases),
        "rule": rule,
        "gate": as_gate(failures),
        "exact_check": checked.as_dict(),
        "refusal": outcome.refusal,
        "at_floor": at_floor(outcome.records) if is_green else {},
        "kinds_at_floor": kinds_at_floor(kept) if is_green else {},
        "summary": summarise(kept, mix, SEED) if is_green else [],
        "harm": harm(answerable(kept)) if is_green else None,
        "control": control(mix, SEED) if is_green else None,
        "records": outcome.records if is_green else [],
    }


def _seeds(options: argparse.Namespace) -> str:
    """A quick look reads no held-out case unless it is asked to."""
    return str(options.seeds or (TRAIN if options.quick else NEWEST))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench repairs",
        description="Repaired caches, each asked the question that the repair saw, later ones and a paraphrased one: "
        "KL to exact, right answers and what was moved, with 95 % intervals, for ten families of edits. "
        "Half an hour on two cores (Ctrl-C keeps what is whole); --quick takes two minutes.",
    )
    add_model_option(parser)
    parser.add_argument(
        "--cases",
        type=positive,
        metavar="N",
        help=f"cases of each family, and three times as many of two (default {NUM_CASES}; {NUM_QUICK} when --quick)",
    )
    parser.add_argument(
        "--seeds",
        choices=sorted(SEED_SETS),
        help=f"{TRAIN} makes a rule, and is the default with --quick. {NEWEST} judges one that was fixed before, and "
        "is the default without. An older held-out set is used up. Seeds that are named are read under any rule.",
    )
    parser.add_argument("--family", metavar="NAME", help='one family alone, such as "chain of thoughts"')
    parser.add_argument("--cheap", action="store_true", help="two repairs of a few tokens beside the others")
    add_report_options(parser, quick="few cases: a look, not a result to quote", plot=False)
    return parser


BENCHMARK = Benchmark(
    "repairs",
    "whether a repaired cache is right for a question that the repair did not see",
    main,
    (
        BenchmarkRun(
            "repairs",
            ("repairs", "--cases", "12"),
            quick=("repairs", "--quick"),
            can_plot=False,
            measures=ENGINE,
            is_timed=False,
        ),
        BenchmarkRun(
            "repairs-thoughts",
            ("repairs", "--family", "chain of thoughts", "--cases", "12", "--seeds", TRAIN, "--cheap"),
            can_plot=False,
            measures=ENGINE,
            is_timed=False,
        ),
    ),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
