"""The flags of `acmserve serve` that are not vLLM's, with their help.

Each is a field of `ContextConfig` or of `EngineConfig`. It knows no value beyond its type: the two classes check them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from acmserve.engine.config import EngineConfig
from acmserve.plan.request import FIDELITIES
from acmserve.server.app.launch.context_flags import CONTEXT_FLAGS
from acmserve.server.app.launch.flag_names import OneLineParser
from acmserve.server.options.config import ContextConfig

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
    """The flags of the context layer, in the order of their table. The field of `ContextConfig` says the type."""
    default = ContextConfig()
    for flag in CONTEXT_FLAGS:
        spellings = dict.fromkeys((flag.name, "--" + flag.field))
        if flag.metavar is None:
            parser.add_argument(*spellings, action="store_true", default=None, help=flag.help)
        else:
            kind = _KINDS[type(getattr(default, flag.field))]
            parser.add_argument(*spellings, type=kind, metavar=flag.metavar, help=flag.help)


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return number


_KINDS: dict[type, Callable[[str], Any]] = {str: str, int: _positive, float: float}
"""How the text of a flag becomes the value of a field of this type."""
