"""What a server says once it is ready: where it is, what it does to KV, and who may come in.

    acmserve is ready at http://127.0.0.1:8000
      model       smollm2, 8,192 tokens
      fidelity    exact: text behind an edit is computed again, token for token as vLLM answers
      moves       allowed, where a request asks for reuse, repair or auto
      sessions    in memory until the server stops, --data-dir DIR keeps them
      keys        none, whoever reaches the port reads every session
      precompute  exact, between two turns; --precompute off turns it off
      inspector   /acm/ shows each session in a browser

It knows settings and one answer of the engine's, why KV is not moved. It reads no request. The banner has at most ten
lines.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from vllm.v1.engine.exceptions import EngineDeadError

from acmserve.engine.config import MOVE_REFUSAL_CALL, EngineConfig
from acmserve.plan.calibration import read_calibration
from acmserve.server.app.access import has_api_keys
from acmserve.server.inspector.page import PREFIX
from acmserve.server.options.config import ContextConfig
from acmserve.server.siblings.siblings import Siblings
from acmserve.server.vllm.model_names import served_names

MAX_LINES = 10
MEANINGS: Mapping[str, str] = {
    "exact": "text behind an edit is computed again, token for token as vLLM answers",
    "repair": "text behind an edit keeps its KV, moved, and the start of each moved piece is computed",
    "auto": "exact, repair or reuse, chosen for each edit by what was removed",
    "reuse": "text behind an edit keeps its KV, moved: fast, and it still remembers what was removed",
}
_POLL_SECONDS = 0.05


async def tell_start(app: FastAPI) -> None:
    """Print the banner when the server listens. Nothing where no sessions are held here.

    Of several API servers the first one says it.
    """
    server = getattr(app.state, "server", None)
    if server is None or getattr(app.state, "acm_server", None) is None:
        return
    while not server.started:
        await asyncio.sleep(_POLL_SECONDS)
    siblings: Siblings | None = getattr(app.state, "acm_siblings", None)
    if siblings is not None and siblings.index != 0:
        return
    client, args = app.state.engine_client, app.state.args
    try:
        refusals = await client.collective_rpc(MOVE_REFUSAL_CALL)
    except EngineDeadError:
        return
    refusal = next((reason for reason in refusals if reason), None)
    lines = banner_lines(args, _address(server, args), client.model_config.max_model_len, refusal)
    print("\n".join(lines), file=sys.stderr, flush=True)


def banner_lines(args: Namespace, address: str, window: int, refusal: str | None) -> list[str]:
    """The banner. `refusal` is why the engine moves no KV, None where it does."""
    extra: dict[str, Any] = args.kv_transfer_config.kv_connector_extra_config
    config, engine = ContextConfig.parse(extra), EngineConfig.parse(extra)
    fidelity = engine.default_fidelity
    precompute = config.precompute_options
    rows = {
        "model": f"{', '.join(served_names(args))}, {window:,} tokens",
        "fidelity": f"{fidelity}: {MEANINGS[fidelity]}",
        **({"auto": _auto(engine.calibration)} if engine.calibration else {}),
        "moves": _no_moves(refusal, args.model) if refusal else _moves(fidelity),
        "sessions": _sessions(config),
        "keys": "asked for" if has_api_keys(args) else "none, whoever reaches the address reads every session",
        "precompute": "off" if precompute is None else _precompute(precompute.mode),
        "inspector": f"{PREFIX}/ shows each session in a browser",
    }
    return [f"acmserve is ready at {address}", *(f"  {name:<11} {text}" for name, text in rows.items())]


def _no_moves(refusal: str, model: str) -> str:
    return f"none, every answer is exact: {refusal}; what acmserve costs here: acmserve doctor {model}"


def _moves(fidelity: str) -> str:
    return "allowed, where a request asks for reuse, repair or auto" if fidelity == "exact" else "allowed"


def _precompute(mode: str) -> str:
    return "off" if mode == "off" else f"{mode}, between two turns; --precompute off turns it off"


def _auto(calibration: str) -> str:
    found = read_calibration(calibration, "calibration")
    return f"at level {found.level}, as measured on {found.model}"


def _sessions(config: ContextConfig) -> str:
    if not config.data_dir:
        return "in memory until the server stops, --data-dir DIR keeps them"
    return f"in {config.data_dir}, unused ones for {config.session_hours:g} hours"


def _address(server: Any, args: Namespace) -> str:
    """Where the server listens. A port that the system chose is known only now."""
    if args.uds is not None:
        return f"unix:{args.uds}"
    ports = [sock.getsockname()[1] for each in server.servers for sock in each.sockets]
    scheme = "https" if args.ssl_certfile else "http"
    host = args.host or "0.0.0.0"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{ports[0] if ports else args.port}"
