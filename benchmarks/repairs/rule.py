"""The rule of `auto` as a digest, so that a result tells which rule it judged.

A rule is fixed before held-out cases are run. The digest is over the statements of its modules: text for people does
not count, numbers do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import acmserve.plan
from acmserve.bench.provenance.program import program_of
from acmserve.bench.repairs.cases import HELD_OUT, HELD_OUT_2, HELD_OUT_3, HELD_OUT_4

MODULES = ("auto", "ngrams", "repair")
FIXED_RULES = {
    HELD_OUT: "d90aa06c88ca0a9b",
    HELD_OUT_2: "e119710b9a769791",
    HELD_OUT_3: "ca83f2305d40d1ed",
    HELD_OUT_4: "7493eb5f09683240",
}
"""The rule that each held-out set is for. `benchmarks/LOG.md` has its digest from before the run."""


def rule_digest(folder: Path | None = None) -> str:
    """16 hex digits. `folder` is that of the modules, by default the product's."""
    digest = hashlib.sha256()
    for name in MODULES:
        source = ((folder or Path(acmserve.plan.__path__[0])) / f"{name}.py").read_text(encoding="utf-8")
        digest.update(program_of(source).encode())
    return digest.hexdigest()[:16]


def has_rule_of_today(report: Mapping[str, Any]) -> bool:
    """Whether a recorded `bench repairs` judged the rule that ships."""
    return bool(report["rule"] == rule_digest())


def breach(seeds: str, rule: str) -> str:
    """What is wrong with a rule on these seeds: another one was fixed for them. "" where nothing is."""
    fixed = FIXED_RULES.get(seeds, rule)
    return "" if fixed == rule else f"The {seeds} seeds are for the rule {fixed}, and this is {rule}."
