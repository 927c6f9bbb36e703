"""Context-Folding's rule, told and not enforced: how long a main thread got, and how often above half of a context."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.eval.completion import Completion, longest_main, read_answer
from acmserve.bench.eval.page import as_markdown
from acmserve.bench.eval.table import MAIN_TABLE
from acmserve.cli import main as cli
from tests.support.server.fake_openai import Answer, ToyModel, openai_server

ARGUMENTS = ["--tasks", "babilong", "--samples", "4", "--ways", "baseline,branches"]


def step(num_tokens: int, branch: str | None = None) -> dict[str, Any]:
    receipt = {"kept_tokens": 10, "moved_tokens": 0, "computed_tokens": num_tokens - 10}
    return {"receipt": receipt, "operations": [], **({} if branch is None else {"branch": branch})}


def answered(*steps: dict[str, Any]) -> dict[str, Any]:
    usage = {"prompt_tokens": 50, "completion_tokens": 7}
    return {"choices": [{"message": {"content": "none"}}], "usage": usage, "acm": {"steps": list(steps)}}


def test_a_completion_knows_its_branch() -> None:
    told = answered(step(100), step(900, "call-1"), step(950, "call-1"), step(140))
    answer = read_answer(told)
    assert [one.branch for one in answer.completions] == ["", "call-1", "call-1", ""]
    assert answer.completions[-1] == Completion(10, 0, 130, 7)
    assert longest_main(answer.completions) == 140
    assert longest_main(read_answer(answered()).completions) == 50
    assert longest_main([]) == 0


class Brancher(ToyModel):
    """A server with acmserve and a window of 400 tokens. The main thread of every fourth answer is longer than half.

    One is half to the token, and branches are longer.
    """

    def __init__(self, card: dict[str, Any]) -> None:
        super().__init__(self._branched)
        self._card = card

    def __call__(self, path: str, body: Any, key: str | None) -> Answer:
        if path == "/v1/acm/sessions":
            return 200, {"object": "list", "data": []}
        if path == "/v1/models":
            return 200, {"data": [{"id": "other", "max_model_len": 10}, {"id": "toy", **self._card}]}
        return super().__call__(path, body, key)

    def _branched(self, body: Any) -> Answer:
        if "acm" not in body:
            return 200, answered()
        number = sum("acm" in one for one in self.bodies)
        return 200, answered(step(100), step(399, "call-1"), step({1: 200, 2: 201}.get(number, 150)))


def report_of(folder: Path, card: dict[str, Any], *more: str) -> dict[str, Any]:
    with openai_server(Brancher(card)) as url:
        assert cli(["eval", url, "--model", "toy", *ARGUMENTS, *more, "--output", str(folder)]) == 0
    report: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return report


@pytest.mark.parametrize(
    ("card", "flags", "limit", "above", "share"),
    [
        ({"max_model_len": 400}, [], 400, 1, "25 %"),
        ({"max_model_len": 400}, ["--context-limit", "300"], 300, 2, "50 %"),
        ({}, [], None, None, "-"),
    ],
)
def test_the_main_thread_is_told_beside_branches(
    card: dict[str, Any], flags: list[str], limit: int | None, above: int | None, share: str, tmp_path: Path
) -> None:
    report = report_of(tmp_path, card, *flags)
    rows = {row["way"]: row for row in report["rows"]}
    assert rows["branches"]["main_thread"] == {"longest_prompt": 201, "context_limit": limit, "num_unfolded": above}
    assert "main_thread" not in rows["baseline"]
    assert [row[-1] for row in MAIN_TABLE.rows(report)] == [share]
    page = (tmp_path / "page.md").read_text()
    told = "-" if limit is None else str(limit)
    assert "## Main threads" in page
    assert f"| branches | 4 | 201 | {told} | {share} |" in page


def test_an_older_report_has_no_main_threads(tmp_path: Path) -> None:
    report = report_of(tmp_path, {})
    for row in report["rows"]:
        row.pop("main_thread", None)
    assert list(MAIN_TABLE.rows(report)) == []
    assert "Main threads" not in as_markdown(report)
    journal = tmp_path / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"main_prompt": ', '"other": '))
    assert all("main_thread" not in row for row in report_of(tmp_path, {})["rows"])
