"""What the weights of two servers would have said along the same script, compared token by token.

`witnessed_model.py` writes it down, one line of JSON for each answer. Pure, so that a report needs no engine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

WITNESS = "ACMSERVE_BENCH_WITNESS"
MOST_LEAD = 1e-3
"""Two logits that are nearer than this may change places when the same prompt is computed in other chunks."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the weights would have said in one answer, and by what lead. Both are `[num_tokens]`."""

    tokens: tuple[int, ...]
    leads: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Tokens of all answers compared, those that differ, and those of them that were too near to tell apart."""

    num_tokens: int
    num_different: int
    num_ties: int


def read_witness(path: Path) -> dict[tuple[str, int], Said]:
    """All answers by script id and step."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = (json.loads(line) for line in lines)
    return {(row["id"], row["step"]): Said(tuple(row["said"]), tuple(row["lead"])) for row in rows}


def compare(ours: list[Said], theirs: list[Said]) -> Agreement:
    """Token by token. Raises ValueError where an answer is longer than its twin: they were not led the same way."""
    num_tokens = num_different = num_ties = 0
    for one, other in zip(ours, theirs, strict=True):
        for a, b, *leads in zip(one.tokens, other.tokens, one.leads, other.leads, strict=True):
            num_tokens += 1
            num_different += a != b
            num_ties += a != b and max(leads) <= MOST_LEAD
    return Agreement(num_tokens, num_different, num_ties)
