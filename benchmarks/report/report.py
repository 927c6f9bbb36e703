"""`acmserve bench report`: all results of a folder as one HTML page that needs nothing but itself.

Every JSON file of the folder is a section: what it was measured on, when and by which command, whether its gate was
green, its plot (the PNG file of the same name), and its tables (`report_tables.py`). Pictures lie inside the page, it
loads nothing and runs no script, follows the reader's light or dark setting and prints.

Files may come from anywhere, so nothing in them is trusted: all text is escaped (`html_text.py`), and a file that
cannot be read becomes a section that says so.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.machine import one_line
from acmserve.bench.report.all import PARTS
from acmserve.bench.report.html import Markup, join, tag
from acmserve.bench.report.markdown import SECTIONS
from acmserve.bench.report.markdown import page as markdown_page
from acmserve.bench.report.tables import tables
from acmserve.errors import AcmError

DEFAULT_PAGE = "acmserve-bench.html"
RESULTS = Path(__file__).parents[1] / "results"
# Results of scripts that are no `acmserve bench`.
_SCRIPTS = {"hops": "python -m benchmarks.micro.rotation_error", "gpu-move": "python -m benchmarks.gpu.main"}
_COMMIT = re.compile(r"[0-9a-f]{7,40}\+?").fullmatch
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 3rem; border-bottom: 2px solid var(--line); } h3 { font-size: 1rem; }
code { font: .9em ui-monospace, monospace; background: var(--soft); padding: .1em .3em; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td { white-space: nowrap; } td.n { text-align: right; } td.long { white-space: normal; min-width: 14rem; }
.facts { opacity: .75; font-size: .85rem; margin: .3rem 0; overflow-wrap: anywhere; }
img { max-width: 100%; height: auto; background: #fff; padding: .3rem; box-sizing: border-box; }
.gate { font-weight: 600; padding: .1em .5em; border-radius: .3em; white-space: nowrap; }
.green { background: #1a7f37; color: #fff; } .red { background: #b42318; color: #fff; }
.unknown { background: var(--line); }
@media print {
  body { max-width: none; font-size: 10pt; } .wide { overflow: visible; } table { font-size: 7pt; }
  td { white-space: normal; } td.long { min-width: 0; }
  tr, img, h2, h3 { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .gate { border: 1px solid; background: none; color: inherit; }
}
"""


@dataclass(frozen=True, slots=True)
class Result:
    """One file of results: its stem, what it holds (None: it could not be read, and `trouble` says why), its plot."""

    name: str
    report: Mapping[str, Any] | None
    trouble: str = ""
    plot: bytes | None = None

    @property
    def machine(self) -> Mapping[str, Any]:
        machine = (self.report or {}).get("machine")
        return machine if isinstance(machine, Mapping) else {}


def main(argv: Sequence[str]) -> int:
    """Entry of `acmserve bench report`; 0 when the page is written. A red gate is shown, it is no error here."""
    options = _parser().parse_args(argv)
    if options.markdown is not None:
        options.markdown.write_text(markdown_page(SECTIONS, options.folder), encoding="utf-8")
        print(f"{options.markdown}: {len(SECTIONS)} benchmarks of {options.folder}")
        return 0
    results = read_folder(options.folder)
    options.output.write_text(page(results), encoding="utf-8")
    print(f"{options.output}: {len(results)} results of {options.folder}")
    return 0


def read_folder(folder: Path) -> list[Result]:
    """Results in the order of `bench all`, others behind them by name; plots without numbers last.

    Raises AcmError when there is no such folder, or nothing in it.
    """
    if not folder.is_dir():
        raise AcmError(f"{folder} is no folder; name the one that `acmserve bench all --out DIR` wrote")
    stems = {path.stem for path in folder.iterdir() if path.suffix in (".json", ".png") and path.is_file()}
    if not stems:
        raise AcmError(f"{folder} holds no results (*.json); `acmserve bench all --out {folder}` writes them")
    order = [part.name for part in PARTS]
    return sorted(
        (_read(folder, stem) for stem in stems),
        key=lambda result: (result.report is None, _rank(order, result.name), result.name),
    )


def _rank(order: Sequence[str], name: str) -> int:
    part = _part_name(name)
    return order.index(part) if part in order else len(order)


def _read(folder: Path, stem: str) -> Result:
    picture, file = folder / f"{stem}.png", folder / f"{stem}.json"
    plot = picture.read_bytes() if picture.is_file() else None
    if not file.is_file():
        return Result(stem, None, "", plot)
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return Result(stem, None, f"{file.name} could not be read: {error}", plot)
    if not isinstance(report, dict):
        return Result(stem, None, f"{file.name} holds no JSON object", plot)
    return Result(stem, report, "", plot)


