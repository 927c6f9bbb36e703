"""What a recorded `acmserve calibrate` comes to, held against its bars. Pure: a calibration file in, a report out.

    time             seconds of the whole command                                  at most 600
    PI-LLM updates   `auto` moves nothing, or its repair passes as a family has to  KL, harm and right answers

A family passes by the same numbers as a level does (`choice.py`). Its row is of edits that its level was not chosen on.
Where the model answers none of its questions it is not judged, and the bar is missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.calibrate.choice import EVERYTHING, MAX_FAMILY_KL, MAX_HARMED_SHARE, MAX_LOSS
from acmserve.bench.harness.markdown_text import MET, MISSED, interval, points, share
from acmserve.bench.harness.options import as_gate
from acmserve.bench.harness.run_log import duration
from acmserve.bench.repairs.cases import FAMILY_TITLES
from acmserve.bench.tasks.generators import pi_llm
from acmserve.plan import calibration

MOST_SECONDS = 600.0
STAYS_EXACT, PASSES, NOT_JUDGED = "exact", "a repair that passes", "not judged"


def family_verdict(level: str, rows: Sequence[Mapping[str, Any]], task: str) -> str:
    """What a family gets at a level: one of the three, or why the repair does not pass."""
    if level == calibration.EXACT:
        return STAYS_EXACT
    row = next((row for row in rows if row["edits"] == task), None)
    if row is None:
        return NOT_JUDGED
    auto = row["auto"]
    if not auto["moved_share"]:
        return STAYS_EXACT
    if auto["kl"] > MAX_FAMILY_KL:
        return f"a repair with {auto['kl']:.3f} nats, at most {MAX_FAMILY_KL} are allowed"
    if row["num_harmed"] > MAX_HARMED_SHARE * row["num_cases"]:
        return f"a repair that is worse than `reuse` in {row['num_harmed']} of {row['num_cases']} edits"
    if auto["right_beside_exact"] < -MAX_LOSS:
        return f"a repair that loses {-100 * auto['right_beside_exact']:.1f} points of right answers"
    return PASSES


def as_report(model: str, num_each: int, seconds: float, found: Mapping[str, Any] | None, code: int) -> dict[str, Any]:
    """JSON-ready. `found` is the calibration file that the command wrote, None where it wrote none."""
    failures = [f"`acmserve calibrate` ended with exit code {code}"] if code else []
    if found is None:
        failures.append("`acmserve calibrate` wrote no calibration")
    head = {"gate": as_gate(failures), "model": model, "num_each": num_each}
    if failures or found is None:
        return head
    level, rows = found["level"], found["measured"]["edits"]
    verdict = family_verdict(level, rows, pi_llm.TASK)
    return head | {
        "seconds": round(seconds, 1),
        "level": level,
        "verdict": verdict,
        "num_cases": next((row["num_cases"] for row in rows if row["edits"] == EVERYTHING), 0),
        "edits": rows,
        "at_floor": found["measured"]["at_floor"],
        "digest": found["measured"]["digest"],
        "bars": [
            {"what": "time", "value": round(seconds, 1), "is_met": seconds <= MOST_SECONDS},
            {"what": "PI-LLM updates", "value": verdict, "is_met": verdict in (STAYS_EXACT, PASSES)},
        ],
    }


def _bars(report: Report) -> Iterator[list[str]]:
    time, updates = report["bars"]
    needed = f"{STAYS_EXACT}, or {PASSES}"
    for bar, seen, most in (
        (time, duration(time["value"]), f"at most {duration(MOST_SECONDS)}"),
        (updates, updates["value"], needed),
    ):
        yield [bar["what"], seen, most, MET if bar["is_met"] else MISSED]


def _edits(report: Report) -> Iterator[list[str]]:
    for row in report["edits"]:
        auto, reuse = row["auto"], row["reuse"]
        kl = f"{auto['kl']:.3f}{interval(auto['kl_interval'], 1, 3)}"
        right = points(auto["right_beside_exact"], auto["right_beside_exact_interval"])
        name = FAMILY_TITLES.get(row["edits"], row["edits"])
        yield [
            *(name, str(row["num_cases"]), share(auto["moved_share"]), kl, right),
            *(f"{reuse['kl']:.3f}", str(row["num_harmed"])),
        ]


BARS = ResultTable(("`acmserve calibrate`", "seen", "needed", "bar"), _bars)
EDITS = ResultTable(
    ("edits", "number", "moved by `auto`", "its KL, nats", "right beside `exact`, points", "KL of `reuse`", "worse"),
    _edits,
    "Each edit is served at a level that other edits chose. Worse: than under `reuse`, by more than 0.1 nats.",
)
