"""The digest of the rule: words do not change it, numbers do."""

from __future__ import annotations

from pathlib import Path

from acmserve.bench.repairs.rule import MODULES, rule_digest

RULE = '''"""A rule."""
LEAST = 8
"""Tokens."""


def choose(share):
    """Whether."""
    return share < 0.9  # nearly all
'''


def told(folder: Path, rule: str) -> str:
    for name in MODULES:
        (folder / f"{name}.py").write_text(rule, encoding="utf-8")
    return rule_digest(folder)


def test_words_do_not_count_and_numbers_do(tmp_path: Path) -> None:
    fixed = told(tmp_path, RULE)
    assert (
        told(tmp_path, RULE.replace("A rule.", "The rule.").replace("Tokens", "Words").replace("nearly", "")) == fixed
    )
    assert told(tmp_path, RULE.replace("8", "4")) != fixed
    assert told(tmp_path, RULE.replace("<", "<=")) != fixed
    assert len(rule_digest()) == 16
