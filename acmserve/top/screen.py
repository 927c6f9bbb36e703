"""The live screen: a thread asks the server, keys are answered at once, and what has changed is drawn.

A server that stops answering leaves the last numbers on the screen, with the reason below them. It is asked again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from acmserve.client.errors import AcmClientError
from acmserve.client.views.turns import UsagePage
from acmserve.top.keyboard import Keyboard
from acmserve.top.table import TopScreen
from acmserve.top.view import TopView, after_key

KEY_SECONDS = 0.1
"""How long a key is waited for before somebody looks for new numbers, and for another size of the terminal."""
Ask = Callable[[], UsagePage]


class UsageWatch:
    """Asks in a thread of its own. `latest` are the last numbers, when they came, and why newer ones did not."""

    def __init__(self, ask: Ask, first: UsagePage, interval: float, explain: Callable[[AcmClientError], str]) -> None:
        self.latest: tuple[UsagePage, float, str] = (first, time.time(), "")
        self._ask, self._interval, self._explain = ask, interval, explain
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="acmserve-top", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """The thread may still wait for an answer. It ends with the process."""
        self._is_over.set()

    def _watch(self) -> None:
        while not self._is_over.wait(self._interval):
            try:
                self.latest = (self._ask(), time.time(), "")
            except AcmClientError as error:
                page, at, _ = self.latest
                self.latest = (page, at, self._explain(error))
            except RuntimeError:
                # The client was closed behind a question.
                if not self._is_over.is_set():
                    raise


def run_screen(watch: UsageWatch, url: str, view: TopView, console: Console, keyboard: Keyboard) -> None:
    """Show the sessions until somebody quits."""
    with keyboard, watch, Live(console=console, screen=True, auto_refresh=False) as live:
        drawn: object = None
        shown = watch.latest
        while not view.is_over:
            shown = shown if view.is_paused else watch.latest
            page, now, problem = shown
            screen = TopScreen(url, page, view, now, problem)
            view = screen.scrolled(console.height)
            wanted = (view, shown, console.size)
            if wanted != drawn:
                drawn = wanted
                live.update(TopScreen(url, page, view, now, problem), refresh=True)
            for key in keyboard.wait(KEY_SECONDS):
                view = after_key(view, key)
