"""`docs/clients.md` out of `benchmarks/results/clients.json`: the table stands between two marks, and is made anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.clients.installed import ROOT
from tests.support.clients.matrix import CHECKS, RESULT, table

PAGE = ROOT / "docs" / "clients.md"
BEGIN, END = "<!-- made by `make clients`: -->\n", "<!-- to here -->\n"


def made(results: dict[str, Any]) -> str:
    """What stands between the marks: the clients, what each column says, and what is a client's own way."""
    meanings = "".join(f"| {name} | {says} |\n" for name, says in CHECKS.items())
    told = [(client, *note) for client, row in results["clients"].items() for note in row.get("notes", {}).items()]
    notes = "".join(f"| {client} | {name} | {says} |\n" for client, name, says in told)
    own_ways = f"| client | column | its own way |\n|---|---|---|\n{notes}\n" if notes else ""
    return f"\n{table(results['clients'])}\n| column | what it says |\n|---|---|\n{meanings}\n{own_ways}"


def renewed(page: str, results: dict[str, Any]) -> str:
    """The page with the table of these results."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + made(results) + END + rest.partition(END)[2]


def write_page(page: Path = PAGE, results: Path = RESULT) -> None:
    """Make the page anew."""
    page.write_text(renewed(page.read_text(encoding="utf-8"), json.loads(results.read_text(encoding="utf-8"))))
