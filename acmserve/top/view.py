"""What is shown of the sessions, and in which order. A key makes another view. Pure.

sessions of the server --filter--> those with the text in their names --sort--> rows --offset--> rows on the screen
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from acmserve.top.columns import COLUMNS, Form

if TYPE_CHECKING:
    from acmserve.client.views.turns import UsageOfSession

PAGE = 10
"""Rows that a page key moves by."""
_NAMES = tuple(COLUMNS)
_UPWARDS = (Form.TEXT, Form.AGE)
"""What is sorted from the smallest, as long as nobody turns it round."""


@dataclass(frozen=True, slots=True)
class TopView:
    """`offset` rows are scrolled past. `is_typing`: keys go into the filter."""

    sort: str = "age"
    is_reversed: bool = False
    text: str = ""
    offset: int = 0
    is_typing: bool = False
    is_paused: bool = False
    has_help: bool = False
    is_over: bool = False

    def rows(self, sessions: Sequence[UsageOfSession], now: float) -> list[UsageOfSession]:
        """The sessions that pass the filter, in order. Those without a value come last, whatever the order."""
        wanted = self.text.casefold()
        found = [one for one in sessions if any(wanted in name.casefold() for name in _names(one))]
        column = COLUMNS[self.sort]
        values = {one.session_id: column.value(one, now) for one in found}
        known = [one for one in found if values[one.session_id] is not None]
        is_downwards = (column.form not in _UPWARDS) != self.is_reversed
        known.sort(key=lambda one: values[one.session_id], reverse=is_downwards)  # type: ignore[arg-type,return-value]
        return known + [one for one in found if values[one.session_id] is None]

    def scrolled(self, num_rows: int, num_shown: int) -> TopView:
        """The view with an offset that such a table and screen allow."""
        return replace(self, offset=max(0, min(self.offset, num_rows - num_shown)))


def after_key(view: TopView, key: str) -> TopView:
    """The view behind a key. The very view where it means nothing."""
    if view.is_typing:
        return _after_letter(view, key)
    change = KEYS.get(key)
    return view if change is None else change(view)


def _after_letter(view: TopView, key: str) -> TopView:
    if key == "enter":
        return replace(view, is_typing=False)
    if key == "escape":
        return replace(view, is_typing=False, text="")
    if key == "backspace":
        return replace(view, text=view.text[:-1])
    return replace(view, text=view.text + key, offset=0) if len(key) == 1 and key.isprintable() else view


def _sorted_by(step: int) -> Callable[[TopView], TopView]:
    def change(view: TopView) -> TopView:
        name = _NAMES[(_NAMES.index(view.sort) + step) % len(_NAMES)]
        return replace(view, sort=name, is_reversed=False, offset=0)

    return change


def _moved_by(rows: int) -> Callable[[TopView], TopView]:
    return lambda view: replace(view, offset=max(0, view.offset + rows))


KEYS: Mapping[str, Callable[[TopView], TopView]] = {
    "q": lambda view: replace(view, is_over=True),
    "right": _sorted_by(1),
    ">": _sorted_by(1),
    "left": _sorted_by(-1),
    "<": _sorted_by(-1),
    "r": lambda view: replace(view, is_reversed=not view.is_reversed),
    "/": lambda view: replace(view, is_typing=True),
    "escape": lambda view: replace(view, text="", has_help=False),
    " ": lambda view: replace(view, is_paused=not view.is_paused),
    "down": _moved_by(1),
    "j": _moved_by(1),
    "up": _moved_by(-1),
    "k": _moved_by(-1),
    "page down": _moved_by(PAGE),
    "page up": _moved_by(-PAGE),
    "home": lambda view: replace(view, offset=0),
    "end": lambda view: replace(view, offset=2**31),
    "?": lambda view: replace(view, has_help=not view.has_help),
    "h": lambda view: replace(view, has_help=not view.has_help),
}
"""Key -> the view behind it."""


def _names(usage: UsageOfSession) -> tuple[str, ...]:
    return (usage.session_id, usage.branch_of or "", usage.thread_of or "")
