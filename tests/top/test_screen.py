"""The live screen in a real terminal, against the real routes: numbers come, keys work, the terminal is given back."""

from __future__ import annotations

import signal
from contextlib import ExitStack

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from acmserve.client.calls import USAGE
from acmserve.client.server import ServerHandle
from tests.support.recorded_turns import after_all, answered, receipt
from tests.support.server.acm_app import HISTORY, make_app, make_server
from tests.support.top.on_port import on_port
from tests.support.top.terminal import terminal

LEFT = "\x1b[?1049l"


class Noted:
    """Notes the path of each request that was answered."""

    def __init__(self, app: ASGIApp, paths: list[str]) -> None:
        self._app, self._paths = app, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
        self._paths.append(scope["path"])


def test_it_lives_sorts_filters_and_outlives_its_server() -> None:
    core, paths = make_server(), list[str]()
    app = make_app(core)
    app.add_middleware(Noted, paths=paths)
    with ExitStack() as served:
        url = served.enter_context(on_port(app))
        server = served.enter_context(ServerHandle(url))
        for name in ("agent-1", "agent-2"):
            server.session(name).create(HISTORY)
        with terminal(url, "--interval", "0.1") as top:
            first = top.until(lambda screen: "agent-1" in screen and "agent-2" in screen)
            assert "2 of 2 sessions, 0 running" in first
            assert first.index("agent-2") < first.index("agent-1"), "the one used last is the first"
            moved = answered(receipt=receipt(0, 777, 5), prompt_tokens=782)
            core.store.record(core.store.get("", "agent-1"), after_all([moved]))
            top.until(lambda screen: "777" in screen and screen.index("agent-1") < screen.index("agent-2"))
            top.type("\x1b[D" * 16 + "r")
            top.until(lambda screen: "SESSION*" in screen and screen.index("agent-2") < screen.index("agent-1"))
            top.type("/-2\r")
            top.until(lambda screen: "filter: -2" in screen and "agent-1" not in screen)
            top.type("\x1b")
            top.until(lambda screen: "agent-1" in screen)
            top.type("?")
            top.until(lambda screen: "WHAT IT SHOWS" in screen)
            top.type("? ")
            top.until(lambda screen: "paused" in screen)
            server.session("agent-3").create(HISTORY)
            num = paths.count(USAGE)
            top.until(lambda _: paths.count(USAGE) > num + 2)  # the watcher has it, and the screen does not show it
            top.type("/")
            assert "agent-3" not in top.until(lambda screen: "filter: _" in screen)
            top.type("\r ")
            top.until(lambda screen: "agent-3" in screen)
            served.close()
            gone = top.until(lambda screen: "no server answers" in screen)
            assert "agent-3" in gone, "the last numbers stay"
            assert top.settings() != top.before
            top.type("q")
            assert top.ended() == 0
            assert LEFT in top.written
            assert top.settings() == top.before


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_gives_the_terminal_back(sent: signal.Signals, code: int) -> None:
    with on_port(make_app()) as url, terminal(url) as top:
        top.until(lambda screen: "0 of 0 sessions" in screen)
        top.process.send_signal(sent)
        assert top.ended() == code
        assert LEFT in top.written
        assert top.settings() == top.before
