"""A fold on two engines, by length and by number of holes: answers first, then times. One stage of the suite.

Of each, before anything is timed, and with KV of its own for each answer:

    exact / stock    both read the context and then the edited prompt, in the same pieces: the gate of `bench edit`
    reuse / stock    the control: moved KV, taken for exact, has to fail
    stock / stock    of the shortest length, once more. Where these differ, the device decides nothing

The same pieces matter in 16 bits, where a prompt that is cut elsewhere gives other numbers. Then come the repetitions
of `bench scale`, all lengths in each of them, so that a length has no minute of its own. A repetition for which no time
is left does not begin, and the report says how many there were.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from acmserve.bench.agent.estimates import bootstrap_interval
from acmserve.bench.edit.gate import AnswerDistance, compare_answers, longer
from acmserve.bench.edit.kinds import KindEdit
from acmserve.bench.edit.times import EXACT, REUSE, STOCK
from acmserve.bench.gpu.engine_pair import EnginePair
from acmserve.bench.gpu.room import FRONT_SHARE
from acmserve.bench.harness.engine import Ask, EngineReply
from acmserve.bench.harness.engine_process import EngineProcess
from acmserve.bench.harness.options import as_gate
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.scale.cells import ScaleCell, plan_rounds
from acmserve.bench.scale.run import ScaleEngines, ScaleTimes, as_report, run_repetition

_SPARE_TOKENS = 4096
HOLES_AT = 16_384
"""Context in tokens, at the most, of a prompt with many holes."""
_NUM_SAMPLES = 2_000


def fold_cells(contexts: Sequence[int], numbers_of_holes: Sequence[int]) -> list[ScaleCell]:
    """Each length with one hole, the shortest first. Each number of holes at a length of the middle. Pure."""
    lengths = sorted(contexts)
    at = max((length for length in lengths if length <= HOLES_AT), default=lengths[0])
    cells = [ScaleCell(context, FRONT_SHARE) for context in lengths]
    return [*cells, *(ScaleCell(at, FRONT_SHARE, number) for number in numbers_of_holes)]


def measure_fold(
    pair: EnginePair,
    cells: Sequence[ScaleCell],
    num_rounds: int,
    num_repetitions: int,
    has_time: Callable[[float], bool],
) -> dict[str, Any]:
    """JSON-ready. Red cells have no times, and what was measured of them stands under `red_seconds`.

    `has_time` says whether so many seconds are left.
    """
    measured = [ScaleTimes(cell) for cell in cells]
    longest = max(cell.context_tokens + 2 * num_rounds * cell.num_new for cell in cells)
    text = pair.model.draw_tokens(longest + _SPARE_TOKENS, "fold")
    itself = None
    for number, times in enumerate(measured):
        progress(f"{pair.kv_type} KV, {times.cell}: answers of exact and stock, not timed")
        (edit,) = plan_rounds(text, times.cell, 0, 1)
        expected = check_answers(pair, times, edit, f"answers-{number}")
        if itself is None:
            itself = compare_answers(_answer(pair.stock, edit, "once more"), expected)
    engines = ScaleEngines(pair.ours, pair.stock, None)
    done = 0
    for repetition in repetitions(num_repetitions, has_time):
        done = repetition
        for number, times in enumerate(measured):
            step = (repetition - 1) * len(measured) + number + 1
            progress(counted(step, num_repetitions * len(measured), f"{pair.kv_type} KV, {times.cell}"))
            rounds = plan_rounds(text, times.cell, repetition, num_rounds)
            run_repetition(engines, times, rounds, f"fold-{repetition}-{number}")
    assert itself is not None
    return fold_report(measured, itself, done) | {"rounds": num_rounds}


def repetitions(
    num: int, has_time: Callable[[float], bool], clock: Callable[[], float] = time.monotonic
) -> Iterator[int]:
    """1 to `num`. One behind the first begins where there is time for the longest so far, for a stage that is ended is
    lost as a whole."""
    longest = 0.0
    for repetition in range(1, num + 1):
        if repetition > 1 and not has_time(longest):
            progress(f"{num - repetition + 1} of {num} repetitions left out: one may take {longest:.0f} s")
            return
        began = clock()
        yield repetition
        longest = max(longest, clock() - began)


def check_answers(pair: EnginePair, times: ScaleTimes, edit: KindEdit, key: str) -> EngineReply:
    """Compare the answers of a length. The answer of stock vLLM."""
    expected = _answer(pair.stock, edit, key)
    for fidelity in (EXACT, REUSE):
        salt = f"{key} {fidelity}"
        times.answers[fidelity] = compare_answers(_answer(pair.ours, edit, salt, fidelity), expected)
    if not times.answers[EXACT].is_same:
        times.failures.append(f"exact answers otherwise than stock vLLM: {times.answers[EXACT]}")
    return expected


def _answer(engine: EngineProcess, edit: KindEdit, salt: str, fidelity: str | None = None) -> EngineReply:
    """Read the context, then answer the edited prompt: in a session of this fidelity, or as a plain request."""
    session: dict[str, Any] = {} if fidelity is None else {"session_id": salt, "fidelity": fidelity}
    engine.ask(Ask(edit.turns[0], salt, **session))
    return engine.ask(longer(Ask(edit.prompt, salt, **session)))


def fold_report(measured: Sequence[ScaleTimes], itself: AnswerDistance, num_repetitions: int) -> dict[str, Any]:
    """That of `bench scale`, with what stock says of itself, the control's verdict, and ratios to stock. Pure."""
    report = as_report(measured, is_timed=True)
    if not itself.is_same:
        why = f"stock vLLM answers otherwise than itself, so nothing is decided about exact: {itself}"
        report["gate"] = as_gate([why, *report["gate"]["failures"]])
    for cell, times in zip(report["cells"], measured, strict=True):
        if "medians" in cell:
            cell["beside_stock"] = {name: beside(times.seconds, name, num_repetitions) for name in (REUSE, EXACT)}
        else:
            cell["red_seconds"] = dict(times.seconds)
    return report | {
        "stock_beside_itself": itself.as_dict(),
        "control": control_gate(measured),
        "repetitions": num_repetitions,
    }


def control_gate(measured: Sequence[ScaleTimes]) -> dict[str, Any]:
    """The gate's verdict if moved KV were served as exact. It has to be red."""
    taken = [(times.cell, times.answers[REUSE]) for times in measured if times.answers]
    said = "exact answers otherwise than stock vLLM"
    return as_gate([f"{cell}: {said}: {found}" for cell, found in taken if not found.is_same])


def beside(
    seconds: Mapping[str, Sequence[float]], series: str, num: int, other: str = STOCK
) -> dict[str, float | list[float]]:
    """How many times sooner than `other` the first token comes, by medians, with the interval over repetitions."""
    pairs = list(zip(_parts(seconds[series], num), _parts(seconds[other], num), strict=True))
    return {"ratio": round(_sooner(pairs), 4), "interval": bootstrap_interval(pairs, _sooner, _NUM_SAMPLES)}


def _parts(times: Sequence[float], num: int) -> list[Sequence[float]]:
    """Times in the order of asking, as `num` repetitions of equal length."""
    size = len(times) // num
    return [times[start : start + size] for start in range(0, size * num, size)]


def _sooner(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    median: Callable[[list[float]], float] = statistics.median
    ours, others = ([one for part in side for one in part] for side in zip(*pairs, strict=True))
    return median(others) / median(ours)
