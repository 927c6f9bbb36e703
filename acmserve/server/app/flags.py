"""The flags of `acmserve serve` that are not vLLM's, with their help.

Each is a field of `ContextConfig` or of `EngineConfig`. It knows no value beyond its type: the two classes check them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from acmserve.context.eviction.registry import POLICIES
from acmserve.engine.config import EngineConfig
from acmserve.plan.request import FIDELITIES
from acmserve.server.app.launch.flag_names import OneLineParser
from acmserve.server.exchange.events import FORMATS
from acmserve.server.options.config import ContextConfig
from acmserve.server.options.session_params import SOURCES

DESCRIPTION = """\
Start vLLM's OpenAI-compatible server with sessions: a client that names its session (`session_id` in the body, the
header `X-Session-ID`, or what Codex, Claude Code and opencode send anyway) and edits its own history gets the KV cache
of the kept text moved instead of computed again. With --infer-sessions it need not name it. The server keeps the
transcript of a session: people and models fold, summarize, restore and search it (/v1/acm, and "acm": {"tools":
"sculptor"} in a chat request). Requests without a session id are served as by plain vLLM.
With vLLM's --api-server-count N each session has one of N API servers as its owner, and the others hand over."""

EPILOG = """\
MODEL is a Hugging Face name, a folder, or `smollm2`, the small model that comes with acmserve (prepared on first use).
Every other flag is vLLM's:   acmserve serve --help=all             all of them
                              acmserve serve --help=max-model-len   one flag
                              acmserve serve --help=CacheConfig     one group

examples:
  acmserve serve smollm2 --port 8000
  acmserve serve smollm2 --fidelity reuse --max-model-len 8192

  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{
    "model": "smollm2", "session_id": "agent-7", "acm": {"fidelity": "reuse"},
    "messages": [{"role": "user", "content": "What is the capital of France?"}]}'

The answer carries the receipt, `acm.receipt`: how many prompt tokens were kept, moved and computed; the sums are on
/metrics (acmserve:kept_tokens_total, acmserve:moved_tokens_total, acmserve:computed_tokens_total)."""


def build_parser() -> argparse.ArgumentParser:
    """Our own flags only. What it does not know is left to vLLM, in order. It raises AcmError for a bad value."""
    parser = OneLineParser(
        prog="acmserve serve",
        usage="acmserve serve MODEL [--fidelity F] [--data-dir D] [flags below] [any vLLM flag]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--fidelity",
        choices=FIDELITIES,
        help="what a session request gets that does not say it: exact = token for token what vLLM answers, "
        "only kept prefixes are reused (the default); reuse = text behind an edit keeps its KV, moved; repair = the "
        "same, but the first 128 tokens of each moved piece are computed; auto = one of them, chosen for each edit",
    )
    parser.add_argument(
        "--max-sessions",
        "--max_sessions",
        type=_positive,
        metavar="N",
        help="sessions in memory at a time; the one unused for longest leaves first, of the API key with most sessions "
        f"(default {EngineConfig().max_sessions})",
    )
    parser.add_argument(
        "--min-move-tokens",
        "--min_move_tokens",
        type=_positive,
        metavar="N",
        help=f"pieces shorter than this are computed rather than moved (default {EngineConfig().min_move_tokens})",
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="how bold `auto` is, as `acmserve calibrate` measured it on this model (default: as on smollm2)",
    )
    parser.add_argument(
        "--model-alias",
        "--model_alias",
        action="append",
        metavar="NAME=MODEL",
        help="serve MODEL under one more name, which answers then have, for sub-agents that ask for it; may be given "
        "several times; *=MODEL: under every name",
    )
    add_context_flags(parser)
    return parser


