"""The registry is the only list of policies: what is added there is parsed, documented and carried out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from acmserve.context.eviction import registry
from acmserve.context.eviction.budget_json import budget_value, parse_budget
from acmserve.context.eviction.policy import OptionKind
from acmserve.context.session.budget import Budget
from acmserve.context.transcript.omissions import render_without
from acmserve.errors import InvalidRequest
from tests.context.eviction.test_context_meter import MEASURED, new_meter, state_of
from tests.support.context.annotated import Story
from tests.support.context.lru_policy import LeastRecentlyUsed
from tests.support.context.valid_chat import check_valid

WINDOW = 100_000
MODULE = "tests.support.context.lru_policy"
NAME = f"{MODULE}:LeastRecentlyUsed"


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "POLICIES", dict(registry.POLICIES))
    monkeypatch.setattr(registry, "_loaded", {})
    return


def worked() -> Story:
    story = Story()
    for tool in ("grep", "read", "grep", "bash"):
        story.step((tool, "word " * 50), text="Look .")
    return story.user()


def evicted(policy: str) -> None:
    """The policy carries out what it is asked for: `read` was used before `grep` was used again."""
    story, meter = worked(), new_meter()
    budget = parse_budget({"max_tokens": 250, "low_watermark": 220, "policy": policy}, WINDOW)
    state = meter.follow(state_of(story.messages))
    assert meter.exceeds(budget)
    plan = meter.plan(budget, MEASURED)
    assert [step.what for step in plan.steps] == ["calls of read"]
    assert plan.num_after <= 220
    shown = render_without(story.messages, meter.carry_out(plan, state).omissions)
    check_valid(story.messages, shown)
    meter.check_integrity()


def test_a_new_policy_is_one_file_and_one_line() -> None:
    registry.POLICIES["lru"] = LeastRecentlyUsed
    budget = parse_budget({"max_tokens": 300, "policy": "lru", "spare_tools": ["grep"]}, WINDOW)
    assert budget == Budget(300, None, "lru", {"spare_tools": frozenset({"grep"})})
    assert parse_budget(budget_value(budget), WINDOW) == budget
    with pytest.raises(InvalidRequest, match=r"budget\.keep: is no option of policy lru"):
        parse_budget({"policy": "lru", "keep": 3}, WINDOW)
    with pytest.raises(
        InvalidRequest, match="Choose chain, cwl, pi-cwl, clear_tool_uses, recency, compact, user_messages, lru"
    ):
        parse_budget({"policy": "fifo"}, WINDOW)
    assert "`lru`: the tool results that were used longest ago" in registry.describe()
    assert any(row.startswith("| `lru` |") and "`spare_tools` (`none`)" in row for row in registry.table())
    evicted("lru")


def test_a_policy_of_another_package_is_loaded_by_the_operator_only() -> None:
    with pytest.raises(InvalidRequest, match="acmserve serve --eviction-policy MODULE:CLASS"):
        parse_budget({"policy": NAME}, WINDOW)
    assert registry.load(NAME) is LeastRecentlyUsed
    assert registry.load(NAME) is LeastRecentlyUsed
    evicted(NAME)


def test_no_request_imports_anything() -> None:
    sys.modules.pop("this", None)
    for name in ("this:zen", "this", "this:", ":zen"):
        with pytest.raises(InvalidRequest):
            parse_budget({"policy": name}, WINDOW)
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lru", "names no class"),
        (f"{MODULE}:", "names no class"),
        ("no_such_module:Lru", "cannot be loaded"),
        (f"{MODULE}:Other", "cannot be loaded"),
        (f"{MODULE}:Unfit", "lacks summary, needs_episodes, needs_model, plan"),
        ("acmserve.context.eviction.compact:CompactPolicy", "needs a model"),
    ],
)
def test_what_is_no_policy_is_refused_with_the_remedy(name: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as error:
        registry.load(name)
    assert error.value.field == "--eviction-policy"
    assert "MODULE:CLASS" in error.value.remedy
    assert name not in registry.known()


def test_every_policy_builds_from_its_defaults_and_says_what_it_is() -> None:
    for name, policy in registry.known().items():
        assert registry.policy_of(Budget(1000, policy=name)) == registry.find(name)()
        assert policy.summary
        for option in policy.options:
            assert option.read(option.as_json(option.default), "x") == option.default
            assert isinstance(option.kind, OptionKind)


def test_the_table_is_printed_for_the_documentation() -> None:
    command = [sys.executable, "-m", "acmserve.context.eviction.registry"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert printed[0] == "| policy | what leaves first | options (default) |"
    assert [row.split("`")[1] for row in printed[2:]] == list(registry.POLICIES)
