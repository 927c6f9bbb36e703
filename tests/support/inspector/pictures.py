"""Pictures of the page for the docs: one session, in two widths and two schemes. Few colours keep them small."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from PIL import Image

from tests.support.inspector.browser import NARROW, WIDE, Visit

SIZES = {"wide": {**WIDE, "height": 1180}, "narrow": {**NARROW, "height": 1400}}
SCHEMES = ("light", "dark")
_NUM_COLOURS = 128


def picture_name(size: str, scheme: str) -> str:
    """Its file below docs/guides."""
    return f"inspector-{size}-{scheme}.png"


def open_for_picture(browser: Any, url: str, session: str, turn: int, size: str, scheme: str) -> Visit:
    """The session with a turn chosen, and what its first edit hides."""
    visit = Visit(browser, url, scheme=scheme, size=SIZES[size])
    page = visit.open(f"s/{session}")
    page.get_by_role("slider", name="Turns").press("Home")
    for _ in range(turn):
        page.get_by_role("slider", name="Turns").press("ArrowRight")
    page.get_by_role("heading", name=f"Turn {turn}", exact=True).wait_for()
    page.get_by_role("region", name="Turn", exact=True).locator("li button").first.click()
    page.get_by_text("live", exact=True).wait_for()
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    return visit


def save_picture(visit: Visit, file: Path) -> None:
    """What is seen, as a PNG with a palette."""
    image = Image.open(io.BytesIO(visit.page.screenshot())).convert("RGB")
    image.quantize(_NUM_COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
