"""The page in a real browser, on real routes without an engine: read, edited, watched and exported.

`make inspector` installs what drives the browser. Without it, and without a browser, these tests are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acmserve.context.session.history import adopt
from tests.support.inspector.browser import NARROW, WIDE, Visit, axe_script, running_browser, serious_findings
from tests.support.inspector.histories import long_history, served_turns
from tests.support.inspector.inspected_server import KEY, Inspected, fill_sessions, inspected_server
from tests.support.recorded_turns import answered, receipt

IS_LONG = bool(os.environ.get("ACMSERVE_INSPECTOR"))
LONG = pytest.mark.skipif(not IS_LONG, reason="the long form: `make inspector`")
ROWS = ".list .row"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def inspected(browser: Any) -> Iterator[Inspected]:
    """After the browser, so that nothing starts where there is none."""
    with inspected_server() as server:
        fill_sessions(server)
        yield server


@pytest.fixture
def visit(browser: Any, inspected: Inspected) -> Iterator[Visit]:
    visit = Visit(browser, inspected.url)
    yield visit
    visit.check_manners()
    visit.close()


def expect_text(page: Any, label: str, *texts: str) -> None:
    """A panel comes to say all of these."""
    for text in texts:
        page.get_by_role("region", name=label, exact=True).get_by_text(text).first.wait_for()


def folded_at(inspected: Inspected, turn: int) -> str:
    """The fragment that was folded in front of a turn of `harbour`."""
    (edit,) = inspected.get(f"sessions/harbour/turns?after={turn - 1}&limit=1")["data"][0]["edits"]
    return str(edit["fragment_ids"][0])


def make(inspected: Inspected, name: str, num_turns: int = 4) -> str:
    inspected.make(name, long_history(num_turns))
    return name


def test_the_page_asks_for_the_key_and_finds_sessions(browser: Any, inspected: Inspected) -> None:
    visit = Visit(browser, inspected.url, key=None)
    page = visit.open()
    page.get_by_label("Key, as a client").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("The server asks for an API key.").wait_for()
    page.get_by_label("Key, as a client").fill(KEY)
    page.keyboard.press("Enter")
    page.get_by_role("option", name="harbour").first.wait_for()
    page.get_by_label("Search").fill("quie")
    page.get_by_text("1 of").wait_for()
    assert page.locator(ROWS).count() == 1
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="quiet").wait_for()
    page.get_by_text("The session has no message yet.").wait_for()
    assert KEY not in page.url
    assert {line.partition(": ")[0] for line in visit.said} == {"Failed to load resource"}, "the answers 401"
    visit.close()


def test_turn_12_and_turn_9_are_read(visit: Visit, inspected: Inspected) -> None:
    """By keyboard: what was folded at turn 12, and what it cost. By a click: why nothing was moved at turn 9.

    What the fold of turn 12 hides is read, too.
    """
    folded = folded_at(inspected, 12)
    page = visit.open("s/harbour")
    plot = page.get_by_role("slider", name="Turns")
    plot.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert "turn 12: 1,280 tokens of 2,400" in plot.get_attribute("aria-valuetext")
    expect_text(page, "Turn", f"fold {folded} by the model: 840 tokens fewer", "The first token came after 320 ms.")
    strip = page.get_by_role("slider", name="Prompt of turn 12")
    assert "kept: 400 tokens" in strip.get_attribute("aria-valuetext")
    strip.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert "moved: 760 tokens, 460 to 1,220, from 1,300" in strip.get_attribute("aria-valuetext")
    expect_text(page, "Context", "The server keeps no text of past prompts")
    page.get_by_role("button", name=folded, exact=True).press("Enter")
    expect_text(page, "Message", "Message 11, tool", "log 2: 0 says something", "[folded")
    plot.click(position={"x": 9.5 * 44, "y": 80})
    expect_text(page, "Turn", "Nothing was moved: source_evicted.")
    page.get_by_role("button", name="Back to now").click()
    page.get_by_role("heading", name="Context now").wait_for()


def test_a_fragment_that_hides_nothing_any_more_leads_nowhere(visit: Visit, inspected: Inspected) -> None:
    make(inspected, "restored")
    fold = {"edits": [{"op": "fold", "messages": {"start": 3, "end": 4}}]}
    (edit,) = inspected.post("sessions/restored/edits", fold)["edits"]
    inspected.record("restored", [answered()])
    inspected.post("sessions/restored/edits", {"edits": [{"op": "restore", "fragment_id": edit["fragment_id"]}]})
    page = visit.open("s/restored")
    page.get_by_role("slider", name="Turns").press("Home")
    expect_text(page, "Turn", f"fold {edit['fragment_id']} by the caller")
    assert page.get_by_role("button", name=edit["fragment_id"], exact=True).count() == 0


def test_five_questions_are_answered_in_at_most_two_clicks_each(visit: Visit, inspected: Inspected) -> None:
    """From the session's page as it opens. A choice in a list counts as a click."""
    make(inspected, "asked", 8)
    inspected.put("sessions/asked/budget", {"max_tokens": 300, "low_watermark": 250, "policy": "recency"})
    inspected.post("sessions/asked/evict")
    largest = max(inspected.get("sessions/harbour/messages")["data"], key=lambda row: row["num_tokens"])
    saved = inspected.get("sessions/harbour/totals")["saved"]["money"]

    def at(turn: int) -> dict[str, float]:
        return {"x": (turn + 0.5) * 44, "y": 80}

    page = visit.open("s/harbour")
    expect_text(page, "Totals", f"{round(saved, 1):,g} input tokens")  # what did this session save? No click.
    plot = page.get_by_role("slider", name="Turns")
    plot.click(position=at(12))
    folded = folded_at(inspected, 12)
    expect_text(page, "Turn", f"fold {folded} by the model: 840 tokens fewer", "120 computed")
    page.get_by_role("button", name=folded, exact=True).click()
    expect_text(page, "Message", "log 2: 0 says something")
    plot.click(position=at(9))
    expect_text(page, "Turn", "Nothing was moved: source_evicted.")
    page.get_by_label("Sort").select_option("size")
    assert page.locator(ROWS).first.inner_text().startswith(str(largest["index"]))
    page = visit.open("s/asked")
    page.get_by_label("Show", exact=True).select_option("evicted")
    page.locator(ROWS).first.click()
    expect_text(page, "Message", "the transcript keeps it and a search finds it")


