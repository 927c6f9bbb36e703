"""A real browser on the page. Where none is installed, tests that ask for it are skipped and say what is missing.

`make inspector` installs what drives it. The browser is the machine's own Chromium, or the one of `ACMSERVE_BROWSER`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from tests.support.inspector.inspected_server import KEY

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 300
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def browser_program() -> str | None:
    """The browser that is installed."""
    named = os.environ.get("ACMSERVE_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def running_browser() -> Iterator[Any]:
    """A browser without a window, or a skip that says why there is none."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: `make inspector`")
    program = browser_program()
    if program is None:
        pytest.skip(f"there is no browser here: none of {', '.join(NAMES)}")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """One tab. It keeps what the page said to the console, and every address that it asked for."""

    def __init__(
        self, browser: Any, url: str, *, key: str | None = KEY, scheme: str = "light", size: Any = None
    ) -> None:
        self.url = url
        self.context = browser.new_context(color_scheme=scheme, viewport=size or WIDE, accept_downloads=True)
        self.context.set_default_timeout(SECONDS * 1000)
        if key is not None:
            self.context.add_init_script(f"sessionStorage.setItem('acmserve.key', '{key}')")
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: message.type == "error" and self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, place: str = "") -> Any:
        """The page at `#/place`, once it has a head."""
        self.page.goto(f"{self.url}/acm/#/{place}")
        self.page.locator("main h1").wait_for()
        return self.page

    def close(self) -> None:
        self.context.close()

    def check_manners(self) -> None:
        """It asked nobody else for anything, nothing went wrong, and no text of a conversation ran."""
        strange = [asked for asked in self.asked if not asked.startswith((self.url, "blob:", "data:"))]
        assert strange == []
        assert self.said == [], "\n".join(self.said)
        assert self.page.title() != "1"


def axe_script() -> str | None:
    """axe-core, which finds what a screen reader would miss. None where it is not installed."""
    found = util.find_spec("axe_playwright_python")
    if found is None or not found.submodule_search_locations:
        return None
    return (Path(next(iter(found.submodule_search_locations))) / "axe.min.js").read_text(encoding="utf-8")


def serious_findings(page: Any, script: str) -> list[str]:
    """What axe-core calls serious or critical on the page as it stands."""
    page.evaluate(script)
    found = page.evaluate("async () => (await axe.run(document)).violations")
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:120]} {each['nodes'][0].get('failureSummary', '')[:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
