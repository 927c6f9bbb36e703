"""What is shown, in which order, and what a key does to it. Nothing here has a terminal."""

from __future__ import annotations

import io
from functools import reduce

import pytest
from rich.console import Console

from acmserve.client.views.turns import UsagePage
from acmserve.top.columns import COLUMNS, short_age, short_count
from acmserve.top.keyboard import keys_of
from acmserve.top.table import TopScreen, fitting_columns, make_table
from acmserve.top.view import KEYS, TopView, after_key
from tests.support.top.used_sessions import used

NOW = 1000.0
SESSIONS = (
    used("Agent-1", used_at=900, kept_tokens=5, fallbacks=2),
    used("helper", used_at=990, kept_tokens=50, branch_of="Agent-1"),
    used("other", used_at=500, kept_tokens=9, prompt=None),
)


def names(view: TopView) -> list[str]:
    return [one.session_id for one in view.rows(SESSIONS, NOW)]


def typed(view: TopView, keys: str) -> TopView:
    return reduce(after_key, keys_of(keys), view)


@pytest.mark.parametrize(
    ("view", "order"),
    [
        (TopView(), ["helper", "Agent-1", "other"]),
        (TopView(is_reversed=True), ["other", "Agent-1", "helper"]),
        (TopView(sort="kept"), ["helper", "other", "Agent-1"]),
        (TopView(sort="session"), ["Agent-1", "helper", "other"]),
        (TopView(sort="fallbacks"), ["Agent-1", "helper", "other"]),
        (TopView(sort="prompt"), ["Agent-1", "helper", "other"]),
        (TopView(sort="prompt", is_reversed=True), ["Agent-1", "helper", "other"]),
        (TopView(text="agent"), ["helper", "Agent-1"]),
        (TopView(text="nobody"), []),
    ],
)
def test_sessions_are_filtered_and_sorted_and_what_has_no_value_comes_last(view: TopView, order: list[str]) -> None:
    assert names(view) == order


def test_every_column_can_be_sorted_by() -> None:
    view = TopView()
    seen = set()
    for _ in COLUMNS:
        assert len(names(view)) == len(SESSIONS)
        seen.add(view.sort)
        view = typed(view, ">")
    assert (seen, view.sort) == (set(COLUMNS), "age")
    assert typed(view, "\x1b[C\x1b[D") == view


def test_a_filter_is_typed_kept_and_cleared() -> None:
    view = typed(TopView(), "/heqx\x7f\x7f")
    assert (view.text, view.is_typing, view.is_over) == ("he", True, False)
    view = typed(view, "l\r")
    assert (names(view), view.is_typing) == (["helper"], False)
    assert names(typed(view, "\x1b")) == names(TopView())
    assert typed(view, "q").is_over


def test_keys_scroll_as_far_as_there_are_rows() -> None:
    view = typed(TopView(), "\x1b[F").scrolled(50, 20)
    assert view.offset == 30
    assert typed(view, "\x1b[A\x1b[5~kj").offset == 19
    assert typed(view, "\x1b[H").offset == 0
    assert TopView(offset=7).scrolled(5, 20).offset == 0


def test_what_means_nothing_changes_nothing() -> None:
    view = TopView(text="a", offset=3)
    assert typed(view, "xyz\x1b[Z\x1bOP") is view
    assert keys_of("\x1b[1;5C\x1b[15~a") == ["a"]
    assert {"q", "r", "/", " ", "?", "up", "down", "page up", "page down", "home", "end"} <= set(KEYS)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9_999, "9999"),
        (12_345, "12.3K"),
        (99_960, "100K"),
        (999_499, "999K"),
        (999_600, "1.0M"),
        (2e9, "2.0G"),
    ],
)
def test_counts_are_short_on_a_screen(number: float, text: str) -> None:
    assert short_count(number) == text


def test_ages_are_short_on_a_screen() -> None:
    assert [short_age(seconds) for seconds in (0.4, 59, 60, 7_199, 90_000)] == ["0s", "59s", "1m", "1h", "1d"]


def drawn(screen: TopScreen, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(screen)
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
def test_a_screen_has_the_columns_that_fit(width: int) -> None:
    sessions = tuple(used(f"agent-{index}", kept_tokens=10**index, running=index == 3) for index in range(9))
    page = UsagePage(sessions, False, 12)
    lines = drawn(TopScreen("http://h:1", page, TopView(sort="kept"), NOW), width, 10)
    assert max(map(len, lines)) <= width
    assert len(lines) == 10
    assert "agent-8" in lines[3]
    assert "KEPT*" in lines[2]
    assert sum("agent-" in line for line in lines) == 5
    console = Console(width=width)
    shown = fitting_columns(sessions, NOW, TopView(sort="kept"), console, width)
    assert [column.name for column in shown] == [name for name in COLUMNS if COLUMNS[name] in shown]
    assert (len(shown) == len(COLUMNS)) == (width == 200)


def test_a_screen_says_what_is_filtered_paused_typed_and_wrong() -> None:
    page = UsagePage(SESSIONS, False, 3)
    last = [
        drawn(TopScreen("u", page, view, NOW, problem), 120, 20)[-1]
        for view, problem in (
            (TopView(text="help"), ""),
            (TopView(is_paused=True), ""),
            (TopView(text="he", is_typing=True), ""),
            (TopView(), "no server answers"),
        )
    ]
    assert all(
        word in line for word, line in zip(("filter: help", "paused", "filter: he_", "no server"), last, strict=True)
    )
    assert any("FALLBACK" in line for line in drawn(TopScreen("u", page, TopView(has_help=True), NOW), 120, 40))


def test_names_cannot_write_to_the_terminal() -> None:
    evil = used("a\x1b[2J\x07[bold]\u202eb\nc")
    page = UsagePage((evil,), False, 1)
    text = "\n".join(drawn(TopScreen("u", page, TopView(text="a\x1b"), NOW), 200, 20))
    assert "\x1b" not in text
    assert "\x07" not in text
    table = io.StringIO()
    Console(file=table, width=10_000).print(make_table([evil], NOW, list(COLUMNS.values())))
    assert "a�[2J�[bold]�b�c" in table.getvalue()
