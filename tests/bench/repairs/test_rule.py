"""The digest of the rule: words do not change it, numbers do. And for which rule each held-out set is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from acmserve.bench.repairs import lists
from acmserve.bench.repairs import main as repairs
from acmserve.bench.repairs.cases import HELD_OUT, NEWEST, SEED_SETS, TRAIN
from acmserve.bench.repairs.rule import FIXED_RULES, MODULES, breach, rule_digest
from acmserve.errors import AcmError
from tests.support.docs.figures import read_result
from tests.support.docs.pages import ROOT

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


def test_the_log_has_the_rule_of_each_held_out_set() -> None:
    log = (ROOT / "benchmarks/LOG.md").read_text(encoding="utf-8")
    assert FIXED_RULES.keys() == SEED_SETS.keys() - {TRAIN}
    heads = [line for line in log.splitlines() if line.startswith("### ") and "held-out seeds" in line]
    for rule in FIXED_RULES.values():
        assert [line for line in heads if f"rule {rule}" in line], f"no entry announces {rule}"
    assert any(f"seeds {SEED_SETS[NEWEST]} to" in line for line in heads)


def unkept(recorded_seeds: str, rule: str) -> str:
    """Why the newest set could not judge a rule that ships. Nothing once it was read."""
    return "" if recorded_seeds == NEWEST else breach(NEWEST, rule)


def test_until_its_seeds_are_read_the_rule_that_was_announced_is_the_one_that_ships() -> None:
    """A rule that changes before the run is announced anew: in `FIXED_RULES`, and in the log."""
    assert unkept(read_result("repairs")["seeds"], rule_digest()) == ""
    assert NEWEST in unkept(HELD_OUT, "0123456789abcdef"), "another rule is told"
    assert unkept(NEWEST, "0123456789abcdef") == "", "of a set that was read nothing is asked"


@pytest.mark.parametrize(
    ("seeds", "rule", "is_told"),
    [
        (TRAIN, "0123456789abcdef", False),
        (HELD_OUT, FIXED_RULES[HELD_OUT], False),
        (HELD_OUT, FIXED_RULES[NEWEST], True),
        (NEWEST, FIXED_RULES[HELD_OUT], True),
    ],
)
def test_a_rule_on_seeds_that_are_for_another_one_is_told(seeds: str, rule: str, *, is_told: bool) -> None:
    """Training seeds are for any."""
    assert (rule in breach(seeds, rule)) is is_told


class Started(Exception):
    """An engine would have started."""


def start(*_: object, **__: object) -> None:
    raise Started


def test_seeds_that_are_kept_for_another_rule_are_not_served_unless_they_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither by `measure` nor by the command. With the rule that was fixed, and on training seeds, both go on."""
    monkeypatch.setattr(repairs, "LocalEngine", start)
    monkeypatch.setattr(repairs, "prepare_model", lambda _: Path("model"))
    monkeypatch.setattr(repairs, "rule_digest", lambda: "0123456789abcdef")
    asked = ["--cases", "1", "--family", lists.TASK]
    for served in (
        lambda: repairs.measure(Path("model"), 1, NEWEST, lists.TASK),
        lambda: repairs.main(asked),
    ):
        with pytest.raises(AcmError, match=f"The {NEWEST} seeds are for the rule {FIXED_RULES[NEWEST]}.*--seeds"):
            served()
    for seeds in (NEWEST, TRAIN):
        with pytest.raises(Started):
            repairs.main([*asked, "--seeds", seeds])
    with pytest.raises(Started):
        repairs.main(["--quick", "--family", lists.TASK])
    monkeypatch.setattr(repairs, "rule_digest", lambda: FIXED_RULES[NEWEST])
    with pytest.raises(Started):
        repairs.main(asked)
