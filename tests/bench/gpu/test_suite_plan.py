"""What the suite for one GPU plans and judges, without an engine: room, order, what is kept, gates and controls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.edit.gate import AnswerDistance
from acmserve.bench.gpu.decode import ALONE, ANSWER, BESIDE, DecodeTimes, add, decode_report
from acmserve.bench.gpu.device import CPU, CUDA, Device, read_device
from acmserve.bench.gpu.engine_pair import why_no_engines
from acmserve.bench.gpu.fold import control_gate, fold_cells, fold_report, repetitions
from acmserve.bench.gpu.holes import holes_report
from acmserve.bench.gpu.overhead import overhead_report
from acmserve.bench.gpu.room import EngineRoom, PairPlan, fold_tokens, plan_pair, plan_room
from acmserve.bench.gpu.served_model import LLAMA_8B, LOAD_FORMAT, TINY
from acmserve.bench.gpu.sessions import GROWTH, NUM_TURNS, plan_sessions
from acmserve.bench.gpu.stage import (
    NAMES,
    STAGES,
    KeptStages,
    SuiteStage,
    by_type,
    code_digest,
    plan_lines,
    planned_minutes,
)
from acmserve.bench.gpu.suite_run import CARD_SIZES, WRONG_MOVE, SuiteRun, kernel_report, longest_prompt
from acmserve.bench.gpu.table import OVERHEAD_TABLE, suite_lines
from acmserve.bench.harness.engine import EngineReply, PlayedSessions
from acmserve.bench.scale.cells import ScaleCell
from acmserve.bench.scale.run import ScaleTimes

GIB = 2**30
H100, H200 = (Device(CUDA, name, free * GIB, free * GIB) for name, free in (("H100", 79), ("H200", 139)))
SAME, OTHER = AnswerDistance(32, 32, 0.0), AnswerDistance(32, 3, 0.5)
GREEN = {"green": True, "failures": []}


def planned(device: Device, kv_type: str) -> PairPlan:
    sizes = CARD_SIZES
    room = plan_room(device, LLAMA_8B, kv_type, sizes.other_gib)
    return plan_pair(sizes.contexts, sizes.numbers, sizes.session_contexts, room)


def test_the_shape_is_that_of_llama_8b() -> None:
    assert LLAMA_8B.num_parameters == 8_030_261_248
    assert (LLAMA_8B.kv_bytes("auto"), LLAMA_8B.kv_bytes("fp8")) == (131_072, 65_536)
    assert TINY.config.keys() == LLAMA_8B.config.keys()


def test_what_fits_a_card_is_planned_and_the_rest_has_a_reason() -> None:
    plan = planned(H100, "auto")
    assert plan.contexts == (4096, 16_384, 32_768, 65_536)
    assert [one.what for one in plan.long] == ["131,072 tokens"]
    assert "this takes 203,416 tokens of KV, and there are 19." in plan.long[0].why
    assert {number for number, _ in plan.cases} == {1, 4, 16, 32}
    assert [one.what for one in plan.many] == ["16 sessions of 8,192 tokens", "32 sessions of 8,192 tokens"]
    assert planned(H100, "fp8").contexts == planned(H200, "auto").contexts == CARD_SIZES.contexts


def test_two_engines_and_their_kv_are_less_than_the_card() -> None:
    for device in (H100, H200):
        plan = planned(device, "auto")
        used = 2 * (LLAMA_8B.weight_bytes + CARD_SIZES.other_gib * GIB + plan.room.pool_bytes)
        assert 0.9 * device.free_bytes < used < device.free_bytes  # type: ignore[operator]
        assert longest_prompt(plan, CARD_SIZES.chunks) < plan.room.pool_tokens


def test_a_small_card_holds_no_pair() -> None:
    plan = planned(Device(CUDA, "24 GiB", 24 * GIB, 24 * GIB), "auto")
    assert plan.contexts == plan.cases == ()
    assert len(plan.long) == len(CARD_SIZES.contexts)


def test_the_stages_fit_their_limit_and_say_that_it_is_the_most() -> None:
    assert planned_minutes(NAMES) <= 45
    assert "at most" in plan_lines(NAMES)[-1]
    assert [kv_type for kv_type, _ in by_type(NAMES)] == ["", "auto", "fp8"]
    assert [stage.name for _, some in by_type(NAMES) for stage in some] == [stage.name for stage in STAGES]


def test_a_card_without_a_vllm_for_it_starts_no_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The vLLM of this suite is built for a CPU. A stage for which no time is left does not begin either."""
    run = SuiteRun(H100, CARD_SIZES, KeptStages(tmp_path, {}), minutes=1.0)
    run.run(NAMES)
    why = {one["stage"]: one["why"] for one in run.left_out}
    assert why.keys() == set(NAMES)
    assert why["kernel"] == "it may take 3 minutes, and 1 are left"
    assert why["holes"] == why["fold"] == why["sessions-fp8"] == "the vLLM that is installed is built for a CPU"
    assert run.report()["gate"] == GREEN
    assert "left out: fold: the vLLM" in "\n".join(suite_lines(run.report()))


