"""`acmserve bench speculation`: an answer behind a fold, drafted on moved KV while its exact prompt is prefilled.

The fold of `bench edit` at 5,500 tokens, then an answer of 200 tokens: under `exact`, and under `exact` with a draft
that is verified. Prefill alone and decode alone stand beside it, since a draft may make the longer of both out of
their sum. On ordinary text, and on text in which the folded part matters. A quarter of an hour on two quiet cores.

Times stand only where every answer has the tokens of `exact`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from acmserve.bench.agent.result_table import run_benchmark
from acmserve.bench.edit.exact_check import check_exact, over_http, with_check
from acmserve.bench.edit.kinds import QUICK, EditSizes
from acmserve.bench.edit.main import read_text
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.options import add_report_options, positive
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.harness.server_process import ServerProcess
from acmserve.bench.provenance.measured import SERVER
from acmserve.bench.speculation.cases import KINDS, make_case
from acmserve.bench.speculation.run import ask_timed, run_case
from acmserve.bench.speculation.table import ANSWERS_TABLE, BARS_TABLE, DRAFTS_TABLE, as_report

NUM_TOKENS = 200
_QUICK_TOKENS = 40
_WARM_UP = 1_000


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench speculation`. 0 when the gate is green, 1 when it is red. A missed bar is told."""
    return run_benchmark(_parser(), argv, measure, BARS_TABLE, ANSWERS_TABLE, DRAFTS_TABLE)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every case of every kind, kinds in turns. One in front of them warms up, with its draft and its verification."""
    # Imported late: it takes seconds, which `--help` can do without.
    from transformers import AutoTokenizer

    from acmserve.models.smollm2 import prepare
    from acmserve.server.models.tokenizer import ServedTokenizer

    folder = prepare()
    tokenizer, library = ServedTokenizer(AutoTokenizer.from_pretrained(folder)), read_library()
    sizes, num_tokens = (QUICK, _QUICK_TOKENS) if options.quick else (EditSizes(), options.tokens)
    num_cases = 1 if options.quick else options.cases
    flags = ["--served-model-name", "smollm2"]
    if options.chunk:
        flags += [
            "--kv-transfer-config",
            json.dumps({"kv_connector_extra_config": {"draft_chunk_tokens": options.chunk}}),
        ]
    rows: list[dict[str, Any]] = []
    with ServerProcess(folder, flags) as server:
        progress("starting the server (about half a minute)")
        url = server.wait_ready()
        checked = check_exact(over_http(url, "smollm2"), read_text(folder))
        ask = partial(ask_timed, url)
        progress("warm-up, not counted")
        small = replace(QUICK, suffix=_WARM_UP)
        run_case(ask, make_case(KINDS[0], _WARM_UP, library, tokenizer, small), _QUICK_TOKENS)
        for number in range(num_cases):
            for place, kind in enumerate(KINDS):
                progress(counted(len(KINDS) * number + place + 1, len(KINDS) * num_cases, kind))
                rows.append(run_case(ask, make_case(kind, number, library, tokenizer, sizes), num_tokens))
    about = {"context_tokens": sizes.context, "answer_tokens": num_tokens, "draft_chunk_tokens": options.chunk or 0}
    return with_check(as_report(rows, about), checked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="acmserve bench speculation", description=__doc__.split("\n\n")[1])
    add = parser.add_argument
    add("--cases", type=positive, metavar="N", default=5, help="cases of each kind of text (default 5)")
    add("--tokens", type=positive, metavar="N", default=NUM_TOKENS, help=f"of an answer (default {NUM_TOKENS})")
    add("--chunk", type=positive, metavar="N", help="draft_chunk_tokens of the engine (default: its own)")
    add_report_options(parser, quick="one short case of each kind: no result to quote", plot=False)
    return parser


BENCHMARK = Benchmark(
    "speculation",
    "an exact answer behind a fold, drafted on moved KV while its prompt is prefilled",
    main,
    (BenchmarkRun("speculation", ("speculation",), quick=("speculation", "--quick"), can_plot=False, measures=SERVER),),
)