def page(results: Sequence[Result]) -> str:
    """The whole page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", "acmserve: benchmark results"),
        tag("style", Markup(_STYLE)),
    )
    body = tag("body", tag("h1", "acmserve: benchmark results"), _overview(results), *map(_section, results))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _overview(results: Sequence[Result]) -> Markup:
    rows = [
        tag(
            "tr",
            tag("td", tag("a", result.name, href=f"#{_anchor(result)}")),
            tag("td", _gate(result)),
            tag("td", _date(result.machine)),
            tag("td", tag("code", command(result)) if command(result) else "not recorded", class_="long"),
        )
        for result in results
    ]
    head = tag("tr", *(tag("th", title) for title in ("results", "gate", "date", "measured by")))
    note = (
        "Every benchmark checks that its answers are right before it tells a number: its gate. Where that was red "
        "there are no numbers."
    )
    return join([tag("p", note), tag("div", tag("table", head, *rows), class_="wide")])


def _section(result: Result) -> Markup:
    parts = [tag("h2", result.name, id=_anchor(result))]
    parts += [tag("p", _gate(result), " ", *([tag("code", command(result))] if command(result) else []))]
    if facts := _facts(result):
        parts.append(tag("p", facts, class_="facts"))
    if result.trouble:
        parts.append(tag("p", result.trouble))
    if failures := _failures(result):
        parts.append(tag("ul", *(tag("li", failure) for failure in failures)))
    if result.plot is not None:
        source = f"data:image/png;base64,{base64.b64encode(result.plot).decode()}"
        parts.append(tag("p", tag("img", src=source, alt=f"plot of {result.name}")))
    if result.report is not None:
        try:
            parts += tables(result.report)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            parts.append(tag("p", f"the numbers have another shape than expected ({error!r})"))
    return tag("section", *parts)


def _anchor(result: Result) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", result.name.lower())


def _gate(result: Result) -> Markup:
    state = gate_state(result.report or {})
    text = {True: "gate green", False: "gate red", None: "gate not recorded"}[state]
    return tag("span", text, class_=f"gate {'unknown' if state is None else 'green' if state else 'red'}")


def gate_state(report: Mapping[str, Any]) -> bool | None:
    """Whether the numbers may be believed; None where the report does not tell."""
    gate = report.get("gate")
    found = gate.get("green") if isinstance(gate, Mapping) else report.get("correct")
    return found if isinstance(found, bool) else None


def _failures(result: Result) -> list[str]:
    report = result.report or {}
    gate = report.get("gate")
    failures = gate.get("failures") if isinstance(gate, Mapping) else None
    return [str(failure) for failure in failures] if isinstance(failures, list) else []


def command(result: Result) -> str:
    """What was recorded; for results from before that, what the table of `bench all` says; empty where nobody knows."""
    recorded = result.machine.get("command")
    if isinstance(recorded, str):
        return recorded
    part = next((part for part in PARTS if part.name == _part_name(result.name)), None)
    return " ".join(part.command(is_quick=False)) if part else _SCRIPTS.get(result.name, "")


def _part_name(name: str) -> str:
    """The part of `bench all` whose file this is: `edit-cpu` is one of `edit`'s."""
    matches = [part.name for part in PARTS if name == part.name or name.startswith(f"{part.name}-")]
    return max(matches, key=len, default=name)


def _facts(result: Result) -> str:
    machine = result.machine
    if not machine:
        return ""
    told = [_date(machine), str((result.report or {}).get("model") or "")]
    try:
        told.append(one_line(dict(machine)))
    except (KeyError, TypeError, AttributeError):
        told.append("the machine was not recorded in full")
    return "; ".join(filter(None, [*told, f"load {machine['load']}" if "load" in machine else ""]))


def _date(machine: Mapping[str, Any]) -> str:
    """The day of the measurement; for results from before that was recorded, the day of their commit."""
    if isinstance(machine.get("date"), str):
        return str(machine["date"])[:10]
    commit = machine.get("commit")
    if not isinstance(commit, str) or not _COMMIT(commit):
        return "not recorded"
    show = ["git", "show", "-s", "--format=%cs", commit.removesuffix("+")]
    try:
        shown = subprocess.run(show, check=False, cwd=RESULTS.parent, capture_output=True, text=True)
    except OSError:
        return "not recorded"
    return f"commit of {shown.stdout.strip()}" if shown.returncode == 0 else "not recorded"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acmserve bench report",
        description="One HTML page of all results (*.json, *.png) in a folder: machine, date, command, gate, tables "
        "and plots. It needs no other file and no network.",
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=RESULTS, metavar="DIR", help="default: the results of the checkout"
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path(DEFAULT_PAGE), metavar="FILE", help=f"default: {DEFAULT_PAGE}"
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the page docs/benchmarks.md instead, from the results"
    )
    return parser


BENCHMARK = Benchmark("report", "one HTML page of all results in a folder", main)
