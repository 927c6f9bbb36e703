"""All families, each in a process of its own with a time limit. A crash is a row, and a run goes on where it stopped.

    one process after the other  ->  FOLDER/NUMBER-KIND/row.json  ->  rows

Knows what a row says, and whether a family moves. Knows no engine.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from acmserve.bench.families.family import DEFAULT, SPEED, Family
from acmserve.bench.families.probe import EXACT, NO_NUMBER, ROW, run_probe
from acmserve.bench.families.stand_ins import DESCRIPTIONS
from acmserve.bench.harness.engine import prepare_environment
from acmserve.bench.harness.run_log import RUN, counted

KINDS = (DEFAULT, SPEED)
NO_REASON = "nothing was found to move"
CONTROL = 3.0
"""A move without its copies must differ by this many times more."""
MAX_DISTANCE = {"float32": EXACT, "bfloat16": 2**-3}
"""By how much `reuse` may differ from a computation under the deep oracle.

In bfloat16 a logit between 4 and 8 has steps of 1/32. vLLM's own kernels differ by two of them where a prompt is cut in
other places.
"""
STALE = 8.0
"""So there keys and states that are left as they were must differ by this many times more, too."""


@cache
def _processes() -> ForkServerContext:
    """Where processes come from that have vLLM imported already, and nothing else in common."""
    prepare_environment(with_acmserve=True, kv_gib=1)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["acmserve.bench.families.engine_imports"])
    return context


def run_family(family: Family, kind: str, seconds: int, kept: Path | None = None) -> dict[str, Any]:
    """The row of one family with one kind of settings. What libraries print is left in the folder `kept`."""
    settings = family.settings(kind)
    assert settings is not None
    with tempfile.TemporaryDirectory(prefix="acmserve-family-") as folder:
        process = _processes().Process(target=run_probe, args=_arguments(family, kind, folder), daemon=True)
        process.start()
        process.join(seconds)
        ended = f"nothing more in {seconds} seconds" if process.is_alive() else None
        process.kill()
        process.join()
        if ended is None and process.exitcode:
            ended = f"the process ended with {process.exitcode}"
        row = Path(folder) / ROW
        found = json.loads(row.read_text(encoding="utf-8")) if row.is_file() else {}
        if kept is not None and (log := Path(folder) / "log").is_file():
            shutil.copy(log, kept / f"{family.number}-{kind}.log")
    if ended is not None and not found.get("failed"):
        found["failed"] = {"part": "process", "reason": ended}
    return {
        "number": family.number,
        "name": family.name,
        "recipe": family.recipe,
        "architecture": family.architecture,
        "dtype": family.dtype,
        "kind": kind,
        "flags": settings.flags,
        "stand_ins": [DESCRIPTIONS[name] for name in family.stand_ins_for(settings)],
        "reduced": family.reduced,
        "rounds": settings.rounds,
        **found,
    }


def _arguments(family: Family, kind: str, folder: str) -> tuple[object, ...]:
    return family.number, kind, Path(folder)


def run_all(
    families: Sequence[Family],
    rows: Mapping[tuple[int, str], dict[str, Any]],
    seconds: int,
    keep: Callable[[list[dict[str, Any]]], None],
    tell: Callable[[str], None],
    logs: Path | None = None,
    kinds: Sequence[str] = KINDS,
) -> list[dict[str, Any]]:
    """The rows of all families. Those that `rows` has are not run again. `keep` gets all rows after each run."""
    wanted = [(family, kind) for kind in kinds for family in families if family.settings(kind) is not None]
    found = dict(rows)
    for count, (family, kind) in enumerate(wanted, start=1):
        key = (family.number, kind)
        tell(counted(count, len(wanted), f"{family.name}, {kind}"))
        if key not in found:
            found[key] = run_family(family, kind, seconds, logs)
            RUN.answered(None, None, family=family.name, settings=kind, found=in_words(found[key]))
            keep(in_order(found))
        tell(f"{family.name}, {kind}: {in_words(found[key])}")
    return in_order(found)


def in_order(rows: Mapping[tuple[int, str], dict[str, Any]]) -> list[dict[str, Any]]:
    """By number, the default settings first."""
    return [rows[key] for key in sorted(rows)]


def moves(row: Mapping[str, Any]) -> bool:
    """Whether KV was moved, and nothing is wrong with it. `is_compared` says whether an oracle looked at it."""
    return bool((row.get("fold") or {}).get("moved")) and not faults(row)


def is_compared(row: Mapping[str, Any]) -> bool:
    """Whether moved KV was held beside computed KV. An fp8 cache rounds a turned key, so nothing of it was."""
    return bool(row.get("oracle"))


def faults(row: Mapping[str, Any]) -> list[str]:
    """What is wrong with what was found: an answer that differs from a computation, or a control that does not."""
    who = f"{row['name']} ({row['kind']})"
    found = []
    exact = row.get("exact")
    if exact is not None and not exact["distance"] <= max(EXACT, exact.get("stock_distance", 0.0)):
        found.append(f"{who}: exact differs from a computation by {exact['distance']:.2g}")
    oracle = row.get("oracle") or []
    if (row.get("fold") or {}).get("moved") and not oracle and not row["rounds"]:
        found.append(f"{who}: moved, and no layer was compared")
    for one in oracle:
        bound = _bound(row["dtype"], one.get("stale", 0.0))
        if not one["distance"] <= bound:
            found.append(f"{who}: moved KV of a {one['kind']} layer is off by {one['distance']:.2g}")
        if not one["control"] > CONTROL * max(bound, one["distance"]):
            found.append(f"{who}: without its copies a {one['kind']} layer is off by {one['control']:.2g} alone")
    if not agree(row):
        told = row["told"]
        found.append(f"{who}: doctor says {told['doctor']!r}, and the engine that started {told['engine']!r}")
    return found


def agree(row: Mapping[str, Any]) -> bool:
    """Whether doctor said beforehand what the started engine found. Weights differ, so measured figures may."""
    told = row.get("told") or {"doctor": None, "engine": None}
    doctor, engine = (None if said is None else re.sub(r"[\d.]+%", "", said) for said in told.values())
    return doctor == engine


def _bound(dtype: str, stale: float) -> float:
    """What is allowed. Nothing where the control has shown nothing."""
    bound = MAX_DISTANCE[dtype]
    if bound <= EXACT:
        return bound
    return min(bound, stale / STALE) if stale < NO_NUMBER else 0.0


def in_words(row: Mapping[str, Any]) -> str:
    """One line of progress."""
    if moves(row):
        return f"moved {row['fold']['moved']}"
    return why_not(row)


def why_not(row: Mapping[str, Any]) -> str:
    """Why nothing was moved: the receipt's reason, doctor's, or what kept vLLM from starting."""
    fold, doctor, failed = row.get("fold"), row.get("doctor"), row.get("failed")
    if fold is not None and fold["reason"]:
        return str(fold["reason"])
    if found := faults(row):
        return "; ".join(found)
    if doctor is not None and doctor["refusal"]:
        return str(doctor["refusal"])
    if failed is not None and not row.get("start"):
        return f"does not start on a CPU: {failed['reason']}"
    return f"{failed['part']}: {failed['reason']}" if failed is not None else NO_REASON
