"""What is known of one cell of edits, for `bench edit` and `bench scale`: times, receipts, answers, and why it is red.

Does not know which edit it was, nor who decides on the order of the series.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acmserve.bench.edit.gate import AnswerDistance, compare_answers, longer
from acmserve.bench.harness.engine import Ask, EngineReply, check_receipt
from acmserve.bench.harness.engine_process import EngineProcess

REUSE, APPEND, AUTO, EXACT, STOCK, DEFAULTS = "reuse", "append", "auto", "exact", "stock", "defaults"
"""Series that both benchmarks have."""
AT_DEFAULTS = f"@{DEFAULTS}"
"""Ends the name of what acmserve did in an engine at vLLM's own defaults. Stock's series there is `DEFAULTS`."""


@dataclass(kw_only=True)
class CellTimes:
    """Seconds to first token by series, in the order of asking, the last receipt of each, and why the cell is red.

    `all_receipts` are those of all repetitions, in the order of asking. Each repetition has another text.
    `answers` are the distances of `exact` and of `reuse` to stock vLLM, in the first repetition.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)
    all_receipts: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list)
    answers: dict[str, AnswerDistance] = field(default_factory=dict)
    num_front: int = 0
    num_behind: int = 0

    def ask(self, engine: EngineProcess, ask: Ask, series: str, *, is_timed: bool = True) -> EngineReply:
        """One request, whose time and receipt are those of `series`."""
        reply = engine.ask(ask)
        if is_timed:
            self.seconds[series].append(reply.first_token_s)
        if ask.session_id is not None:
            self.failures += [f"{series}: {what}" for what in check_receipt(ask, reply.receipt)]
            self.keep_receipt(series, reply.receipt or {})
        return reply

    def keep_receipt(self, series: str, receipt: dict[str, Any]) -> None:
        """What was told of one request of `series`."""
        self.receipts[series] = receipt
        self.all_receipts[series].append(receipt)

    def receipt_fields(self) -> dict[str, Any]:
        """JSON-ready: the last receipt of each series, and all of them where they were kept."""
        kept = {"all_receipts": dict(self.all_receipts)} if self.all_receipts else {}
        return {"receipts": self.receipts, **kept}

    def take(self, repetition: CellTimes) -> None:
        """Add one that is whole. Of its answers those count that no other repetition had."""
        for series, seconds in repetition.seconds.items():
            self.seconds[series] += seconds
        self.receipts |= repetition.receipts
        for series, receipts in repetition.all_receipts.items():
            self.all_receipts[series] += receipts
        self.failures += repetition.failures
        self.answers = repetition.answers | self.answers
        self.num_front, self.num_behind = repetition.num_front, repetition.num_behind

    def compare(
        self, ours: EngineProcess, asks: Mapping[str, Ask], stock: EngineProcess, salt: str, end: str = ""
    ) -> None:
        """The same prompts once more, untimed and with longer answers: KV is what the timed requests left.

        `asks` are ours by fidelity. Stock vLLM is asked for the same tokens, under its own `salt`. With an `end` of the
        series' names the distances are told, and no gate judges them.
        """
        for fidelity, ask in asks.items():
            expected = stock.ask(longer(Ask(ask.token_ids, salt)))
            self.answers[fidelity + end] = compare_answers(ours.ask(longer(ask)), expected)
        if not end and not self.answers[EXACT].is_same:
            self.failures.append(f"exact answers otherwise than stock vLLM: {self.answers[EXACT]}")


def by_repetition(seconds: Sequence[float], num: int) -> list[Sequence[float]]:
    """Times in the order of asking, as `num` repetitions of equal length."""
    size = len(seconds) // num
    return [seconds[start : start + size] for start in range(0, size * num, size)]
