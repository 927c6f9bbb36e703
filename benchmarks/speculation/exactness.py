"""`acmserve bench speculation-tokens`: are the tokens of drafted and verified answers those of `exact`, all of them?

Varied conversations, in which one document after the other is folded. Each turn is asked for under `exact` and with a
draft, and every token is compared. Those of answers whose draft was verified count, until there are 10,000 of them.
A tenth of these have to be accepted tokens of drafts.
Tokens are counted and nothing is timed, so a busy machine does not matter. Three quarters of an hour on two cores.

The gate: no token is another one, and enough count. Its control is moved KV, shown as if it were exact.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from acmserve.bench.agent.result_table import run_resumable
from acmserve.bench.edit.exact_check import check_exact, over_http, with_check
from acmserve.bench.edit.main import read_text
from acmserve.bench.harness.benchmark import Benchmark, BenchmarkRun
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.options import add_report_options, kept_file, positive, read_partial
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.harness.server_process import ServerProcess
from acmserve.bench.provenance.measured import SERVER
from acmserve.bench.speculation.compared import play
from acmserve.bench.speculation.conversations import TURNS, make_conversation
from acmserve.bench.speculation.kept import KeptConversations
from acmserve.bench.speculation.run import ask_timed
from acmserve.bench.speculation.verdict import (
    KINDS_TABLE,
    LEAST_COMPARED,
    REASONS_TABLE,
    WAYS_TABLE,
    as_report,
    least_accepted,
    num_accepted_tokens,
    num_verified_tokens,
)

NAME = "speculation-tokens"
NUM_ANSWER = 100
_QUICK_TOKENS, _QUICK_ANSWER = 100, 50


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench speculation-tokens`. 0 when the gate is green, 1 when it is red."""
    return run_resumable(_parser(), argv, measure, NAME, WAYS_TABLE, KINDS_TABLE, REASONS_TABLE)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Conversations until enough tokens count, or as many again were played as would have been enough."""
    # Imported late: it takes seconds, which `--help` can do without.
    from transformers import AutoTokenizer

    from acmserve.models.smollm2 import prepare
    from acmserve.server.models.tokenizer import ServedTokenizer

    asked, answer = (_QUICK_TOKENS, _QUICK_ANSWER) if options.quick else (options.tokens, options.answer)
    file = kept_file(options, NAME)
    kept = KeptConversations(answer, file)
    if options.resume:
        kept.resume(read_partial(file))
    folder = prepare()
    tokenizer, library = ServedTokenizer(AutoTokenizer.from_pretrained(folder)), read_library()
    with ServerProcess(folder, ["--served-model-name", "smollm2"]) as server:
        progress("starting the server (about half a minute)")
        url = server.wait_ready()
        checked = check_exact(over_http(url, "smollm2"), read_text(folder))
        while (num := num_expected(kept.rows, asked, answer)) > len(kept.rows):
            conversation = make_conversation(len(kept.rows), library, tokenizer)
            progress(counted(len(kept.rows) + 1, num, conversation.kind))
            kept.keep(play(partial(ask_timed, url), conversation, answer))
    return with_check(as_report(kept.rows, asked, answer), checked) | kept.use()


def num_expected(rows: Sequence[Mapping[str, Any]], num_asked: int, num_answer: int) -> int:
    """Conversations that the run will have, by those that were played. Half of the drafts have to be verified."""
    at_best = math.ceil(num_asked / (TURNS * num_answer))
    found = ((num_asked, num_verified_tokens(rows)), (least_accepted(num_asked), num_accepted_tokens(rows)))
    if all(num >= least for least, num in found):
        return len(rows)
    expected = max(math.ceil(least * len(rows) / num) if num else at_best for least, num in found)
    return min(max(expected, len(rows) + 1), 2 * at_best)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"acmserve bench {NAME}", description=__doc__.split("\n\n")[1])
    add = parser.add_argument
    add(
        "--tokens",
        type=positive,
        metavar="N",
        default=LEAST_COMPARED,
        help=f"of answers whose draft was verified (default {LEAST_COMPARED:,})",
    )
    add("--answer", type=positive, metavar="N", default=NUM_ANSWER, help=f"tokens of each (default {NUM_ANSWER})")
    add_report_options(parser, quick="two short answers: no result to quote", plot=False)
    add("--resume", action="store_true", help="keep the conversations that a run with this --json left when it ended")
    return parser


BENCHMARK = Benchmark(
    "speculation-tokens",
    "whether the tokens of drafted and verified answers are those of exact",
    main,
    (
        BenchmarkRun(
            NAME,
            (NAME,),
            quick=(NAME, "--quick"),
            can_plot=False,
            measures=SERVER,
            is_timed=False,
            resume_flags=("--resume",),
            minutes=45,
        ),
    ),
)
