"""`acmserve top`: what the sessions of a running server cost, on a live screen, as one table, or as JSON.

Decision: it stands on `acmserve.client`, and Rich draws. Both are there without vLLM, so it runs beside any server.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from acmserve.cli.command import Command, add_api_key_flag
from acmserve.errors import AcmError
from acmserve.top.columns import COLUMNS
from acmserve.top.view import TopView

if TYPE_CHECKING:
    from acmserve.client.server import ServerHandle
    from acmserve.client.views.turns import UsagePage

_SECONDS = 10.0
_MAX_LIMIT = 1000
_EPILOG = """\
keys: q quits, left and right choose the column to sort by, r reverses, / filters by name, space pauses, ? explains the
columns

examples:
  acmserve top                                         the server on this machine
  acmserve top http://gpu-3:8000 --sort computed       with the key of $ACMSERVE_API_KEY
  acmserve top --once --filter agent- --sort fallbacks
  acmserve top --json | jq '.sessions[].totals.moved_tokens'
"""


def _add_flags(top: argparse.ArgumentParser) -> None:
    top.formatter_class = argparse.RawDescriptionHelpFormatter
    top.epilog = _EPILOG
    top.add_argument(
        "url", nargs="?", default="http://localhost:8000", metavar="URL", help="the server (http://localhost:8000)"
    )
    add_api_key_flag(top, "a key of the server")
    top.add_argument("--cache-salt", metavar="SALT", help="see the sessions of this cache salt")
    top.add_argument("--once", action="store_true", help="print one table, and end")
    top.add_argument("--json", action="store_true", help="print one JSON object, and end")
    top.add_argument("--sort", choices=list(COLUMNS), default="age", metavar="COLUMN", help=", ".join(COLUMNS))
    top.add_argument("--reverse", action="store_true", help="sort the other way round")
    top.add_argument("--filter", default="", metavar="TEXT", help="only sessions with TEXT in their names")
    top.add_argument("--interval", type=_seconds, default=2.0, metavar="SECONDS", help="between two looks (2)")
    top.add_argument("--limit", type=_number, default=200, metavar="N", help="the sessions used last (200)")


def _run(parsed: argparse.Namespace) -> int:
    from acmserve.client.errors import AcmClientError
    from acmserve.client.server import ServerHandle
    from acmserve.top.problems import explained

    view = TopView(sort=parsed.sort, is_reversed=parsed.reverse, text=parsed.filter)
    for flag, value in (("--api-key", parsed.api_key), ("--cache-salt", parsed.cache_salt)):
        if value and not (value.isascii() and value.isprintable()):
            raise AcmError(f"{flag} has characters that no HTTP header can carry, a line break perhaps")
    with ServerHandle(parsed.url, api_key=parsed.api_key, cache_salt=parsed.cache_salt, timeout=_SECONDS) as server:
        try:
            page = server.usage(parsed.limit)
        except AcmClientError as error:
            raise AcmError(explained(parsed.url, parsed.api_key is not None, error)) from error
        if parsed.json:
            _print_json(parsed.url, page, view)
        elif parsed.once:
            _print_table(page, view)
        else:
            _show(server, parsed, page, view)
    return 0


def _print_json(url: str, page: UsagePage, view: TopView) -> None:
    sessions = [asdict(one) for one in view.rows(page.data, time.time())]
    page_json = {"url": url, "num_sessions": page.num_sessions, "has_more": page.has_more, "sessions": sessions}
    print(json.dumps(page_json, indent=2))


def _print_table(page: UsagePage, view: TopView) -> None:
    from rich.console import Console

    from acmserve.top.table import make_table

    now = time.time()
    console = Console(file=sys.stdout, width=10_000, color_system=None, highlight=False)
    console.print(make_table(view.rows(page.data, now), now, list(COLUMNS.values())))


def _show(server: ServerHandle, parsed: argparse.Namespace, page: UsagePage, view: TopView) -> None:
    from rich.console import Console

    from acmserve.top.keyboard import Keyboard
    from acmserve.top.problems import explained
    from acmserve.top.screen import UsageWatch, run_screen

    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        raise AcmError("the output is no terminal that can be drawn on; use --once or --json")
    explain = partial(explained, parsed.url, parsed.api_key is not None)
    watch = UsageWatch(partial(server.usage, parsed.limit), page, parsed.interval, explain)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the terminal is to be as it was
    run_screen(watch, parsed.url, view, console, Keyboard())


def _seconds(text: str) -> float:
    """Argument type."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return seconds


def _number(text: str) -> int:
    """Argument type."""
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_LIMIT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_MAX_LIMIT}")
    return int(text)


TOP = Command(
    "sessions of a running server, live: tokens kept, moved and computed, budgets, fallbacks",
    _run,
    "Shows the sessions of a running server, the one used last first, with what they cost so far. It needs no vLLM.",
    _add_flags,
)
