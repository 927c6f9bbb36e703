"""The table of `make clients`: one row a client, one column a check, and `benchmarks/results/clients.json`.

A check is ok, or failed with its reason. It is none of the two where the client has no such thing: mini-swe-agent has
no second turn, and aider no sub-agent.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.provenance.kept_file import write_whole

RESULT = Path(__file__).parents[3] / "benchmarks" / "results" / "clients.json"
OK, FAILED, NONE = "ok", "failed", "-"
CHECKS: Mapping[str, str] = {
    "answers": "every turn ends as the model ended it",
    "session": "a session is found, and listed",
    "turns": "it stays the same over turns",
    "resume": "it stays the same in a new process",
    "compaction": "it stays the same after the client's compaction, by its command and behind an overflow",
    "sub-agent": "a sub-agent has a thread of its own",
    "cached": "the client shows cached tokens",
    "served": "no request fails that a stock server serves",
    "budget": "a budget holds for 100 turns",
    "overflow": "an overflow ends in the client's own compaction",
    "refusal": "where its first request of all is refused, the next turn compacts and goes on",
    "window": "told the window by its own configuration, it compacts before the window is full",
    "old tokens": "a summary computes at most 200 old tokens, and so does what follows it or a changed git status",
    "fold": "a fold survives side requests, sub-agents, and compactions that keep its text; the end of one is told",
}
"""Every column, and what it says."""


class CheckFailed(Exception):
    """A check of the matrix found something else than it says."""


@dataclass
class Row:
    """What one client was seen to do."""

    client: str
    version: str
    found: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def note(self, name: str, text: str) -> None:
        """Say of a check what is the client's own way, and no failure."""
        assert name in CHECKS, name
        self.notes[name] = text

    @contextmanager
    def check(self, name: str) -> Iterator[None]:
        """Note whether the block runs to its end. A later failure of the same check stays."""
        assert name in CHECKS, name
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a crash is a failed check, with its end as the reason
            text = str(error) if isinstance(error, CheckFailed) else traceback.format_exc(limit=-2)
            self.found[name] = FAILED
            self.reasons[name] = " ".join(text.split())[-400:]
        else:
            self.found.setdefault(name, OK)

    def failed(self) -> list[str]:
        """The failed checks with their reasons."""
        return [f"{name}: {self.reasons[name]}" for name, found in self.found.items() if found == FAILED]


def require(holds: object, reason: str) -> None:
    """Raise CheckFailed where a check does not hold."""
    if not holds:
        raise CheckFailed(reason)


@cache
def machine_of_run() -> Mapping[str, Any]:
    """Machine and commit, as they are when the first row is written."""
    return describe_machine()


def write_row(
    row: Row, file: Path = RESULT, date: datetime | None = None, machine: Mapping[str, Any] | None = None
) -> None:
    """Put the row into the file. The rows of other clients stay.

    The file names the machine and its commit where every row is of this commit. A mixed table has none, and is stale.
    """
    machine = machine or machine_of_run()
    rows: dict[str, Any] = json.loads(file.read_text())["clients"] if file.exists() else {}
    checks = {name: row.found.get(name, NONE) for name in CHECKS}
    day = (date or datetime.now(UTC)).date().isoformat()
    said = {"checks": checks, "reasons": row.reasons} | ({"notes": row.notes} if row.notes else {})
    rows[row.client] = {"version": row.version, "date": day, "commit": machine["commit"]} | said
    is_whole = {one["commit"] for one in rows.values()} == {machine["commit"]}
    made = {"checks": dict(CHECKS), "clients": dict(sorted(rows.items()))}
    write_whole(file, json.dumps(made | ({"machine": dict(machine)} if is_whole else {}), indent=1) + "\n")


def table(rows: Mapping[str, Any]) -> str:
    """The rows as a table in Markdown."""
    names = ["client", "version", *CHECKS]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for client, row in rows.items():
        found = [row["checks"].get(name, NONE) for name in CHECKS]
        lines.append("| " + " | ".join([client, row["version"], *found]) + " |")
    return "\n".join(lines) + "\n"
