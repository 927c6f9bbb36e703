"""The table of sessions, and the screen around it, as Rich draws them. It reads no keys and asks no server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from acmserve.client.views.turns import TurnSums, UsageOfSession, UsagePage
from acmserve.top.columns import COLUMNS, Form, UsageColumn, plain, short_count
from acmserve.top.view import TopView

NUM_LINES_AROUND = 5
"""Lines of the screen beside the rows: two above, the titles, two below."""
MIN_ROWS = 1
MAX_NAME = 40
_HELP = "q quit  left/right sort  r reverse  / filter  space pause  up/down scroll  ? columns"


def make_table(
    rows: Sequence[UsageOfSession],
    now: float,
    columns: Sequence[UsageColumn],
    *,
    view: TopView | None = None,
) -> Table:
    """The rows. With a `view` the table is for a screen, else for a script."""
    is_whole = view is None
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="" if is_whole else "bold reverse")
    for column in columns:
        is_sorted = view is not None and view.sort == column.name
        table.add_column(
            Text(f"{column.title}{'*' if is_sorted else ''}"),
            justify="left" if column.form is Form.TEXT else "right",
            no_wrap=True,
            max_width=MAX_NAME if column.form is Form.TEXT and not is_whole else None,
        )
    for one in rows:
        style = "" if is_whole else "bold green" if one.running else "yellow" if one.totals.fallbacks else ""
        table.add_row(*(Text(column.text(one, now, is_whole=is_whole)) for column in columns), style=style)
    return table


def fitting_columns(
    rows: Sequence[UsageOfSession], now: float, view: TopView, console: Console, width: int
) -> list[UsageColumn]:
    """The columns that fit into so many characters. The one that is sorted by stays as long as the names do."""
    columns = list(COLUMNS.values())
    while len(columns) > 1:
        if console.measure(make_table(rows, now, columns, view=view), options=_wide(console)).maximum <= width:
            break
        columns.remove(max(columns, key=lambda column: 0.5 if column.name == view.sort else column.rank))
    return columns


@dataclass(frozen=True, slots=True)
class TopScreen:
    """What the terminal shows. `problem` is why the numbers are old, "" where they are not."""

    url: str
    page: UsagePage
    view: TopView
    now: float
    problem: str = ""

    def num_rows(self, height: int) -> int:
        """Sessions for which a screen of that height has room."""
        return max(MIN_ROWS, height - NUM_LINES_AROUND)

    def scrolled(self, height: int) -> TopView:
        """The view, scrolled no further than there are rows."""
        return self.view.scrolled(len(self.view.rows(self.page.data, self.now)), self.num_rows(height))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As Rich asks for it, with the size that the terminal has now."""
        rows = self.view.rows(self.page.data, self.now)
        num_shown = self.num_rows(options.height or console.height)
        view = self.view
        shown = rows[view.offset : view.offset + num_shown]
        body = (
            _help_table()
            if view.has_help
            else make_table(
                shown, self.now, fitting_columns(shown, self.now, view, console, options.max_width), view=view
            )
        )
        yield Group(*self._head(rows), body, Text(), self._foot(rows, view, num_shown))

    def _head(self, rows: Sequence[UsageOfSession]) -> tuple[Text, Text]:
        num_running = sum(one.running for one in rows)
        first = f"acmserve {plain(self.url)}  {len(rows)} of {self.page.num_sessions} sessions, {num_running} running"
        sums = "  ".join(
            f"{name.removesuffix('_tokens')} {short_count(sum(getattr(one.totals, name) for one in rows))}"
            for name in ("kept_tokens", "moved_tokens", "computed_tokens", "precomputed_tokens", "fallbacks")
        )
        second = f"{sums}  {share(rows)} of all prompts computed"
        return Text(first, style="bold", no_wrap=True, overflow="ellipsis"), _line(second)

    def _foot(self, rows: Sequence[UsageOfSession], view: TopView, num_shown: int) -> Text:
        if self.problem:
            return Text(plain(self.problem), style="bold red", no_wrap=True, overflow="ellipsis")
        if view.is_typing:
            return _line(f"filter: {plain(view.text)}_")
        left = [f"filter: {plain(view.text)}"] if view.text else []
        left += ["paused"] if view.is_paused else []
        if len(rows) > num_shown:
            left.append(f"{view.offset + 1}-{min(len(rows), view.offset + num_shown)} of {len(rows)}")
        return _line("  ".join([*left, _HELP]))


def share(rows: Sequence[UsageOfSession]) -> str:
    """How much of all prompts was computed."""
    sums: list[TurnSums] = [one.totals for one in rows]
    num_tokens = sum(one.prompt_tokens for one in sums)
    return f"{sum(one.computed_tokens for one in sums) / num_tokens:.1%}" if num_tokens else "-"


def _help_table() -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, header_style="bold")
    table.add_column("COLUMN")
    table.add_column("WHAT IT SHOWS")
    for column in COLUMNS.values():
        table.add_row(column.title, column.meaning)
    return table


def _line(text: str) -> Text:
    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")


def _wide(console: Console) -> ConsoleOptions:
    return console.options.update_width(10_000)
