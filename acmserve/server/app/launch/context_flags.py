"""The flags of the context layer as one table: names, what a value is called, and help.

    STORAGE  TOOL_LOOP  SUMMARIES  MAPS  EDITING  IDLE_TIME  REQUESTS  REPORTS  SEARCH  SWITCHES
    `--------------------------------- CONTEXT_FLAGS, as --help has them ---------------------'

It knows no parser and checks no value. Decision: a flag has no type of its own. It is a field of `ContextConfig`, whose
default has the type that `flags.py` reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from acmserve.context.eviction.registry import POLICIES
from acmserve.server.exchange.events import FORMATS
from acmserve.server.options.config import ContextConfig
from acmserve.server.options.session_params import SOURCES

_DEFAULT = ContextConfig()


@dataclass(frozen=True, slots=True)
class ContextFlag:
    """A flag with its dashes. `metavar` is None for one that is on or off. `help` is argparse's, with %% for %."""

    name: str
    metavar: str | None
    help: str

    @property
    def field(self) -> str:
        """The field of `ContextConfig` that it sets: `--data-dir` -> `data_dir`."""
        return self.name.removeprefix("--").replace("-", "_")


STORAGE = (
    ContextFlag(
        "--data-dir",
        "DIR",
        "keep sessions in DIR across restarts, with a folder for each of several API servers (default: in memory)",
    ),
    ContextFlag("--session-hours", "H", f"forget sessions unused for so long (default {_DEFAULT.session_hours:g})"),
    ContextFlag("--max-session-mib", "N", f"bound of transcripts in memory (default {_DEFAULT.max_session_mib})"),
    ContextFlag(
        "--max-stored-sessions",
        "N",
        f"sessions in the file, shared fairly between API keys (default {_DEFAULT.max_stored_sessions})",
    ),
    ContextFlag("--max-stored-mib", "N", f"bound of all transcripts in it (default {_DEFAULT.max_stored_mib})"),
)
"""How long sessions live, and how much of them is kept."""

TOOL_LOOP = (
    ContextFlag("--max-tool-calls", "N", f"context tool calls in one turn (default {_DEFAULT.max_tool_calls})"),
)
"""What a model may do to its own context."""

SUMMARIES = (
    ContextFlag("--max-summary-tokens", "N", f"length of a summary (default {_DEFAULT.max_summary_tokens})"),
    ContextFlag("--summary-model", "NAME", "served model or LoRA adapter that summarizes (default: the served model)"),
    ContextFlag("--summary-url", "URL", "OpenAI-compatible server that summarizes instead"),
)
"""Who writes summaries."""

MAPS = (
    ContextFlag("--map-model", "NAME", "served model or adapter that keeps context maps (default: the served model)"),
    ContextFlag("--map-url", "URL", "OpenAI-compatible server that keeps context maps instead"),
    ContextFlag("--max-map-tokens", "N", f"length of its answers (default {_DEFAULT.max_map_tokens})"),
)
"""Who keeps context maps."""

EDITING = (
    ContextFlag(
        "--budget",
        "TOKENS",
        "budget of a session that has none of its own: 80k, 50%% of the window, or JSON (default: none); policies: "
        + ", ".join(POLICIES),
    ),
    ContextFlag(
        "--eviction-policy",
        "MODULE:CLASS",
        "a policy of another package that budgets may name, too; several with commas between them",
    ),
    ContextFlag(
        "--suite",
        "FILE",
        "a tool suite of your own as JSON, which acm.tools may name, too; several with commas between them",
    ),
)
"""What takes text out of a context: budgets with their policies, and suites of tools."""

IDLE_TIME = (
    ContextFlag(
        "--precompute",
        "MODE",
        "compute what comes next, when idle: off, heal, predict, exact, or JSON (default: exact on a CPU, or off)",
    ),
    ContextFlag(
        "--harm",
        "MODE",
        "idle time judges what moved KV did to answers: off, measure, or follow, so that auto learns (default)",
    ),
    ContextFlag("--boldest", "LEVEL", "boldest level that auto may learn, up to bold (default: the calibrated one)"),
)
"""What the engine does between turns, and what `auto` learns of it."""

REQUESTS = (
    ContextFlag(
        "--session-from",
        "LIST",
        "where a session id may stand, in order, with commas: header:NAME, body:PATH, or some of "
        + ", ".join(source.name for source in SOURCES)
        + " (default: all of these)",
    ),
    ContextFlag(
        "--observations",
        "RULE",
        'messages of the user that are results: auto, user (all behind a text), off, or JSON: ["Observation:"]',
    ),
)
"""How a request is read."""

REPORTS = (
    ContextFlag(
        "--log-format",
        "FORMAT",
        "acmserve's own lines in the log, one for each edit, eviction, redaction and fallback: " + " or ".join(FORMATS),
    ),
    ContextFlag(
        "--prices",
        "JSON",
        "what tokens cost, for savings told: currency, input (a price), and write, read, output as its multiples",
    ),
)
"""What an operator is told."""

SEARCH = (
    ContextFlag(
        "--embedder",
        "WHAT",
        "for semantic search: URL[#MODEL] of an OpenAI-compatible server, or model2vec:DIR",
    ),
)
"""How sessions are searched."""

SWITCHES = (
    ContextFlag(
        "--share-prefixes",
        None,
        "let API keys find each other's prefixes in the prefix cache: a system prompt that all send is computed "
        "once, and a key can tell by the time of an answer what another one sent (default: each key has its own)",
    ),
    ContextFlag(
        "--infer-sessions",
        None,
        "find the session of a request without an id by its content: the one of the same API key and cache salt "
        "whose conversation it goes on with, else a new one (default: such a request has no session)",
    ),
    ContextFlag(
        "--speculate",
        None,
        "draft greedy answers of `exact` behind an edit on moved KV while their prompt is prefilled, and verify "
        "each draft on exact KV before the client sees it, unless acm.speculate says otherwise (default: only where a "
        "request asks)",
    ),
    ContextFlag(
        "--rollout",
        None,
        "record token ids and operations of every session for training, unless acm.rollout says otherwise "
        "(default: only where a request asks)",
    ),
)
"""What is on or off."""

CONTEXT_FLAGS = (
    *STORAGE,
    *TOOL_LOOP,
    *SUMMARIES,
    *MAPS,
    *EDITING,
    *IDLE_TIME,
    *REQUESTS,
    *REPORTS,
    *SEARCH,
    *SWITCHES,
)
