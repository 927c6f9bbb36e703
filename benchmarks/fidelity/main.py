"""`acmserve bench fidelity`: how far the answers after an edit are from exact ones, in every way to serve them.

For each edit of a context the engine is led along the true continuation and asked for its whole distribution at every
token. The engine answers once by exact computation, once on moved KV, and once on every setting in between. The
distance is KL(exact || served). The same scale shows what other prompts do, which a user may take for harmless: another
wording of the marker, the context without the edit.

Text comes from the standard library, so nothing is downloaded but the model. `digest` in the report says which text.
Ctrl-C ends a model's run early: the documents that are whole are reported, for a part of one would tilt the mix of
kinds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acmserve.bench.agent.result_table import run_benchmark
from acmserve.bench.edit.exact_check import check_exact
from acmserve.bench.edit.main import read_text
from acmserve.bench.fidelity.cases import Case, with_lead
from acmserve.bench.fidelity.plan import FULL, QUICK, BenchPlan, plan_cases, whole_documents
from acmserve.bench.fidelity.summary import DISTANCES, summarise
from acmserve.bench.fidelity.text import choose_documents, digest
from acmserve.bench.fidelity.variants import VARIANTS
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.engine import LocalEngine
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.options import add_report_options, as_gate, positive
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.models.model_folder import prepare_model
from acmserve.bench.provenance.measured import ENGINE

if TYPE_CHECKING:
    from acmserve.bench.fidelity.run import FidelityOutcome

KV_GIB = 4
FORCED_MODEL = "acmserve.bench.models.forced_model:ForcedModel"


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench fidelity`. Returns 0 when the gate is green, 1 when it is red."""
    return run_benchmark(_parser(), argv, measure, DISTANCES)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every model in turn, each in an engine of its own. No numbers when the gate is red."""
    plan, seed = QUICK if options.quick else FULL, options.seed
    plan = replace(plan, num_documents=options.documents or plan.num_documents)
    names = options.model or (["smollm2"] if options.quick else ["smollm2", "gemma3"])
    done = [_measure_model(folder, plan, seed) for folder in [prepare_model(name) for name in names]]
    failures = [f"{model['name']}: {failure}" for model, outcome in done for failure in outcome.failures]
    return {
        "seed": seed,
        "gate": as_gate(failures),
        "models": [] if failures else [model for model, _ in done],
    }


def _measure_model(folder: Path, plan: BenchPlan, seed: int) -> tuple[dict[str, Any], FidelityOutcome]:
    """All cases of the plan, or the whole documents until Ctrl-C."""
    progress(f"{folder.name}: starting the engine (about half a minute)")
    engine = LocalEngine(folder, with_acmserve=True, kv_gib=KV_GIB, logits_processors=[FORCED_MODEL])
    # Behind the engine, which sets what vLLM reads when it is first imported.
    from acmserve.bench.fidelity.run import FidelityOutcome, run_case

    outcome, cases, num_begun = FidelityOutcome(), list[Case](), 0
    try:
        checked = check_exact(engine.ask, read_text(folder))
        outcome.failures += checked.failures
        encode = _encoder(engine.tokenizer)
        needed = max(plan.contexts) + plan.continuation
        documents = choose_documents(read_library(), encode, plan.num_documents, needed, seed)
        lead = tuple(engine.tokenizer("", verbose=False).input_ids)
        cases = [with_lead(case, lead) for case in plan_cases(documents, plan, encode, seed)]
        seen: set[str] = set()
        for num_begun, case in enumerate(cases, start=1):
            progress(counted(num_begun, len(cases), f"{folder.name}, {case.name}"))
            run_case(engine, case, outcome, twice=case.kind not in seen)
            seen.add(case.kind)
    except KeyboardInterrupt:
        cases = whole_documents(cases[:num_begun])
        whole = {case.document for case in cases}
        outcome.records = [record for record in outcome.records if record["document"] in whole]
        if not cases:
            raise
        progress(f"stopped: {len(cases)} cases, the documents that are whole, are reported")
    finally:
        engine.close()
    names = [variant.name for variant in VARIANTS]
    return {
        "name": folder.name,
        "variants": names,
        "digest": digest([turn.prompt + turn.continuation for case in cases for turn in case.turns]),
        "num_documents": len({record["document"] for record in outcome.records}),
        "num_cases": len({record["case"] for record in outcome.records}),
        "exact_difference": outcome.exact_difference,
        "exact_check": checked.as_dict(),
        "summary": summarise(outcome.records, names, seed),
        "records": outcome.records,
    }, outcome


def _encoder(tokenizer: Any) -> Callable[[str], tuple[int, ...]]:
    return lambda text: tuple(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench fidelity",
        description="How far answers after an edit are from exact ones: KL per token over the true continuation, "
        "and top-1 agreement, for every kind of edit and every way to serve it. "
        "An hour and a half on two cores (Ctrl-C keeps what is whole); --quick takes three minutes.",
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        help="smollm2, gemma3, or a Hugging Face folder; may be given again (default: both; smollm2 when --quick)",
    )
    parser.add_argument(
        "--documents", type=positive, metavar="N", help="texts to edit, which are what intervals are over"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="chooses texts and updates (default 0)")
    add_report_options(parser, quick="two documents, short contexts: a look, not a result to quote", plot=False)
    return parser


BENCHMARK = Benchmark(
    "fidelity",
    "how far answers after an edit are from exact ones, in every way to serve them",
    main,
    (
        BenchmarkRun(
            "fidelity",
            ("fidelity", "--model", "smollm2", "--documents", "4", "--seed", "1"),
            quick=("fidelity", "--quick"),
            can_plot=False,
            measures=ENGINE,
            is_timed=False,
            no_exact="every distance is one from `exact`",
            is_recorded=False,
        ),
    ),
)