def add_context_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of the context layer. Each is a field of `ContextConfig`."""
    default = ContextConfig()
    flags: tuple[tuple[str, Callable[[str], Any], str, str], ...] = (
        (
            "--data-dir",
            str,
            "DIR",
            "keep sessions in DIR across restarts, with a folder for each of several API servers (default: in memory)",
        ),
        ("--session-hours", float, "H", f"forget sessions unused for so long (default {default.session_hours:g})"),
        ("--max-session-mib", _positive, "N", f"bound of transcripts in memory (default {default.max_session_mib})"),
        (
            "--max-stored-sessions",
            _positive,
            "N",
            f"sessions in the file, shared fairly between API keys (default {default.max_stored_sessions})",
        ),
        ("--max-stored-mib", _positive, "N", f"bound of all transcripts in it (default {default.max_stored_mib})"),
        ("--max-tool-calls", _positive, "N", f"context tool calls in one turn (default {default.max_tool_calls})"),
        ("--max-summary-tokens", _positive, "N", f"length of a summary (default {default.max_summary_tokens})"),
        ("--summary-model", str, "NAME", "served model or LoRA adapter that summarizes (default: the served model)"),
        ("--summary-url", str, "URL", "OpenAI-compatible server that summarizes instead"),
        (
            "--map-model",
            str,
            "NAME",
            "served model or adapter that keeps context maps (default: the served model)",
        ),
        ("--map-url", str, "URL", "OpenAI-compatible server that keeps context maps instead"),
        ("--max-map-tokens", _positive, "N", f"length of its answers (default {default.max_map_tokens})"),
        (
            "--budget",
            str,
            "TOKENS",
            "budget of a session that has none of its own: 80k, 50%% of the window, or JSON (default: none); policies: "
            + ", ".join(POLICIES),
        ),
        (
            "--eviction-policy",
            str,
            "MODULE:CLASS",
            "a policy of another package that budgets may name, too; several with commas between them",
        ),
        (
            "--suite",
            str,
            "FILE",
            "a tool suite of your own as JSON, which acm.tools may name, too; several with commas between them",
        ),
        (
            "--precompute",
            str,
            "MODE",
            "compute what comes next, when idle: off, heal, predict, exact, or JSON (default: exact on a CPU, or off)",
        ),
        (
            "--harm",
            str,
            "MODE",
            "idle time judges what moved KV did to answers: off, measure, or follow, so that auto learns (default)",
        ),
        ("--boldest", str, "LEVEL", "boldest level that auto may learn, up to bold (default: the calibrated one)"),
        (
            "--session-from",
            str,
            "LIST",
            "where a session id may stand, in order, with commas: header:NAME, body:PATH, or some of "
            + ", ".join(source.name for source in SOURCES)
            + " (default: all of these)",
        ),
        (
            "--observations",
            str,
            "RULE",
            'messages of the user that are results: auto, user (all behind a text), off, or JSON: ["Observation:"]',
        ),
        (
            "--log-format",
            str,
            "FORMAT",
            "acmserve's own lines in the log, one for each edit, eviction, redaction and fallback: "
            + " or ".join(FORMATS),
        ),
        (
            "--prices",
            str,
            "JSON",
            "what tokens cost, for savings told: currency, input (a price), and write, read, output as its multiples",
        ),
        (
            "--embedder",
            str,
            "WHAT",
            "for semantic search: URL[#MODEL] of an OpenAI-compatible server, or model2vec:DIR",
        ),
    )
    for flag, kind, metavar, text in flags:
        spellings = dict.fromkeys((flag, "--" + flag[2:].replace("-", "_")))
        parser.add_argument(*spellings, type=kind, metavar=metavar, help=text)
    _add_switches(parser)


def _add_switches(parser: argparse.ArgumentParser) -> None:
    """The flags of the context layer that are on or off."""
    parser.add_argument(
        "--share-prefixes",
        "--share_prefixes",
        action="store_true",
        default=None,
        help="let API keys find each other's prefixes in the prefix cache: a system prompt that all send is computed "
        "once, and a key can tell by the time of an answer what another one sent (default: each key has its own)",
    )
    parser.add_argument(
        "--infer-sessions",
        "--infer_sessions",
        action="store_true",
        default=None,
        help="find the session of a request without an id by its content: the one of the same API key and cache salt "
        "whose conversation it goes on with, else a new one (default: such a request has no session)",
    )
    parser.add_argument(
        "--speculate",
        action="store_true",
        default=None,
        help="draft greedy answers of `exact` behind an edit on moved KV while their prompt is prefilled, and verify "
        "each draft on exact KV before the client sees it, unless acm.speculate says otherwise (default: only where a "
        "request asks)",
    )
    parser.add_argument(
        "--rollout",
        action="store_true",
        default=None,
        help="record token ids and operations of every session for training, unless acm.rollout says otherwise "
        "(default: only where a request asks)",
    )


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return number
