"""The page of benchmarks has a bound before it is unfolded, and shows no names of fields. A browser agrees."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from acmserve.bench.report.page_height import MOST_PIXELS, WIDTH, check_page, height_of, raw_keys
from acmserve.errors import AcmError
from tests.support.docs.pages import GENERATED, ROOT, read_page

RESULTS = [json.loads(file.read_text()) for file in sorted((ROOT / "benchmarks/results").glob("*.json"))]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
STYLE = f"""
body{{margin:0;width:{WIDTH}px;font:16px/1.6 sans-serif}} p{{margin:16px 0}} img{{max-width:100%}}
h1{{font-size:32px;margin:0 0 40px}} h2{{font-size:25px;margin:40px 0 16px}} h3{{font-size:20px;margin:32px 0 16px}}
table{{font-size:12.8px;border-collapse:collapse;margin:16px 0}} td,th{{padding:12px 20px;border-top:1px solid #ddd}}
details{{font-size:12.8px;border:1px solid #448;margin:25px 0;padding:0 10px}} summary{{padding:8px}} li{{margin:8px 0}}
"""


def test_the_page_is_low_enough_and_speaks_words() -> None:
    check_page(read_page(GENERATED), RESULTS)


def test_a_page_that_is_unfolded_is_too_high() -> None:
    """Negative control: the same page with its folded parts open."""
    page = read_page(GENERATED)
    open_ = re.sub(r"</?details.*>|<summary>.*</summary>", "", page)
    assert height_of(open_) > 2 * height_of(page)
    with pytest.raises(AcmError, match=rf"pixels high before anything is unfolded, {MOST_PIXELS:,} at most"):
        check_page(open_, RESULTS)


def test_a_name_of_a_field_is_found() -> None:
    """Negative control. A path of a link is none, nor is a command."""
    page = read_page(GENERATED).replace("**Gate**", "first_token_seconds", 1)  # folded, so the height is the same
    assert raw_keys(page, RESULTS) == ["first_token_seconds"]
    with pytest.raises(AcmError, match="names of fields: first_token_seconds"):
        check_page(page, RESULTS)
    assert raw_keys("[a file](first_token_seconds.json)\n**Command**: `x --first_token_seconds`", RESULTS) == []


def test_a_policy_is_a_name_that_people_type() -> None:
    """Also where results are kept by policy. A key that is no policy is found beside it."""
    result = {"rows": [{"policy": "clear_tool_uses"}], "witnesses": {"clear_tool_uses": {"num_same": 3}}}
    assert raw_keys("`clear_tool_uses` has num_same", [result]) == ["num_same"]
    called = {"num_same": 3, "tools": {"search_context": 1}}
    assert raw_keys("`search_context` has num_same", [called]) == ["num_same"]


@pytest.mark.parametrize(
    ("page", "more"),
    [
        ("One line.", "One line.\n\nAnother one."),
        ("Few words.", "Many words. " * 40),
        ("| a |\n| --- |\n| b |", "| a |\n| --- |\n| b |\n| c |"),
        ("| a | b |\n| --- | --- |\n| few | few |", f"| a | b |\n| --- | --- |\n| few | {'many ' * 60}|"),
        ("- one", "- one\n- two"),
        (
            "<details>\n<summary>A</summary>\n\nx\n\n</details>",
            "<details>\n<summary>A</summary>\n\nx\n\n</details>\n### B",
        ),
    ],
)
def test_more_to_read_is_higher(page: str, more: str) -> None:
    assert 0 < height_of(page) < height_of(more)


def test_what_is_folded_has_no_height() -> None:
    folded = "<details>\n<summary>A</summary>\n\n{}\n\n</details>"
    inner = folded.format("Much.\n\n" * 50)
    assert height_of(folded.format("")) == height_of(inner) == height_of(folded.format(inner))


def test_a_browser_finds_it_no_higher(tmp_path: Path) -> None:
    """In the type sizes of the built pages, drawn by the machine's own Chromium."""
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"there is no browser here: none of {', '.join(BROWSERS)}")
    page = read_page(GENERATED)
    assert measured(program, page, tmp_path) <= height_of(page)
    closed = page.replace("<details", "<details open")
    assert measured(program, closed, tmp_path) > MOST_PIXELS, "negative control: all is unfolded"


def measured(program: str, page: str, folder: Path) -> int:
    """Pixels of the page as the browser lays it out."""
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(page)
    body = body.replace('src="edit.svg"', f'src="{(ROOT / "docs/edit.svg").as_uri()}"')
    told = "<script>onload=()=>{document.title='height '+document.body.scrollHeight}</script>"
    file = folder / "page.html"
    file.write_text(f"<meta charset=utf-8><title></title><style>{STYLE}</style>{body}{told}", encoding="utf-8")
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [*command, "--dump-dom", "--virtual-time-budget=5000", file.as_uri()],
        check=True,
        capture_output=True,
        text=True,
    )
    found = re.search(r"<title>height (\d+)</title>", done.stdout)
    assert found is not None, done.stderr[-500:]
    return int(found[1])
