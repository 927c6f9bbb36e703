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

MODULES = ("auto", "ngrams", "repair")


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
