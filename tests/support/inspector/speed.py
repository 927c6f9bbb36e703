"""How fast the page is in a browser: to its first rows, to the last row of a session, and while it scrolls.

The numbers are those of the machine. `make inspector` holds them against the bounds of `test_speed.py`.
"""

from __future__ import annotations

import time
from typing import Any

from tests.support.inspector.browser import Visit

_NOTE_ROWS = """
globalThis.firstRow = null;
new MutationObserver(() => {
  if (firstRow === null && document.querySelector(".list .row")) {
    firstRow = -1;
    requestAnimationFrame(() => setTimeout(() => { firstRow = performance.now(); }));
  }
}).observe(document, { childList: true, subtree: true });
"""
_SCROLL = """
async ([selector, step, frames]) => {
  const list = document.querySelector(selector);
  const times = [];
  await new Promise((done) => {
    function next(now) {
      times.push(now);
      list.scrollTop += step;
      if (times.length > frames) done();
      else requestAnimationFrame(next);
    }
    requestAnimationFrame(next);
  });
  const gaps = times.slice(1).map((time, index) => time - times[index]);
  return { top: list.scrollTop, seconds: (times[frames] - times[0]) / 1000, longest: Math.max(...gaps) / 1000 };
}
"""


def first_rows_seconds(visit: Visit, place: str = "") -> float:
    """From the address to the first painted rows of a list, as the browser counts. The tab is new."""
    page = visit.page
    page.add_init_script(_NOTE_ROWS)
    page.goto(f"{visit.url}/acm/#/{place}")
    page.locator(".list .row").first.wait_for()
    # The page's policy lets nobody wait for an expression in it: that would be `eval`.
    while (painted := page.evaluate("firstRow")) is None or painted < 0:
        page.wait_for_timeout(5)
    return float(painted) / 1000


def whole_seconds(visit: Visit, place: str, text: str) -> float:
    """From the address to a text that stands there once everything is read. The tab is new."""
    began = time.perf_counter()
    visit.page.goto(f"{visit.url}/acm/#/{place}")
    visit.page.get_by_text(text).first.wait_for()
    return time.perf_counter() - began


def scrolling(page: Any, selector: str = ".list", step: int = 400, frames: int = 180) -> dict[str, float]:
    """Frames a second while a list scrolls by `step` pixels a frame, and the longest frame in seconds."""
    told = page.evaluate(_SCROLL, [selector, step, frames])
    assert told["top"] == step * (frames + 1), "it did not scroll"
    return {"frames_per_second": frames / told["seconds"], "longest_frame_s": told["longest"]}
