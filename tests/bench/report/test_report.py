"""`bench report`: one page of a folder, with nothing of it believed and nothing loaded."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.harness.machine import command_line
from acmserve.bench.report.html import Markup, tag
from acmserve.bench.report.report import RESULTS, Result, command, gate_state, main, page, read_folder
from acmserve.errors import AcmError

HOSTILE = "<script>alert('x')</script> & \"><img src=x onerror=alert(1)>"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))
MACHINE = {
    "cpu": "A processor",
    "cores": 2,
    "memory_gib": 24,
    "versions": {"torch": "2.13"},
    "commit": None,
    "load": 0.5,
    "date": "2026-11-22T10:00:00+00:00",
    "command": "acmserve bench edit --quick",
}


class Elements(HTMLParser):
    """The names, attributes and texts of a page; whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(name)
        self.attributes += attributes
        if name not in ("img", "meta"):
            self._open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self._open.pop() == name

    def handle_data(self, text: str) -> None:
        self.texts.append(text)


def write(folder: Path, name: str, report: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps(report), encoding="utf-8")


def made(folder: Path) -> tuple[str, Elements]:
    output = folder / "out" / "page.html"
    output.parent.mkdir()
    assert main([str(folder), "-o", str(output)]) == 0
    text = output.read_text(encoding="utf-8")
    return text, Elements(text)


def test_hostile_text_stays_text_wherever_it_stands(tmp_path: Path) -> None:
    report = {
        "machine": MACHINE | {"cpu": HOSTILE, "command": HOSTILE, "date": HOSTILE, "versions": {HOSTILE: HOSTILE}},
        "gate": {"green": False, "failures": [HOSTILE]},
        "model": HOSTILE,
        HOSTILE: HOSTILE,
        "rows": [{HOSTILE: HOSTILE, "x": [HOSTILE, 2]}, {"x": {HOSTILE: HOSTILE}}],
        "named": {HOSTILE: {"x": 1}},
    }
    write(tmp_path, "'><script>", report)
    (tmp_path / "broken.json").write_text("{" + HOSTILE, encoding="utf-8")
    (tmp_path / "'><script>.png").write_bytes(PNG)
    text, elements = made(tmp_path)
    assert "script" not in elements.names
    assert elements.names.count("img") == 1
    assert not [name for name, _ in elements.attributes if name.startswith("on")]
    assert sum(HOSTILE in part for part in elements.texts) >= 8
    assert "<script" not in text


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    write(tmp_path, "edit", {"machine": MACHINE, "gate": {"green": True, "failures": []}, "rows": [{"a": 1}]})
    (tmp_path / "edit.png").write_bytes(PNG)
    (tmp_path / "alone.png").write_bytes(PNG)
    text, elements = made(tmp_path)
    sources = [value or "" for name, value in elements.attributes if name in ("src", "href")]
    assert sources
    assert all(source.startswith(("data:image/png;base64,", "#")) for source in sources)
    assert sum(source.startswith("data:") for source in sources) == 2
    assert not re.search(r"https?://|url\(|@import", text)
    assert "link" not in elements.names


def test_a_section_tells_command_machine_date_gate_and_numbers(tmp_path: Path) -> None:
    rows = [{"kv": "float32", "move_ms": 12.345678, "num_tokens": 3000, "ok": True, "runs": list(range(20))}]
    write(tmp_path, "kernel", {"machine": MACHINE, "correct": True, "rows": rows})
    texts = made(tmp_path)[1].texts
    assert "acmserve bench edit --quick" in texts
    assert any(text.startswith("2026-11-22; A processor, 2 cores, 24 GiB, torch 2.13") for text in texts)
    assert "gate green" in texts
    assert {"move (ms)", "12.35", "tokens", "3,000", "yes", "20 values, 0 to 19"} <= set(texts)


@pytest.mark.parametrize(
    ("report", "state"),
    [
        ({"gate": {"green": True}}, True),
        ({"gate": {"green": False}}, False),
        ({"correct": False}, False),
        ({"gate": "yes"}, None),
        ({}, None),
    ],
)
def test_the_gate_is_read_in_both_forms(report: dict[str, Any], state: bool | None) -> None:
    assert gate_state(report) is state


def test_shapes_that_nobody_has_thought_of_read_well(tmp_path: Path) -> None:
    deep = {"name": "a model", "kinds": [{"kind": "fold", "kl": {"median": 0.25, "min": 0.1, "max": 0.5}}]}
    notes = ["this is a note that has more characters than a cell of a table"]
    write(tmp_path, "new", {"models": [deep], "notes": notes, "cases": [{"case": n} for n in range(100)]})
    elements = made(tmp_path)[1]
    assert {"a model", "kinds", "fold", "0.25 (0.1 to 0.5)", *notes, "59"} <= set(elements.texts)
    assert "60" not in elements.texts
    assert "and 40 more rows in the JSON file" in elements.texts


def test_what_cannot_be_read_is_a_section_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('{"a": ', encoding="utf-8")
    write(tmp_path, "list", [1, 2])
    write(
        tmp_path, "odd", {"seconds_to_first_token": 5, "medians": 1, "receipts": 2, "ratios": 3, "machine": {"cpu": 1}}
    )
    texts = made(tmp_path)[1].texts
    assert any("torn.json could not be read" in text for text in texts)
    assert "list.json holds no JSON object" in texts
    assert any("another shape than expected" in text for text in texts)
    assert any("the machine was not recorded in full" in text for text in texts)


def test_every_result_of_the_project_is_shown_with_tables_and_its_command() -> None:
    results = read_folder(RESULTS)
    assert [result.name for result in results if not command(result)] == []
    text = page(results)
    assert "another shape than expected" not in text
    assert Elements(text).names.count("section") == len(results)
    assert all(len(Elements(page([result])).texts) > 30 for result in results)


def test_results_of_older_versions_get_the_command_of_the_table() -> None:
    assert command(Result("edit-cpu", {})) == "acmserve bench edit"
    assert command(Result("edit-kinds", {})) == "acmserve bench edit --kinds all"
    assert command(Result("budget-pass", {})) == "acmserve bench budget-pass"
    assert command(Result("unheard", {})) == ""


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_a_folder_without_results_is_refused_with_the_remedy(folder: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(AcmError, match=rf"{folder}.*acmserve bench all --out"):
        main([str(tmp_path / folder)])


def test_a_commit_that_is_none_is_not_handed_to_git(tmp_path: Path) -> None:
    target = tmp_path / "written"
    write(tmp_path, "edit", {"machine": {"commit": f"--output={target}"}, "correct": True})
    assert "not recorded" in made(tmp_path)[1].texts
    assert not target.exists()


def test_only_tags_make_markup() -> None:
    assert tag("td", "a < b", Markup("<b>c</b>"), class_='"n"') == '<td class="&quot;n&quot;">a &lt; b<b>c</b></td>'


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bench", "edit", "--quick", "--json", "/tmp/x.json"], "acmserve bench edit --quick"),
        (["bench", "edit", "--json=x", "--plot", "y", "--sizes", "500"], "acmserve bench edit --sizes 500"),
        (["bench", "edit", "--model", "/models/a b"], "acmserve bench edit --model 'a b'"),
        (["demo"], None),
        ([], None),
    ],
)
def test_a_command_is_told_without_files_and_folders(arguments: list[str], told: str | None) -> None:
    assert command_line(arguments) == told
