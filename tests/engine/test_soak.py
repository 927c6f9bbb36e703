"""Eight sessions on a pool too small for them: each answer is that of a fresh computation, and each block comes back.

In the suite a few hundred answers. `make soak` goes on for half an hour and writes `benchmarks/results/soak.json`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from acmserve.engine.scheduling.arrivals import Arrivals
from acmserve.engine.scheduling.source_pins import SourcePins
from acmserve.errors import IntegrityError
from tests.support.engine.engine import start_engine
from tests.support.engine.tiny_model import TINY_MODELS, TWO_LAYERS, TinyModel
from tests.support.soak.reference import Reference
from tests.support.soak.report import MINUTES, SEED, SoakReport
from tests.support.soak.soak import SETTINGS, Soak

NUM_ANSWERS = 150
PHASES = [(model, policy) for model in (TINY_MODELS[0], TWO_LAYERS) for policy in ("fcfs", "priority")]
"""The suite takes the first and the last one."""


def _name(value: TinyModel | str) -> str:
    return value if isinstance(value, str) else value.name


@pytest.mark.parametrize(("model", "policy"), PHASES if MINUTES else PHASES[::3], ids=_name)
def test_every_answer_is_that_of_a_fresh_computation(
    model: TinyModel,
    policy: str,
    tmp_path: Path,
    soak_report: SoakReport,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the soak stand its controls: without what protects moved KV the same soak finds wrong answers."""
    path = model.write(tmp_path)
    has_one_layer = model.num_layers == 1
    with start_engine(
        path, plugin={"min_move_tokens": 16}, own_process=False, scheduling_policy=policy, **SETTINGS
    ) as engine:
        soak = Soak(engine, Reference(path), SEED, checks_moved=has_one_layer)
        while soak_report.goes_on(soak.found.counts["answers"], NUM_ANSWERS):
            soak.round(NUM_ANSWERS)
        found = soak.finish()
        soak_report.add(f"{model.name}, {policy}", found)
        assert found.mismatches == []
        assert all(found.counts[name] for name in ("kept_tokens", "moved_tokens", "aborts", "preemptions")), (
            found.counts
        )

        if has_one_layer:
            monkeypatch.setattr(SourcePins, "pin_sources", False)
        else:
            monkeypatch.setattr(Arrivals, "lineage_keys", False)
        control = Soak(engine, Reference(path), SEED + 1, checks_moved=has_one_layer)
        assert is_found_out(control)


def is_found_out(control: Soak) -> bool:
    """Whether a soak finds wrong answers, or the engine a move from a block that is being written."""
    for _ in range(4):
        try:
            control.round(NUM_ANSWERS)
        except IntegrityError:
            return True
        if control.found.mismatches:
            return True
    return False
