"""The pictures of the page in the docs: all four are shown, and small. `make inspector` takes them anew.

They are written to `build/inspector`, and somebody looks at them before they go to docs/guides.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.inspector.browser import running_browser
from tests.support.inspector.inspected_server import fill_sessions, inspected_server
from tests.support.inspector.pictures import SCHEMES, SIZES, open_for_picture, picture_name, save_picture

ROOT = Path(__file__).parents[3]
GUIDES, TAKEN = ROOT / "docs" / "guides", ROOT / "build" / "inspector"
MAX_BYTES = 60_000
PICTURES = [(size, scheme) for size in SIZES for scheme in SCHEMES]


def brightness(picture: Any) -> float:
    """The middle grey of it, 0 to 255."""
    grey = picture.convert("L")
    return sum(value * count for value, count in enumerate(grey.histogram())) / (grey.width * grey.height)


@pytest.mark.parametrize(("size", "scheme"), PICTURES)
def test_the_guide_shows_each_picture(size: str, scheme: str) -> None:
    file = GUIDES / picture_name(size, scheme)
    assert f"]({file.name})" in (GUIDES / "inspector.md").read_text(encoding="utf-8")
    with Image.open(file) as picture:
        assert picture.width == SIZES[size]["width"]
        assert (brightness(picture) < 128) == (scheme == "dark")
    assert file.stat().st_size <= MAX_BYTES


@pytest.mark.skipif(not os.environ.get("ACMSERVE_INSPECTOR"), reason="pictures anew: `make inspector`")
def test_pictures_are_taken() -> None:
    TAKEN.mkdir(parents=True, exist_ok=True)
    with running_browser() as browser, inspected_server() as server:
        fill_sessions(server)
        for size, scheme in PICTURES:
            visit = open_for_picture(browser, server.url, "harbour", 12, size, scheme)
            save_picture(visit, TAKEN / picture_name(size, scheme))
            visit.check_manners()
            visit.close()
