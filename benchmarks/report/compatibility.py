"""The table of model families in `docs/compatibility.md`, out of `results/families.json`.

    docs/compatibility.md      text
                               <!-- families: ... -->    made here    <!-- end of families -->
                               text

The page around it is written by hand. Knows what a row of the report says (`families/runs.py`). Knows no engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from acmserve.bench.agent.result_table import Report
from acmserve.bench.families.edit import START
from acmserve.bench.families.family import CONVOLUTION, DEFAULT, RECURRENT, SPEED
from acmserve.bench.families.runs import agree, is_compared, moves, why_not
from acmserve.bench.harness.markdown_text import table
from acmserve.errors import AcmError

NAME = "compatibility.md"
RESULT = "families"
_RECIPES = "https://github.com/vllm-project/recipes/blob/main/models"
_BEGIN = f"<!-- families: made by `acmserve bench report docs/{NAME}`, change results instead of this -->"
_END = "<!-- end of families -->"
_HEADS = ("", "family", "settings", "KV behind an edit", "kept under `exact`", "largest difference", "shown with")


def fill(page: str, report: Report) -> str:
    """The page with its table made anew. Raises AcmError for a page that has no place for it."""
    begin, end = page.find(_BEGIN), page.find(_END)
    if not 0 <= begin < end:
        raise AcmError(f"the page has no lines {_BEGIN!r} and {_END!r}")
    return f"{page[: begin + len(_BEGIN)]}\n{made(report)}\n{page[end:]}"


def made(report: Report) -> str:
    """What stands between the two lines."""
    lines = [_sum(report), "", table(_HEADS, list(_rows(report["rows"])))]
    refused = [row for row in report["rows"] if not moves(row)]
    lines += ["", "Why nothing is moved, word for word:", ""]
    lines += [f"- {row['name']}, {_settings(row)}: `{why_not(row)}`{_not_started(row)}" for row in refused]
    return "\n".join(["", *lines, ""])


def _sum(report: Report) -> str:
    counts = report["moved"]
    offered = sum(row["kind"] == SPEED for row in report["rows"])
    told = [row for row in report["rows"] if row.get("told")]
    blind = sum(moves(row) and not is_compared(row) for row in report["rows"] if row["kind"] == SPEED)
    not_compared = f", {blind} of them not compared, since fp8 rounds a turned key" if blind else ""
    as_told = f"\n`acmserve doctor` had said the same of {sum(map(agree, told))} of {len(told)} that started."
    return (
        f"Of {report['families']} families {counts[DEFAULT]} move with the default settings of their recipes.\n"
        f"Of these, {_num_recurrent(report)} have recurrent layers, whose states move on a CPU alone. "
        "On a GPU they are computed.\n"
        f"Of {offered} with speculative decoding or an fp8 KV cache on top, {counts[SPEED]} move{not_compared}."
        f"{as_told if told else ''}"
    )


def _num_recurrent(report: Report) -> int:
    """Families that move by default, with layers whose states move on a CPU alone."""
    moved = [row for row in report["rows"] if row["kind"] == DEFAULT and moves(row)]
    return sum(any(one["kind"] in (RECURRENT, CONVOLUTION) for one in row["oracle"]) for row in moved)


def _rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    for row in rows:
        fold, exact = row.get("fold") or {}, row.get("exact")
        yield [
            str(row["number"]),
            f"[{row['name']}]({_RECIPES}/{row['recipe']}.yaml), `{row['architecture']}`",
            _settings(row),
            f"{fold['moved']} of {fold['moved'] + fold['computed']} moved" if moves(row) else _short(row),
            "" if exact is None else f"{exact['kept']} of {START}",
            _differences(row),
            ". ".join([*row["stand_ins"], *([row["reduced"]] if row["reduced"] else [])] if row.get("start") else []),
        ]


def _settings(row: Mapping[str, Any]) -> str:
    return row["flags"] or "vLLM's own"


def _short(row: Mapping[str, Any]) -> str:
    """Whether the product refuses, or vLLM cannot start or run the class here."""
    if row.get("fold"):
        return "computed"
    doctor = row.get("doctor")
    is_refused = doctor is not None and doctor["refusal"]
    if row.get("start"):
        return "refused, not run" if is_refused else "not shown"
    return "refused, not started" if is_refused else "not started"


def _not_started(row: Mapping[str, Any]) -> str:
    """What vLLM says, where the reason is acmserve's and the class did not start or run here."""
    if row.get("fold") or not (row.get("doctor") and row["doctor"]["refusal"]):
        return ""
    verb = "run" if row.get("start") else "start"
    return f", and vLLM does not {verb} it on a CPU: `{row['failed']['reason']}`"


def _differences(row: Mapping[str, Any]) -> str:
    """Of moved KV by kind of layer, and of `exact` where nothing was moved."""
    if moves(row) and not is_compared(row):
        return "not compared, fp8 rounds a turned key"
    if moves(row):
        return ", ".join(f"{one['kind']} {one['distance']:.0e}{_beside(one)}" for one in row["oracle"])
    exact = row.get("exact")
    if exact is None:
        return ""
    stock = exact.get("stock_distance", 0.0)
    return f"exact {exact['distance']:.0e}" + (f", a prefix hit of vLLM alone {stock:.0e}" if stock else "")


def _beside(one: Mapping[str, Any]) -> str:
    """The difference of keys and states that were left as they were, where it was asked for."""
    return f" (stale {one['stale']:.0e})" if "stale" in one else ""


def fill_file(file: Path, report: Report) -> None:
    """Make the table of this page anew."""
    file.write_text(fill(file.read_text(encoding="utf-8"), report), encoding="utf-8")