def test_totals_are_those_of_the_route(visit: Visit, inspected: Inspected) -> None:
    page = visit.open("s/harbour")
    totals = inspected.get("sessions/harbour/totals")
    expect_text(page, "Totals", f"{totals['turns']}", f"{totals['evicted_tokens']}", "refused move")
    page.get_by_text("How savings are estimated").click()
    expect_text(page, "Totals", totals["saved"]["estimate"]["method"][:60])


def test_a_fold_and_a_restore_by_click(visit: Visit, inspected: Inspected) -> None:
    page = visit.open(f"s/{make(inspected, 'folds')}")
    page.locator(ROWS).nth(3).click()
    page.get_by_role("listbox", name="Messages").press("Shift+ArrowDown")
    expect_text(page, "Actions", "messages 3 to 4, 61 tokens")
    page.locator(ROWS).nth(3).click()
    page.get_by_role("button", name="Fold", exact=True).click()
    page.get_by_text("9 of 55").first.wait_for()
    expect_text(page, "Message", "log 0: 0 says something", "[folded")
    assert [row["state"] for row in inspected.get("sessions/folds/messages")["data"]].count("hidden") == 1
    page.get_by_role("region", name="Actions").get_by_role("button", name="Restore").click()
    page.get_by_text("9 of 55").first.wait_for(state="detached")
    assert {row["state"] for row in inspected.get("sessions/folds/messages")["data"]} == {"whole"}


def test_a_redaction_asks_twice(visit: Visit, inspected: Inspected) -> None:
    page = visit.open(f"s/{make(inspected, 'redacts')}")
    page.locator(ROWS).nth(3).click()
    redact = page.get_by_role("region", name="Actions").get_by_role("button", name="Redact…")
    for answers in ([], ["Redact…"]):
        redact.click()
        for answer in answers:
            page.get_by_role("dialog").get_by_role("button", name=answer).click()
        page.get_by_role("dialog").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
    assert "log 0: 0 says" in json.dumps(inspected.get("sessions/redacts/messages/3")), "nothing was done yet"
    redact.click()
    page.get_by_role("button", name="Redact…").last.click()
    page.get_by_role("button", name="Erase for good").click()
    page.get_by_text("Erased for good.").wait_for()
    assert "log 0: 0 says" not in json.dumps(inspected.get("sessions/redacts/messages/3"))
    assert "log 0: 0 says" not in page.content()


def test_an_eviction_shows_its_plan_first(visit: Visit, inspected: Inspected) -> None:
    make(inspected, "evicts", 8)
    inspected.put("sessions/evicts/budget", {"max_tokens": 300, "low_watermark": 250, "policy": "recency"})
    page = visit.open("s/evicts")
    page.get_by_role("button", name="Evict…").click()
    page.get_by_role("dialog").get_by_role("cell", name="message 2", exact=True).wait_for()
    page.get_by_role("button", name="Cancel").click()
    assert "evicted" not in {row["state"] for row in inspected.get("sessions/evicts/messages")["data"]}
    page.get_by_role("button", name="Evict…").click()
    page.get_by_role("button", name="Evict now").click()
    page.get_by_label("Show", exact=True).select_option("evicted")
    page.get_by_text("evicted ·").first.wait_for()
    page.locator(ROWS).first.click()
    expect_text(page, "Message", "the transcript keeps it and a search finds it")
    evicted = [row for row in inspected.get("sessions/evicts/messages")["data"] if row["state"] == "evicted"]
    page.get_by_text(f"{len(evicted)} of 33 messages.").wait_for()


