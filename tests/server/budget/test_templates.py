"""Told is what is served, and every template takes every eviction: twelve templates, random agents, random budgets.

ACMSERVE_TEMPLATE_TURNS is the number of turns of the long form (`make templates`), which leaves its counts in
`benchmarks/results/templates.json`. Controls show that the gate can go red. They are part sums without rendering, what
an eviction leaves without mending, and counts that lack turns, a template or an eviction.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from jinja2 import TemplateError

from acmserve.bench.harness.machine import describe_machine
from acmserve.context.session.history import adopt
from acmserve.context.session.render import render
from acmserve.context.storage.session import SessionLimits
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.transcript.template_rules import STRICT, TAKES_ALL, TemplateRules, probe_rules
from acmserve.context.transcript.tokenizer import count_tokens
from acmserve.server.budget.budgets import Budgets, PromptOverhead, set_budget
from acmserve.server.budget.enforcement import Enforced
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.served_prompts import ServedContexts
from acmserve.server.models.template_probe import TemplateProbe, template_render
from acmserve.server.models.tokenizer import ServedTokenizer
from tests.support.context.valid_chat import orphans
from tests.support.server.acm_app import FirstSentence, WordVectors
from tests.support.templates.fixtures import NAMES, TemplateRenderer, rules, source, tokenizer
from tests.support.templates.random_agent import ONE_CALL, RandomAgent
from tests.support.templates.report import IS_LONG, LEAST_TURNS, NUM_TURNS, TemplateReport, ToldTurn

MAX_TURNS = 20
TOLERANCE = 0.01
KINDS = ("kept", "kept since the last user message", "dropped")
POLICIES = ("cwl", "pi-cwl", "recency", "clear_tool_uses", "compact")
TIGHT = {"max_tokens": 800, "low_watermark": 600, "policy": "chain"}


@dataclass(slots=True)
class TemplateRun:
    """A session of one agent with one template. `renders`: prompts are rendered to be counted, as the server does.

    `rules` are the server's where they are not the template's own. `budget` is one that is not drawn. A turn that is
    `refused` is the last.
    """

    name: str
    seed: int
    renders: bool = True
    rules: TemplateRules | None = None
    budget: dict[str, Any] | None = None
    refused: list[str] = field(default_factory=list)

    def turns(self, num_turns: int) -> Iterator[ToldTurn]:
        """The turns, each served and recorded."""
        draw, known = random.Random(self.seed), rules(self.name)
        agent = RandomAgent(self.seed, known.tools, 1 if self.name in ONE_CALL else 3, known.results_then_user)
        server = self._server()
        session = server.store.open("", "s")
        budget = server.budgets.parse(self.budget or self._budget(draw), "budget")
        server.store.save(session, set_budget(session.state, budget))
        agent.ask()
        for _ in range(draw.randint(0, 10)):
            agent.step()
        last: tuple[Any, list[Any]] = (None, [])
        for _ in range(num_turns):
            tools = agent.tools
            if draw.random() < 0.1:
                agent.change_tools()
            renderer = TemplateRenderer(self.name, agent.tools)
            state = adopt(session.state, agent.messages).state
            beside = PromptOverhead(agent.tools, renderer=renderer if self.renders else None)
            enforced: Enforced = asyncio.run(server.enforce(session, state, beside, "exact"))
            assert enforced.report is not None
            assert enforced.on_served is not None
            shown = render(enforced.state, server.rules)
            assert orphans(shown) == []
            was_evicted = enforced.state.omissions != state.omissions
            try:
                before = served = renderer.served(shown)
                if was_evicted:
                    unevicted = replace(enforced.state, omissions=state.omissions)
                    before = renderer.served(render(unevicted, server.rules))
            except TemplateError as error:
                self.refused.append(str(error))
                return
            report = dict(enforced.report)
            server.store.save(session, enforced.state)
            enforced.on_served(served)
            meter = server.budgets.meter(session)
            meter.check_integrity()
            if last[0] == enforced.state.omissions:
                assert shown[: len(last[1]) - 1] == last[1][:-1], "bytes of an old message have changed"
            last = enforced.state.omissions, shown
            yield ToldTurn(
                report["tokens"],
                enforced.report["tokens"],
                served,
                budget.max_tokens,
                enforced.report["unmet"],
                report["evicted_tokens"],
                before - served,
                before,
                max(report.get("unknown_media", 0), meter.token_counts.has_unknown_media(0)),
                was_evicted,
                sum(s["evicted_tokens"] for s in report.get("stages", ()) if s["policy"] == "user_messages"),
                agent.has_thought,
                agent.has_sent_images,
                agent.tools != tools,
            )
            agent.step()

    def _budget(self, draw: random.Random) -> dict[str, Any]:
        max_tokens = draw.randint(700, 5000)
        budget: dict[str, Any] = {"max_tokens": max_tokens, "policy": draw.choice(POLICIES)}
        if draw.random() < 0.5:
            budget["low_watermark"] = int(max_tokens * draw.uniform(0.3, 0.9))
        return budget

    def _server(self) -> ContextServer:
        counting = ServedTokenizer(tokenizer())
        probe = TemplateProbe(
            lambda text: count_tokens(counting, text), template_render(tokenizer(), source(self.name))
        )
        budgets = Budgets(
            counting, overheads=probe.overheads, num_base=probe.num_base, rules=self.rules or rules(self.name)
        )
        store, served = SessionStore(SessionLimits()), ServedContexts(tokenizer())
        return ContextServer(store, counting, FirstSentence(), WordVectors(), served, budgets=budgets)


def turns_of(
    name: str, num_turns: int, report: TemplateReport | None = None, **settings: Any
) -> Iterator[tuple[TemplateRun, ToldTurn]]:
    seed = 0
    while num_turns > 0:
        run = TemplateRun(name, seed * 7919 + NAMES.index(name), **settings)
        for turn in run.turns(min(MAX_TURNS, num_turns)):
            yield run, turn
        if run.refused and report is not None:
            report.refuse(name)
        assert not run.refused, (name, run.seed, run.refused)
        num_turns -= MAX_TURNS
        seed += 1


def faults(turn: ToldTurn) -> list[str]:
    """What of a turn was told wrong."""
    found = []
    room = TOLERANCE * turn.served
    if turn.settled != turn.served:
        found.append(f"told {turn.settled} tokens, served {turn.served}")
    if turn.was_evicted and not turn.num_unknown and abs(turn.told - turn.served) > room:
        found.append(f"an eviction told {turn.told} tokens, served {turn.served}")
    if not turn.num_unknown and abs(turn.evicted - turn.num_saved) > TOLERANCE * turn.unevicted:
        found.append(f"told {turn.evicted} saved of {turn.unevicted}, saved {turn.num_saved}")
    over = turn.served - turn.max_tokens
    if (turn.unmet is not None) != (over > 0) or (turn.unmet and turn.unmet["tokens_over"] != over):
        found.append(f"{over} tokens over, told {turn.unmet}")
    if turn.was_evicted and not turn.num_unknown and turn.unevicted <= turn.max_tokens:
        found.append(f"evicted from {turn.unevicted} of {turn.max_tokens} tokens")
    return found


@pytest.fixture(scope="module")
def template_report() -> Iterator[TemplateReport]:
    """The counts of all twelve, which `make templates` writes."""
    report = TemplateReport(describe_machine() if IS_LONG else None)
    yield report
    if IS_LONG:
        report.write()


@pytest.mark.parametrize("name", NAMES)
def test_told_and_served_agree_and_every_eviction_is_taken(name: str, template_report: TemplateReport) -> None:
    num_evictions = 0
    for run, turn in turns_of(name, -(-NUM_TURNS // len(NAMES)), template_report):
        found = faults(turn)
        template_report.add(name, turn, found)
        assert found == [], (name, run.seed)
        num_evictions += turn.was_evicted
    assert num_evictions > 0


TURN = ToldTurn(9, 9, 9, 10, None, 5, 5, 14, 0, True, 0, True, True, True)


def counted(num_turns: int, broken: Sequence[ToldTurn] = (), without: str = "") -> TemplateReport:
    """The counts of so many good turns, and of some broken ones."""
    report = TemplateReport()
    for number, turn in enumerate([*[TURN] * num_turns, *broken]):
        name = NAMES[number % len(NAMES)]
        if name != without:
            report.add(name, turn, faults(turn))
    return report


def test_counts_are_green_where_nothing_is_missing() -> None:
    report = counted(LEAST_TURNS).as_json()
    assert report["gate"] == {"green": True, "failures": []}
    assert report["totals"]["turns"] == LEAST_TURNS


@pytest.mark.parametrize(
    ("num_turns", "broken", "without"),
    [
        (LEAST_TURNS - 1, [], ""),
        (LEAST_TURNS, [replace(TURN, settled=8)], ""),
        (LEAST_TURNS, [replace(TURN, told=10)], ""),
        (LEAST_TURNS, [replace(TURN, max_tokens=8)], ""),
        (2 * LEAST_TURNS, [], "phi4"),
    ],
    ids=["few turns", "settled wrong", "told wrong", "a silent breach", "a template is missing"],
)
def test_control_counts_are_red(num_turns: int, broken: list[ToldTurn], without: str) -> None:
    assert not counted(num_turns, broken, without).as_json()["gate"]["green"]


def test_control_a_refused_prompt_makes_the_counts_red() -> None:
    report = counted(LEAST_TURNS)
    report.refuse("mistral")
    assert not report.as_json()["gate"]["green"]


@pytest.mark.parametrize("name", ["gemma", "mistral", "command_r", "qwen3"])
def test_a_template_takes_a_history_that_has_lost_messages_of_users(name: str) -> None:
    num_of_users = 0
    for run, turn in turns_of(name, 2 * MAX_TURNS, budget=TIGHT):
        assert faults(turn) == [], (name, run.seed)
        num_of_users += turn.num_of_users > 0
    assert num_of_users > 0


def first_faults(name: str, **settings: Any) -> Iterator[str]:
    """What a control tells wrong in its first sessions."""
    for seed in range(8):
        for turn in TemplateRun(name, seed * 7919 + NAMES.index(name), **settings).turns(MAX_TURNS):
            yield from faults(turn)


@pytest.mark.parametrize("name", ["qwen3", "deepseek", "llama3"])
def test_control_sums_of_parts_are_told_wrong(name: str) -> None:
    """Parts counted alone, as for a prompt that nobody can render: reasoning that is dropped counts as saved."""
    assert any("saved" in fault for fault in first_faults(name, renders=False))


@pytest.mark.parametrize("name", ["mistral", "gemma", "command_r"])
def test_control_what_an_eviction_leaves_is_refused(name: str) -> None:
    runs = [TemplateRun(name, seed * 7919 + NAMES.index(name), rules=TAKES_ALL) for seed in range(6)]
    for run in runs:
        for _ in run.turns(MAX_TURNS):
            pass
    assert any("alternate" in reason for run in runs for reason in run.refused)


def test_the_rules_of_the_twelve() -> None:
    known = {name: rules(name) for name in NAMES}
    assert len(known) == 12
    assert {name for name, found in known.items() if not found.users_in_a_row} == {"command_r", "gemma", "mistral"}
    assert {name for name, found in known.items() if not found.tools} == {"gemma"}
    assert {name for name, found in known.items() if not found.calls_with_text} == {"gemma", "llama3", "mistral"}
    assert {name: found.policy for name, found in known.items() if found.policy != "as they are"} == {
        "command_r": "merged, bridged",
        "gemma": "merged",
        "llama3": "split",
        "mistral": "merged, bridged, split",
    }
    kinds = {kind: {name for name, found in known.items() if found.reasoning.value == kind} for kind in KINDS}
    assert kinds["kept since the last user message"] == {"glm4", "gpt_oss", "minimax", "qwen3"}
    assert kinds["kept"] == set()
    assert "refuses two assistant messages in a row" in str(known["command_r"])


def test_a_template_that_shows_nothing_is_strict() -> None:
    assert probe_rules(lambda messages: None) == STRICT
    assert STRICT.policy == "merged, bridged, split"
    assert TAKES_ALL.policy == "as they are"