def test_a_stage_that_breaks_does_not_cost_the_others(tmp_path: Path) -> None:
    run = SuiteRun(H100, CARD_SIZES, KeptStages(tmp_path, {}), minutes=45.0)

    def broken(stage: SuiteStage) -> dict[str, Any]:
        raise KeyError(stage.name)

    run._measure(STAGES[0], broken)
    fold = next(stage for stage in STAGES if stage.name == "fold")
    run._measure(fold, lambda stage: {"gate": GREEN, "cells": []})
    assert run.failures == ["kernel: KeyError: 'kernel'"]
    assert list(run.stages) == ["fold"]
    assert run.kept.take("fold") == run.stages["fold"]
    assert run.report()["gate"] == {"green": False, "failures": run.failures}
    assert "FAILED: kernel: KeyError: 'kernel'" in suite_lines(run.report())


def test_an_allocator_that_moves_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM refuses it beside any KV connector, at a start that takes minutes."""
    cpu, why = read_device(CPU)
    assert cpu is not None
    assert (why, why_no_engines(cpu, "auto")) == ("", "")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert "expandable_segments:True: unset it" in why_no_engines(cpu, "auto")


def test_a_stage_is_taken_over_where_it_is_green_and_of_the_same_code(tmp_path: Path) -> None:
    kept = KeptStages(tmp_path, {"code": code_digest(), "sizes": (1, 2)})
    kept.keep("fold", {"gate": GREEN, "rows": []})
    kept.keep("sessions", {"gate": {"green": False, "failures": ["wrong"]}})
    assert KeptStages(tmp_path, {"code": code_digest(), "sizes": (1, 2)}).take("fold") == {"gate": GREEN, "rows": []}
    assert KeptStages(tmp_path, {"code": "other", "sizes": (1, 2)}).take("fold") is None
    assert kept.take("sessions") is None
    assert kept.take("overhead") is None
    (tmp_path / "fold.json").write_text('{"key": {"code"', encoding="utf-8")
    assert kept.take("fold") is None, "it was cut, so it is measured anew"


def measured(context: int, exact: AnswerDistance = SAME, reuse: AnswerDistance = OTHER) -> ScaleTimes:
    receipt: dict[str, Any] = {"kept_tokens": 100, "moved_tokens": 700, "computed_tokens": 38}
    times = {"reuse": [0.2, 0.4, 0.2, 0.4], "append": [0.2, 0.2, 0.2, 0.2], "exact": [5.0, 6.0], "stock": [6.0, 6.0]}
    found = ScaleTimes(ScaleCell(context, 0.125), seconds=times, receipts={"reuse": receipt, "exact": receipt})
    found.answers = {"exact": exact, "reuse": reuse}
    if not exact.is_same:
        found.failures.append(f"exact answers otherwise than stock vLLM: {exact}")
    return found


def test_a_fold_is_told_beside_stock_with_the_verdict_of_its_control() -> None:
    report = fold_report([measured(4096), measured(16_384)], SAME, num_repetitions=2)
    assert report["gate"] == GREEN
    assert report["cells"][0]["beside_stock"]["reuse"] == {"ratio": 20.0, "interval": [20.0, 20.0]}
    assert report["cells"][0]["beside_stock"]["exact"]["interval"] == [1.0, 1.2]
    assert not report["control"]["green"]
    assert len(report["control"]["failures"]) == 2


def test_an_exact_that_moves_turns_the_gate_red_and_its_times_are_told_apart() -> None:
    """The control as it would be served: `exact` answers what `reuse` answers."""
    report = fold_report([measured(4096, exact=OTHER), measured(16_384)], SAME, num_repetitions=2)
    (failure,) = report["gate"]["failures"]
    assert failure in control_gate([measured(4096)])["failures"]
    red, green = report["cells"]
    assert "medians" not in red
    assert red["red_seconds"]["stock"] == [6.0, 6.0]
    assert "red_seconds" not in green


def test_a_gate_that_sees_no_move_is_red() -> None:
    report = fold_report([measured(4096, reuse=SAME)], SAME, num_repetitions=2)
    assert "the gate sees no move" in report["gate"]["failures"][0]
    assert report["control"]["green"]


def test_a_device_on_which_stock_is_not_itself_decides_nothing() -> None:
    report = fold_report([measured(4096)], OTHER, num_repetitions=2)
    (failure,) = report["gate"]["failures"]
    assert failure.startswith("stock vLLM answers otherwise than itself")


def test_each_length_has_one_hole_and_a_length_of_the_middle_has_many() -> None:
    cells = [(cell.context_tokens, cell.num_holes) for cell in fold_cells((65_536, 4096, 16_384), (16, 64))]
    assert cells == [(4096, 1), (16_384, 1), (65_536, 1), (16_384, 16), (16_384, 64)]
    assert [cell.context_tokens for cell in fold_cells((32_768,), (4,))] == [32_768, 32_768]


def holes_told(**changed: float) -> dict[str, Any]:
    row: dict[str, Any] = {"holes": "16 of 45 tokens", "num_holes": 16, "moved_tokens": 16 * 45}
    row |= {"steps_together": 1, "steps_apart": 17, "is_beside": True}
    row |= {"difference": 0.01, "difference_beside": 0.01, "control_difference": 0.5}
    return {"refusal": None, "rows": [row | changed]}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"steps_together": 3}, "3 forward passes, and 17 with a step for each"),
        ({"steps_apart": 1}, "1 forward passes, and 1 with a step for each"),
        ({"moved_tokens": 0}, "0 tokens were moved"),
        ({"is_beside": False}, "no step had the pass and the other request's next token"),
        ({"difference": 0.2}, "one pass answers 0.2 nats from a step for each (difference), the control 0.5"),
        ({"difference_beside": float("nan")}, "one pass answers nan nats from a step for each (difference_beside)"),
        ({"control_difference": 0.0, "difference": 0.0}, "the control answers 0 nats from a step for each, so nothing"),
    ],
)
def test_holes_in_one_pass_have_to_answer_as_apart(changed: dict[str, float], said: str) -> None:
    failures = holes_report(holes_told(**changed))["gate"]["failures"]
    assert f"16 of 45 tokens: {said}" in "\n".join(failures)


def test_a_pass_that_is_refused_is_left_out_by_name() -> None:
    assert holes_report(holes_told())["gate"] == GREEN
    refused = holes_report({"refusal": "engine: device tpu", "rows": []})
    assert refused["gate"] == GREEN
    assert refused["left_out"] == [{"what": "holes in one forward pass", "why": "engine: device tpu"}]


def played(seconds: float, cached: int) -> PlayedSessions:
    return PlayedSessions(((EngineReply(0.1, cached, (1,), "", None),),), ((seconds,),), seconds)


def test_overhead_is_a_ratio_of_pairs_and_other_caches_are_red() -> None:
    stock = [played(seconds, 16) for seconds in (1.0, 2.0, 3.0)]
    report = overhead_report([played(seconds, 16) for seconds in (1.1, 2.2, 3.3)], stock)
    assert (report["gate"], report["is_met"]) == (GREEN, False)
    assert report["over_stock"] == {"ratio": 1.1, "interval": [1.1, 1.1]}
    assert overhead_report(stock, stock)["is_met"]
    near = overhead_report([played(seconds, 16) for seconds in (1.0, 2.01, 3.06)], stock)
    assert near["over_stock"]["ratio"] < near["bar"] < near["over_stock"]["interval"][1]
    assert not near["is_met"], "by the end of the interval"
    assert next(iter(OVERHEAD_TABLE.rows(near | {"is_met": True})))[-1].endswith(": missed, by the interval's end")
    assert next(iter(OVERHEAD_TABLE.rows(overhead_report(stock, stock))))[-1].endswith(": met")
    red = overhead_report([played(1.0, 16), played(2.0, 0), played(3.0, 16)], stock)
    assert red["gate"]["failures"] == ["repetition 2: acmserve found [[0]] tokens in its cache, stock [[16]]"]


def test_sessions_fold_in_every_third_turn_and_share_no_text() -> None:
    one, other = plan_sessions(TINY, 2, 256, repetition=0)
    assert [prompt.is_edited for prompt in one.prompts] == [False, False, True, False, False, True, False]
    assert len(one.prompts) == NUM_TURNS + 1
    assert max(len(prompt.tokens) for prompt in one.prompts) <= 256 + GROWTH
    first, folded = one.prompts[1].tokens, one.prompts[2].tokens
    assert folded[:40] == first[:40] != other.prompts[1].tokens[:40]
    assert folded[48:-64] == first[-len(folded[48:-64]) :]
    assert plan_sessions(TINY, 2, 256, repetition=1)[0].prompts[0].tokens != one.prompts[0].tokens


def test_a_wrong_move_turns_the_stage_red_and_a_slow_one_is_named() -> None:
    told: dict[str, Any] = {"machine": {"versions": {"triton": "3"}, "attention": "torch"}, "rows": []}
    told["other_roundings"] = {"float8_e5m2": 0}
    assert kernel_report(told | {"correct": True, "below_bar": []})["gate"] == GREEN
    slow = kernel_report(told | {"correct": True, "below_bar": ["Llama-3-8B: 70%"]})
    assert (slow["gate"], slow["below_bar"]) == (GREEN, ["Llama-3-8B: 70%"])
    red = kernel_report(told | {"correct": False, "below_bar": []})
    assert red["gate"]["failures"] == [WRONG_MOVE]


def test_the_loader_has_the_name_that_engines_are_given() -> None:
    from acmserve.bench.families import random_weights

    assert random_weights.LOAD_FORMAT == LOAD_FORMAT


def test_a_fold_takes_its_context_and_what_it_moves() -> None:
    assert fold_tokens(8192) == 8192 + 4480 + 4 * 38 + 512
    assert str(EngineRoom(GIB, 8192)) == "1.0 GiB of KV an engine, 8,192 tokens"


def one_session(seconds: list[float], cached: int = 0) -> PlayedSessions:
    """One session."""
    replies = tuple(EngineReply(one, cached, (1,), "", None) for one in seconds)
    return PlayedSessions((replies,), (tuple(seconds),), sum(seconds))


def beside(answer: float, chunks: list[float]) -> PlayedSessions:
    one, other = one_session([answer]), one_session(chunks)
    return PlayedSessions(one.replies + other.replies, one.turn_seconds + other.turn_seconds, answer)


def test_what_a_decode_hides_is_what_chunks_do_not_add_to_it() -> None:
    times = DecodeTimes(128)
    add(times, {ANSWER: one_session([1.0]), ALONE: one_session([0.25, 0.25]), BESIDE: beside(1.125, [0.5, 0.5])})
    report = decode_report([times], 1)
    assert report["gate"]["green"]
    assert report["rows"][0]["hidden_share"] == 0.75


def test_chunks_that_outlast_the_answer_or_were_known_tell_no_share() -> None:
    times = DecodeTimes(128)
    add(times, {ANSWER: one_session([1.0]), ALONE: one_session([0.25], cached=16), BESIDE: beside(1.25, [0.75, 0.75])})
    report = decode_report([times], 1)
    assert "hidden_share" not in report["rows"][0]
    assert report["gate"]["failures"] == ["chunks of 128: chunks were found in the cache: [0, 16] tokens"]


def test_a_repetition_for_which_no_time_is_left_does_not_begin() -> None:
    """The first one always does. The others want as much time as the longest before them took."""
    now, ends_at = [0.0], 100.0
    begun = []
    for repetition in repetitions(5, lambda seconds: now[0] + seconds <= ends_at, lambda: now[0]):
        begun.append(repetition)
        now[0] += {1: 20.0, 2: 45.0}.get(repetition, 30.0)
    assert (begun, now[0]) == ([1, 2], 65.0)
    assert list(repetitions(3, lambda seconds: True)) == [1, 2, 3]
    assert list(repetitions(3, lambda seconds: False)) == [1]