def test_a_refusal_is_told_with_its_remedy(visit: Visit, inspected: Inspected) -> None:
    page = visit.open(f"s/{make(inspected, 'refused')}")
    page.get_by_role("button", name="Evict…").click()
    page.get_by_role("status").get_by_text("budget").first.wait_for()
    assert visit.said != []
    visit.said.clear()  # the browser tells every answer that is no success


def test_what_an_agent_does_is_seen_while_it_does_it(visit: Visit, inspected: Inspected) -> None:
    make(inspected, "lives", 2)
    page = visit.open("s/lives")
    page.get_by_text("live", exact=True).wait_for()
    assert page.locator(ROWS).count() == 9
    session = inspected.session("lives")
    inspected.do(lambda: inspected.server.store.save(session, adopt(session.state, long_history(3)).state))
    page.locator(ROWS).nth(12).wait_for()
    inspected.record("lives", [answered(receipt=receipt(100, 20, 7), prompt_tokens=127)])
    page.get_by_text("Turns 0 to 0.").wait_for()
    inspected.do(lambda: inspected.server.store.delete(session.tenant, "lives"))
    page.get_by_text("The session was deleted.").wait_for()
    visit.said = [said for said in visit.said if "404" not in said]  # a read was under way


def test_the_list_lives_too(visit: Visit, inspected: Inspected) -> None:
    page = visit.open()
    page.get_by_text("live", exact=True).wait_for()
    make(inspected, "newborn")
    page.get_by_role("option", name="newborn").wait_for()


def test_exports_hold_the_session_and_need_no_server(visit: Visit, inspected: Inspected, tmp_path: Path) -> None:
    page = visit.open("s/harbour")
    for name, file in (("JSON", "harbour.json"), ("report", "harbour.html")):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Export {name}").click()
        assert download.value.suggested_filename == file
        download.value.save_as(tmp_path / file)
    data = json.loads((tmp_path / "harbour.json").read_text(encoding="utf-8"))
    assert data["turns"] == inspected.get("sessions/harbour/turns")["data"]
    assert data["messages"] == inspected.get("sessions/harbour/messages")["data"]
    assert data["totals"]["prompt_tokens"] == inspected.get("sessions/harbour/totals")["prompt_tokens"]
    report = (tmp_path / "harbour.html").read_text(encoding="utf-8")
    assert "<script" not in report
    assert "<img" not in report
    page.goto((tmp_path / "harbour.html").as_uri())
    visit.asked = [asked for asked in visit.asked if not asked.startswith("file:")]
    assert page.locator("h1").inner_text() == "harbour"
    assert page.locator("details").count() == len(data["messages"])
    page.goto(f"{inspected.url}/acm/")


def test_lanes_and_maps_are_shown(visit: Visit) -> None:
    page = visit.open("s/harbour")
    page.get_by_role("link", name="look into log 7").click()
    page.get_by_role("link", name="harbour").wait_for()
    page.get_by_role("link", name="Maps").click()
    page.get_by_role("link", name="m", exact=True).click()
    page.get_by_text("388 records").first.wait_for()
    page.get_by_text("an edit by hand").first.wait_for()


def test_a_long_session_has_few_rows_in_the_page(visit: Visit, inspected: Inspected) -> None:
    num_turns = 2500 if IS_LONG else 500
    inspected.make("long", long_history(num_turns, 12 if IS_LONG else 1))
    inspected.record("long", served_turns(400))
    last = 4 * num_turns
    page = visit.open("s/long")
    page.get_by_text(f"{last + 1:,} messages").first.wait_for()
    assert page.locator(ROWS).count() < 60
    page.get_by_role("listbox", name="Messages").focus()
    page.keyboard.press("End")
    page.get_by_role("option", name=f"{last} assistant").wait_for()
    expect_text(page, "Message", f"Message {last}, assistant")
    assert page.locator(ROWS).count() < 60
    strip = page.get_by_role("slider", name="Context by message")
    assert f"message {last}" in strip.get_attribute("aria-valuetext")
    page.get_by_label("Sort").select_option("size")
    page.get_by_role("option", name="3 tool").first.wait_for()


@LONG
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_keeps_anybody_out(browser: Any, inspected: Inspected, scheme: str, size: Any) -> None:
    """axe-core on every view. It is a tool of this test alone."""
    script = axe_script()
    if script is None:
        pytest.skip("axe-core is not installed: `make inspector`")
    visit = Visit(browser, inspected.url, scheme=scheme, size=size)
    for place in ("", "maps", "maps/m", "s/quiet", "s/harbour"):
        page = visit.open(place)
        assert serious_findings(page, script) == [], place
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], place
    plot = page.get_by_role("slider", name="Turns")
    plot.focus()
    page.keyboard.press("End")
    page.locator(ROWS).nth(3).click()
    expect_text(page, "Message", "[folded")
    page.get_by_role("region", name="Actions").get_by_role("button", name="Redact…").click()
    assert serious_findings(page, script) == []
    page.evaluate("document.querySelector('dialog').append(document.createElement('img'))")
    assert [found.partition(":")[0] for found in serious_findings(page, script)] == ["image-alt"], "the control"
    visit.close()
