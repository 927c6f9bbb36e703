"""What `bench memory` counts, on a real engine and on real memory, and what turns its gate red."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.harness.engine import EngineReply
from acmserve.bench.memory.conversation import QUICK, MemorySizes, plan_turns
from acmserve.bench.memory.main import BLOCKS, BYTES, as_report, check_ways
from acmserve.bench.memory.pool_watch import EXACT, REUSE, STOCK, UNHELD, WAYS, PoolWatch, WatchedWay
from acmserve.bench.memory.resident import BALLAST_BYTES, see_ballast
from acmserve.bench.report.sections.scale import MEMORY, SCALE
from acmserve.engine.scheduling.source_pins import SourcePins
from acmserve.errors import AcmError
from tests.support.engine.engine import TINY_SETTINGS, Engine, scheduler_of, start_engine
from tests.support.engine.tiny_model import TINY_MODELS, VOCAB_SIZE

BLOCK = 128


def test_turns_append_and_fold_in_turns_and_a_fold_removes_what_it_says() -> None:
    turns = plan_turns(range(QUICK.text), QUICK)
    assert [turn.is_fold for turn in turns] == [False, False, True, False, True]
    first, appended, folded, *_ = (turn.prompt for turn in turns)
    assert appended[: len(first)] == first
    start = len(appended) // 4
    assert folded[:start] == appended[:start]
    behind = start + QUICK.marker
    assert folded[behind : behind + len(appended) - start - QUICK.folded] == appended[start + QUICK.folded :]
    assert len(folded) == len(appended) - QUICK.folded + QUICK.marker + QUICK.new
    with pytest.raises(AcmError, match="the conversation needs"):
        plan_turns(range(QUICK.text - 1), QUICK)


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    path = TINY_MODELS[0].write(tmp_path)
    with start_engine(path, plugin={"min_move_tokens": 16}, own_process=False, **TINY_SETTINGS) as engine:
        yield engine


def watched(engine: Engine, name: str) -> WatchedWay:
    """Three turns, the last of which folds. All tokens are those of this way alone."""
    way = WatchedWay(name)
    scheduler = scheduler_of(engine)
    watch = PoolWatch(engine.llm, way)
    sizes = MemorySizes(context=1_000, new=150, folded=200, num_turns=2)
    draw = random.Random(name)
    for turn in plan_turns([draw.randrange(3, VOCAB_SIZE) for _ in range(sizes.text)], sizes):
        session = None if name == STOCK else name
        receipt = engine.ask(turn.prompt, session, None if session is None else REUSE, salt=name).receipt
        way.tokens["moved_tokens"] += (receipt or {}).get("moved_tokens", 0)
        watch.rest()
    watch.finish()
    del scheduler.schedule, scheduler._free_cow_retained_blocks
    return way


def test_sources_of_a_copy_are_held_in_its_step_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain request copies nothing, and the control holds nothing of what it copies."""
    stock, reuse = watched(engine, STOCK), watched(engine, REUSE)
    assert stock.most_copied_blocks == 0
    assert stock.most_held_blocks == 1150 // BLOCK + 1
    assert reuse.tokens["moved_tokens"] > 0
    assert 0 < reuse.most_copied_blocks <= 1150 // BLOCK + 1
    assert reuse.most_held_blocks > stock.most_held_blocks
    assert stock.most_idle_blocks == reuse.most_idle_blocks == 0
    assert reuse.cached_blocks > stock.cached_blocks > 0, "the blocks of both, in one pool"
    assert reuse.store_bytes > 0
    monkeypatch.setattr(SourcePins, "pin_sources", False)
    assert watched(engine, UNHELD).most_copied_blocks == 0


def test_memory_that_is_held_is_seen() -> None:
    assert see_ballast() == pytest.approx(BALLAST_BYTES, rel=0.1)


def said(*tokens: int) -> EngineReply:
    return EngineReply(0.0, 0, tokens, "", None, tuple({token: -0.5} for token in tokens))


def made_ways() -> dict[str, WatchedWay]:
    ways = {name: WatchedWay(name, num_blocks=100, most_held_blocks=10, last=said(1, 2)) for name in WAYS}
    ways[REUSE].most_copied_blocks, ways[REUSE].last = 7, said(1, 3)
    return ways


def test_a_green_report_has_blocks_and_bytes_beside_stock() -> None:
    served = {STOCK: (2**30, 2**30 + 2**20), EXACT: (2**30, 2**30 + 2**21), REUSE: (2**30, 2**30 + 2**22)}
    report = as_report(made_ways(), served, BALLAST_BYTES)
    assert report["gate"]["green"]
    lines = [" ".join(line.split()) for line in told_by(BLOCKS, BYTES)(report)]
    assert "reuse 10 7 0" in lines
    assert "stock vLLM 1,024 MiB 1,025 MiB 1 MiB" in lines
    assert "reuse 1,024 MiB 1,028 MiB 4 MiB" in lines
    (section,) = (section for section in SCALE if section.files == (MEMORY,))
    assert callable(section.answer)
    assert "grows by 1 MiB with stock vLLM, 2 MiB with `exact` and 4 MiB with" in section.answer({MEMORY: report})


@pytest.mark.parametrize(
    ("name", "changed", "says"),
    [
        (REUSE, {"most_idle_blocks": 1}, "reuse: 1 blocks are held between turns"),
        (EXACT, {"last": said(1, 3)}, "exact answers otherwise than stock vLLM"),
        (REUSE, {"last": said(1, 2)}, "moved KV passes as exact"),
        (REUSE, {"most_copied_blocks": 0}, "the watch cannot tell sources that are held from none"),
        (UNHELD, {"most_copied_blocks": 7}, "the watch cannot tell sources that are held from none"),
        (STOCK, {"most_copied_blocks": 1}, "the watch cannot tell sources that are held from none"),
        (EXACT, {"failures": ["no receipt came back"]}, "exact: no receipt came back"),
    ],
)
def test_the_gate_is_red_where_something_is_wrong(name: str, changed: dict[str, Any], says: str) -> None:
    ways = made_ways()
    assert check_ways(ways, BALLAST_BYTES) == []
    ways[name] = replace(ways[name], **changed)
    (failure,) = check_ways(ways, BALLAST_BYTES)
    assert says in failure
    assert as_report(ways, {}, BALLAST_BYTES)["rows"] == []


@pytest.mark.parametrize("seen", [0, BALLAST_BYTES // 2, 2 * BALLAST_BYTES])
def test_a_counter_of_memory_that_sees_something_else_is_red(seen: int) -> None:
    (failure,) = check_ways(made_ways(), seen)
    assert failure.endswith(f"{seen:,} are seen")
