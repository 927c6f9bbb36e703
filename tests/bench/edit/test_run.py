"""What `bench edit` asks its engines, without one: whole repetitions, and nothing that another series computed."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.edit import main as edit
from acmserve.bench.edit.kinds import KINDS, UNMARKED, EditSizes, plan_edits
from acmserve.bench.edit.run import NUM_ROUNDS, OURS, EditEngines, num_common
from acmserve.bench.harness.ending import TIME_LIMIT
from acmserve.bench.harness.engine import Ask, EngineReply
from acmserve.bench.harness.run_log import RUN
from acmserve.errors import AcmError

TEXT = tuple(range(100_000))
BLOCK = 128


class Asked:
    """An engine that answers at once, and lets nine tenths move. After `num` requests the time is over."""

    def __init__(self, with_acmserve: bool, num: int | None = None) -> None:
        self.asks: list[Ask] = []
        self._with_acmserve, self._num = with_acmserve, num

    def wait_ready(self) -> None:
        pass

    def ask(self, ask: Ask) -> EngineReply:
        if self._num is not None and len(self.asks) >= self._num:
            RUN.ended_by = TIME_LIMIT
            raise KeyboardInterrupt
        self.asks.append(ask)
        size, is_exact = len(ask.token_ids), ask.fidelity == "exact"
        receipt = {"kept_tokens": 0 if is_exact else size, "moved_tokens": 0, "computed_tokens": size * is_exact}
        apart = 0.0 if is_exact else 1.0
        logprobs = tuple({token: -1.0 - token - apart for token in range(20)} for _ in range(ask.max_tokens))
        tokens = (7,) * ask.max_tokens
        told = receipt | {"fallback_reason": None} if self._with_acmserve else None
        return EngineReply(0.5 if is_exact else 0.05, 0, tokens, "", told, logprobs)


def engines(num: int | None = None) -> Any:
    return EditEngines(*(Asked(with_acmserve, num) for with_acmserve in (True, False, True, False)))  # type: ignore[arg-type]


def measured(monkeypatch: pytest.MonkeyPatch, asked: EditEngines, *arguments: str) -> dict[str, Any]:
    @contextmanager
    def started(folder: Path, options: argparse.Namespace) -> Iterator[EditEngines]:
        yield asked

    monkeypatch.setattr(edit, "_engines", started)
    monkeypatch.setattr(edit, "prepare_model", lambda name: Path("model"))
    monkeypatch.setattr(edit, "read_text", lambda folder: TEXT)
    try:
        return edit.measure(edit._parser().parse_args(arguments))
    finally:
        RUN.begin()


def test_a_cut_keeps_whole_repetitions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kinds. The second repetition is cut behind its first kind, in which a third of it was measured."""
    counting = engines()
    measured(monkeypatch, counting, "--repetitions", "1")
    num = len(counting.ours.asks)
    found = measured(monkeypatch, engines(num + 20), "--repetitions", "5", "--max-minutes", "15")
    assert [cell["num_repetitions"] for cell in found["cells"]] == [1, 1]
    assert [len(cell["seconds_to_first_token"]["reuse"]) for cell in found["cells"]] == [3, 3]
    assert {len(cell["seconds_to_first_token"]["exact@defaults"]) for cell in found["cells"]} == {1}
    assert (found["gate"]["green"], found["max_minutes"]) == (True, 15)
    kept = [cell["all_receipts"] for cell in found["cells"]]
    assert [(len(one["reuse"]), len(one["auto"]), len(one["exact@defaults"])) for one in kept] == [(3, 1, 1)] * 2
    for cell in found["cells"]:
        assert {name: told[-1] for name, told in cell["all_receipts"].items()} == cell["receipts"]
    assert [cell["new_tokens"] for cell in found["cells"]] == [50, 70]


def test_without_a_whole_repetition_there_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AcmError, match="no repetition was whole after 2 minutes: give --max-minutes more"):
        measured(monkeypatch, engines(30), "--max-minutes", "2")


def test_somebody_elses_end_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Any = engines()
    monkeypatch.setattr(asked.ours, "ask", lambda ask: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        measured(monkeypatch, asked, "--max-minutes", "2")


@pytest.mark.parametrize("kind", KINDS)
def test_no_series_finds_what_another_one_computed(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Of two timed prompts under one salt, no block behind what was read before is the same."""
    asked: Any = engines()
    report = measured(monkeypatch, asked, "--kinds", kind, "--repetitions", "1")
    assert {series for series in OURS if report["cells"][0]["seconds_to_first_token"].get(series)} == set(OURS)
    read = plan_edits(TEXT, 1, EditSizes(), NUM_ROUNDS)[0][kind].turns[0]
    by_head = defaultdict(set)
    for ask in asked.ours.asks:
        if ask.salt.startswith("edit-1") and ask.token_ids != read:
            head = num_common(ask.token_ids, read) // BLOCK * BLOCK + BLOCK
            by_head[ask.salt, ask.token_ids[:head]].add(ask.fidelity if kind == UNMARKED else ask.session_id)
    assert all(len(found) == 1 for found in by_head.values())
    assert {ask.fidelity for ask in asked.ours.asks} == {"exact", "reuse", "repair", "auto"}


def test_a_context_is_read_under_one_salt_and_by_stock_as_far_as_it_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Any = engines()
    measured(monkeypatch, asked, "--kinds", "fold", "--repetitions", "1")
    read = plan_edits(TEXT, 1, EditSizes(), NUM_ROUNDS)[0]["fold"].turns[0]
    assert {ask.salt for ask in asked.ours.asks if ask.token_ids == read} == {"edit-1"}
    first, *_ = (ask for ask in asked.stock.asks if ask.salt == "edit-1")
    assert first.token_ids == read[: EditSizes().prefix]
