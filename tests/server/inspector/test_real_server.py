"""The page on a real server with a real engine, while an agent works: its turns come as they are served.

Skipped where no browser is installed, see `test_browser.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import http
from tests.support.inspector.browser import Visit, running_browser
from tests.support.routes.route_clients import CHAT, Agent, Message
from tests.support.server.scripts import log_lines, new_session


def test_turns_of_an_agent_come_as_they_are_served(scripted_server: str) -> None:
    session = new_session()
    history: list[Message] = [{"role": "user", "content": f"{session}: {log_lines(60)}\nWhat was in line 7?"}]
    agent = Agent(scripted_server, CHAT, False)

    def ask(text: str, **acm: Any) -> Any:
        answer = agent.ask(session, history, [text], acm={"fidelity": "reuse", **acm})
        history.append(answer.as_message())
        return answer.acm["receipt"]

    ask("It was 49.")
    with running_browser() as browser:
        visit = Visit(browser, scripted_server, key=None)
        page = visit.open(f"s/{session}")
        page.get_by_text("Turns 0 to 0.").wait_for()
        history.append({"role": "user", "content": f"And this:\n{log_lines(60, first=100)}"})
        ask("Read.")
        page.get_by_text("Turns 0 to 1.").wait_for()
        page.locator(".list .row").nth(0).click()
        page.get_by_role("button", name="Fold", exact=True).click()
        page.get_by_text("The next turn will be the first to see: fold.").wait_for()
        history.append({"role": "user", "content": "What now?"})
        receipt = ask("Nothing.")
        assert receipt["moved_tokens"] > 300
        page.get_by_text("Turns 0 to 2.").wait_for()
        page.get_by_role("slider", name="Turns").press("End")
        panel = page.get_by_role("region", name="Turn", exact=True)
        for kind in ("kept", "moved", "computed"):
            panel.get_by_text(f"{receipt[f'{kind}_tokens']:,} {kind}").wait_for()
        panel.get_by_text("by the caller").wait_for()
        visit.check_manners()
        visit.close()
    totals = http.get(f"{scripted_server}/v1/acm/sessions/{session}/totals").json()
    assert totals["moved_tokens"] == receipt["moved_tokens"]


@pytest.mark.parametrize("path", ["", "main.js", "session/strip.js"])
def test_the_server_serves_the_page_itself(scripted_server: str, path: str) -> None:
    answer = http.get(f"{scripted_server}/acm/{path}")
    assert answer.status_code == 200
    assert "connect-src 'self'" in answer.headers["content-security-policy"]
