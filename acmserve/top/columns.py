"""The columns of the table: what each shows of a session, and in which words. One list, for table, sorting and help.

Counts stand in short form on a screen (`12.3K`), and whole where a script reads them. It knows neither terminals nor
servers. Decision: a session's id is any text that its client chose, so `plain` takes out what a terminal would obey.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acmserve.client.views.turns import UsageOfSession


Value = str | int | float | None


class Form(Enum):
    """How a value is written."""

    TEXT = "text"
    COUNT = "count"
    SHARE = "share"
    SECONDS = "seconds"
    AGE = "age"


@dataclass(frozen=True, slots=True)
class UsageColumn:
    """`value` gets a session and the time. On a narrow screen columns of the highest `rank` go first."""

    name: str
    title: str
    rank: int
    form: Form
    value: Callable[[UsageOfSession, float], Value]
    meaning: str

    def text(self, usage: UsageOfSession, now: float, *, is_whole: bool) -> str:
        """The cell. `is_whole`: for a script."""
        value = self.value(usage, now)
        if value is None:
            return "-"
        if isinstance(value, str):
            return plain(value) or "-"
        if self.form is Form.SHARE:
            return f"{value:.0%}"
        if self.form is Form.SECONDS:
            return f"{value:.3f}" if is_whole else f"{value:.2f}"
        if self.form is Form.AGE:
            return f"{value:.0f}" if is_whole else short_age(value)
        return f"{value:.0f}" if is_whole else short_count(value)


def _state(usage: UsageOfSession, _: float) -> Value:
    return "running" if usage.running else "precompute" if usage.precomputing else "idle"


def _prompt(usage: UsageOfSession, _: float) -> Value:
    return None if usage.last_turn is None else usage.last_turn.prompt_tokens


def _full(usage: UsageOfSession, now: float) -> Value:
    prompt = _prompt(usage, now)
    return None if not isinstance(prompt, int) or not usage.budget_tokens else prompt / usage.budget_tokens


def _first_token(usage: UsageOfSession, _: float) -> Value:
    return None if usage.last_turn is None else usage.last_turn.ttft_s


COLUMNS: Mapping[str, UsageColumn] = {
    column.name: column
    for column in (
        UsageColumn("session", "SESSION", 0, Form.TEXT, lambda u, _: u.session_id, "its id"),
        UsageColumn("of", "OF", 14, Form.TEXT, lambda u, _: u.branch_of or u.thread_of, "whose branch or thread it is"),
        UsageColumn("state", "STATE", 1, Form.TEXT, _state, "a turn is under way, or something is precomputed"),
        UsageColumn("turns", "TURNS", 6, Form.COUNT, lambda u, _: u.totals.turns, "requests to the engine"),
        UsageColumn("prompt", "PROMPT", 4, Form.COUNT, _prompt, "tokens of the last prompt"),
        UsageColumn("budget", "BUDGET", 9, Form.COUNT, lambda u, _: u.budget_tokens, "the most tokens of a prompt"),
        UsageColumn("full", "FULL", 7, Form.SHARE, _full, "the last prompt over the budget"),
        UsageColumn("kept", "KEPT", 2, Form.COUNT, lambda u, _: u.totals.kept_tokens, "tokens kept"),
        UsageColumn("moved", "MOVED", 2, Form.COUNT, lambda u, _: u.totals.moved_tokens, "tokens moved"),
        UsageColumn("computed", "COMPUTED", 2, Form.COUNT, lambda u, _: u.totals.computed_tokens, "tokens computed"),
        UsageColumn(
            "precomputed",
            "PRECOMP",
            5,
            Form.COUNT,
            lambda u, _: u.totals.precomputed_tokens,
            "of those kept: precomputed",
        ),
        UsageColumn(
            "background",
            "BACKGR",
            12,
            Form.COUNT,
            lambda u, _: u.totals.background_tokens,
            "tokens that background requests computed",
        ),
        UsageColumn("evicted", "EVICTED", 10, Form.COUNT, lambda u, _: u.totals.evicted_tokens, "tokens evicted"),
        UsageColumn("edits", "EDITS", 11, Form.COUNT, lambda u, _: u.totals.edits, "edits of models and callers"),
        UsageColumn(
            "fallbacks", "FALLBACK", 3, Form.COUNT, lambda u, _: u.totals.fallbacks, "turns in which a move was refused"
        ),
        UsageColumn("ttft", "TTFT", 13, Form.SECONDS, _first_token, "seconds to the first token of the last turn"),
        UsageColumn("age", "AGE", 8, Form.AGE, lambda u, now: max(0.0, now - u.used_at), "time since the last use"),
    )
}
"""Name -> column, in the order of the table."""


def plain(text: str) -> str:
    """A text that a terminal only shows: nothing in it moves the cursor, colours, or writes from right to left."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def short_count(number: float) -> str:
    """`12.3K`: at most five characters up to a thousand billions."""
    if number < 10_000:
        return f"{number:.0f}"
    for unit in ("K", "M"):
        number /= 1000
        if number < 999.5:
            return f"{number:.1f}{unit}" if number < 99.95 else f"{number:.0f}{unit}"
    return f"{number / 1000:.1f}G"


def short_age(seconds: float) -> str:
    """`45s`, `12m`, `3h`, `9d`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"
