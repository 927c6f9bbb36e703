"""The agent of `rlm-map` on a model that writes prose, FINAL_VARs that its loop refuses, and code, in any order.

    play_rlm --> acm of each request --> read_options --> Maps --> scripted answer --> the loop of the agent
                                                            \\--> updates, counted

Each question has to teach its map once, the last one included, and to read one copy of it. Updates are done at once
here, before the agent can refuse an answer, or not before the agent is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from types import SimpleNamespace
from typing import Any, cast

import pytest

from acmserve.bench.eval.baselines.way_limits import WayLimits
from acmserve.bench.eval.rlm.play import play_rlm
from acmserve.context.session.history import adopt, append_answer
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Session
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.template_rules import TAKES_ALL
from acmserve.plan.request import SessionParams
from acmserve.server.chat.options import ChatRequest, read_options
from acmserve.server.maps.turn import placed
from acmserve.server.vllm.handlers import ChatCompletionRequest
from tests.server.maps.test_maps import make_maps, says
from tests.server.maps.test_queries import HeldUp
from tests.support.routes.stand_in_model import RAW
from tests.support.server.acm_app import make_server

STEPS = {
    "prose": "It must be about three hundred.",
    "refused": "FINAL_VAR(nowhere)",
    "cut": "FINAL(three hundred and",
    "code": "```repl\nnum = len(context)\nprint(num)\n```",
    "cut code": "I count.\n```repl\nnum = 5\nFINAL(5)",
}
ENDS = ("FINAL(388)", "So it is.\nFINAL_VAR(context)", "FINAL(388)\n```repl\nprint(1)\n```")
ORDERS = [[STEPS[name] for name in order] for order in permutations(("prose", "refused", "code"))]
QUESTIONS: list[list[str]] = [
    *([*order, ENDS[number % len(ENDS)]] for number, order in enumerate(ORDERS)),
    [ENDS[0]],
    [STEPS["cut"], STEPS["cut code"], STEPS["refused"], ENDS[1]],
    # The steps are over, and no answer was final. The last request asks for it outright.
    [STEPS["prose"]] * 5,
    [STEPS["refused"]] * 5,
    [STEPS["code"]] * 4 + [ENDS[0]],
    [STEPS["prose"], ENDS[1]],
]
LIMITS = WayLimits(steps=4)


@dataclass
class Server:
    """Maps behind chats, without a route and an engine. `is_quick`: updates are done before the next request."""

    is_quick: bool
    runner: asyncio.Runner
    model: HeldUp = field(default_factory=HeldUp)
    sent: list[Any] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.maps, self._server = make_maps(self.model), make_server()

    @property
    def taught(self) -> list[str]:
        """The session of each update that the map had."""
        held = self.maps.store.find(("", "corpus"))
        return [] if held is None else [change.session_id for change in held.context_map.history]

    def play(self, name: str, answers: list[str]) -> None:
        """One question, in a session of its own. The model gives these answers."""
        session, left = Session("", name, SessionState()), iter(answers)

        def ask(messages: list[Message], acm: Mapping[str, Any], max_tokens: int) -> str:
            self.model.is_held = not self.is_quick
            return self.runner.run(self._serve(session, messages, acm, left))

        sample = SimpleNamespace(context="a text", question=f"How many, {name}?")
        play: Any = SimpleNamespace(sample=sample, limits=LIMITS, step_tokens=512, ask=ask)
        play_rlm(play, {"map": {"external_context_id": "corpus", "evolve_steps": 999}})
        assert next(left, None) is None, "the loop asks as often as it was thought of"
        self.model.is_held = False
        self.runner.run(self._settle())

    async def _serve(
        self, session: Session, messages: list[Message], acm: Mapping[str, Any], left: Iterator[str]
    ) -> str:
        self.sent.append(acm.get("query_finished"))
        body: dict[str, Any] = {"model": "m", "messages": messages, "acm": dict(acm)}
        params = SessionParams(session.session_id)
        asked = ChatRequest(ChatCompletionRequest(**cast("Any", body)), cast("Any", RAW), body, params, "")
        chat = read_options(self._server, asked)
        rule = chat.observations or session.state.observation_rule
        session.state = adopt(replace(session.state, observation_rule=rule), messages).state
        turn = self.maps.begin(session, chat.map, session.state, query_finished=chat.query_finished)
        shown = placed(turn, render(session.state), session.state, TAKES_ALL)
        self.copies.append(sum("Context map" in str(one["content"]) for one in shown))
        said = next(left)
        session.state = append_answer(session.state, says(said))
        self.maps.finished(turn, session)
        await asyncio.sleep(0)
        if self.is_quick:
            await self._settle()
        return said

    async def _settle(self) -> None:
        await self.maps.updates.done(("", "corpus"))


@pytest.mark.parametrize("is_quick", [True, False], ids=["updates before the next step", "updates at the end"])
def test_each_question_teaches_its_map_once_and_reads_one_copy(is_quick: bool) -> None:
    with asyncio.Runner() as runner:
        server = Server(is_quick, runner)
        for number, answers in enumerate(QUESTIONS):
            server.play(f"question-{number}", answers)
            assert server.taught == [f"question-{n}" for n in range(number + 1)]
    num_first = len(QUESTIONS[0])
    assert max(server.copies[:num_first]) <= 1
    assert server.copies[num_first:] == [1] * sum(map(len, QUESTIONS[1:]))
    assert server.sent.count(True) == 3, "where the steps are over"


def test_a_map_learns_from_the_whole_question_where_its_update_had_not_been_done() -> None:
    with asyncio.Runner() as runner:
        server = Server(False, runner)
        for number, answers in enumerate(QUESTIONS):
            server.play(f"question-{number}", answers)
            told = [one.prompt for one in server.model.asked if one.name == "distiller"][-1]
            assert f"How many, question-{number}?" in told
            assert told.count("[assistant]") == len(answers)
            assert all(answer in told for answer in answers)
