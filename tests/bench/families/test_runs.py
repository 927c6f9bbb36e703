"""What a row of `bench families` means: what counts as moved, and what turns its gate red. No engine starts here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.families import runs
from acmserve.bench.families.family import DEFAULT, SPEED, Settings
from acmserve.bench.families.main import _rows, as_report, as_table
from acmserve.bench.families.probe import NO_NUMBER
from acmserve.bench.families.registry import FAMILIES
from acmserve.bench.families.runs import agree, faults, moves, run_all, run_family, why_not
from acmserve.errors import AcmError


def row(**changes: Any) -> dict[str, Any]:
    """A row of a family that moves, with these changes."""
    return {
        "number": 1,
        "name": "A",
        "kind": DEFAULT,
        "dtype": "float32",
        "rounds": False,
        "start": True,
        "fold": {"kept": 700, "moved": 600, "computed": 34, "reason": None},
        "exact": {"kept": 700, "moved": 0, "computed": 634, "reason": None, "distance": 1e-6},
        "oracle": [{"kind": "full", "moved": 600, "distance": 1e-6, "control": 0.5}],
        **changes,
    }


@pytest.mark.parametrize("content", ['{"rows": [{"number"', "{}", '{"rows": [3]}'])
def test_rows_of_a_file_that_is_cut_or_odd_are_refused_by_its_name(content: str, tmp_path: Path) -> None:
    file = tmp_path / "families.json"
    assert _rows(file) == {}
    file.write_text(content)
    with pytest.raises(AcmError, match=r"families\.json cannot be .+ Begin anew without --resume and --only"):
        _rows(file)


def test_a_row_that_moves_has_no_fault() -> None:
    assert moves(row())
    assert faults(row()) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"exact": {**row()["exact"], "distance": 0.1}}, "exact differs from a computation"),
        ({"oracle": [{**row()["oracle"][0], "distance": 0.1}]}, "moved KV of a full layer is off"),
        ({"oracle": [{**row()["oracle"][0], "distance": float("nan")}]}, "moved KV of a full layer is off"),
        ({"oracle": [{**row()["oracle"][0], "control": 1e-6}]}, "without its copies"),
        ({"oracle": []}, "no layer was compared"),
        ({"oracle": None}, "no layer was compared"),
    ],
)
def test_wrong_moved_kv_is_no_move_and_a_red_gate(changes: dict[str, Any], fault: str) -> None:
    wrong = row(**changes)
    assert not moves(wrong)
    assert fault in faults(wrong)[0]
    report = as_report([wrong])
    assert not report["gate"]["green"]
    assert report["moved"] == {DEFAULT: 0, SPEED: 0}
    assert fault in as_table(report)[-1]


@pytest.mark.parametrize(
    ("doctor", "engine", "is_right"),
    [
        (None, None, True),
        ("values change by 11.5%", "values change by 9.25%", True),
        (None, "model: pooled", False),
        ("model: pooled", None, False),
        ("model: pooled", "model: an index", False),
    ],
)
def test_what_doctor_says_is_what_the_engine_finds(doctor: str | None, engine: str | None, is_right: bool) -> None:
    told = {"doctor": doctor, "engine": engine}
    assert agree(row(told=told)) is is_right
    assert ["doctor says" in fault for fault in faults(row(told=told))] == [True] * (not is_right)
    assert agree(row(told=None)), "doctor left it to the engine"


@pytest.mark.parametrize(
    ("distance", "stale", "is_right"),
    [(0.06, 0.9, True), (0.06, 0.06, False), (0.06, NO_NUMBER, False), (0.06, None, False), (0.2, 4.0, False)],
)
def test_in_bfloat16_moved_states_are_nearer_than_stale_ones_by_far(
    distance: float, stale: float | None, is_right: bool
) -> None:
    """A state that has decayed is the same, moved or stale, and nothing is shown by it."""
    one = {"kind": "recurrent", "moved": 512, "distance": distance, "control": 2.0}
    one |= {} if stale is None else {"stale": stale}
    assert moves(row(dtype="bfloat16", oracle=[one])) is is_right
    assert not moves(row(oracle=[one])), "float32 needs no such allowance"


def test_a_prefix_hit_that_differs_by_vllms_own_doing_is_no_fault() -> None:
    exact = row()["exact"] | {"distance": 0.05}
    assert faults(row(exact=exact | {"stock_distance": 0.05})) == []
    assert faults(row(exact=exact | {"stock_distance": 0.04})) != []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fold": {"kept": 0, "moved": 0, "computed": 9, "reason": "model: pooled"}, "oracle": None}, "model: pooled"),
        (
            {
                "start": None,
                "fold": None,
                "exact": None,
                "oracle": None,
                "failed": {"part": "start", "reason": "no op"},
            },
            "does not start on a CPU: no op",
        ),
        ({"fold": None, "exact": None, "oracle": None, "failed": {"part": "fold", "reason": "died"}}, "fold: died"),
    ],
)
def test_a_refusal_has_its_reason_and_is_no_fault(changes: dict[str, Any], words: str) -> None:
    refused = row(**changes)
    assert not moves(refused)
    assert faults(refused) == []
    assert why_not(refused) == words


def test_a_run_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    families = FAMILIES[:2]
    ran: list[tuple[int, str]] = []

    def run(family: Any, kind: str, seconds: int, kept: Path | None) -> dict[str, Any]:
        ran.append((family.number, kind))
        return row(number=family.number, kind=kind)

    monkeypatch.setattr(runs, "run_family", run)
    kept: list[int] = []
    done = {(1, DEFAULT): row(number=1)}
    found = run_all(families, done, 1, lambda rows: kept.append(len(rows)), lambda line: None)
    wanted = [(family.number, kind) for kind in (DEFAULT, SPEED) for family in families if family.settings(kind)]
    assert ran == wanted[1:]
    assert sorted((one["number"], one["kind"]) for one in found) == sorted(wanted)
    assert kept == list(range(2, len(wanted) + 1))


def _crash(number: int, kind: str, folder: Path) -> None:
    import os

    os.abort()


def test_a_crash_and_a_hang_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of this test are plain ones: nothing of vLLM is imported."""
    import multiprocessing
    import time

    monkeypatch.setattr(runs, "_processes", lambda: multiprocessing.get_context("spawn"))
    monkeypatch.setattr(runs, "run_probe", _crash)
    assert run_family(FAMILIES[0], DEFAULT, 300)["failed"] == {"part": "process", "reason": "the process ended with -6"}
    monkeypatch.setattr(runs, "run_probe", time.sleep)
    monkeypatch.setattr(runs, "_arguments", lambda *args: (300,))
    assert "nothing more in 2 seconds" in run_family(FAMILIES[0], DEFAULT, 2)["failed"]["reason"]


def test_every_family_has_a_number_a_recipe_and_its_flags() -> None:
    assert [family.number for family in FAMILIES] == list(range(1, 28))
    for family in FAMILIES:
        assert family.recipe.count("/") == 1
        for settings in filter(None, (family.default, family.speed)):
            assert bool(settings.flags) is bool(settings.arguments)
            assert settings.drafter is None or "speculative_config" in settings.arguments


def test_a_family_is_written_with_its_drafter(tmp_path: Path) -> None:
    (family,) = (one for one in FAMILIES if one.number == 25)
    assert family.speed is not None
    folder = family.write(tmp_path / "model", family.speed)
    assert (folder / "drafter" / "config.json").is_file()
    assert '"LlamaForCausalLM"' in (folder / "config.json").read_text(encoding="utf-8")
    assert not (family.write(tmp_path / "other", Settings()) / "drafter").exists()
