"""What a finished query is: iterations of a REPL are no questions, and the client may say it outright."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from starlette.responses import JSONResponse

from acmserve.context.maps.trajectory import last_query, question_of
from acmserve.context.session.history import adopt, append_answer
from acmserve.context.session.render import questions, render
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Session
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.observations import ObservationRule
from acmserve.context.transcript.template_rules import TAKES_ALL
from acmserve.errors import Conflict
from acmserve.plan.request import SessionParams
from acmserve.server.chat.options import ChatRequest
from acmserve.server.chat.turn import answer_chat
from acmserve.server.maps.maps import Maps
from acmserve.server.maps.turn import MapCopy, MapTurn, is_new_query, placed
from acmserve.server.options.map_options import MapOptions, UpdateOptions
from acmserve.server.vllm.handlers import ChatCompletionRequest
from tests.server.maps.test_maps import Scripted, make_maps, says, user
from tests.support.routes.stand_in_model import RAW, said
from tests.support.server.acm_app import make_server

OPTIONS = MapOptions("corpus")
CODE = "```repl\nprint(len(part))\n```"
PRINTED = "Code executed:\n```\nprint(len(part))\n```\n\nREPL output:\n388"


class Loop:
    """A client whose model works in a REPL: it resends everything, and the server answers."""

    def __init__(self, maps: Maps, rule: ObservationRule | None = None, options: MapOptions = OPTIONS) -> None:
        self.options = options
        self.maps = maps
        self.messages: list[Message] = []
        self.session = Session("", "s", SessionState(observation_rule=rule))

    async def turn(self, text: str, answer: str, finished: bool | None = None) -> None:
        self.messages.append(user(text))
        self.session.state = adopt(self.session.state, self.messages).state
        turn = self.maps.begin(self.session, self.options, self.session.state, query_finished=finished)
        self.messages.append(says(answer))
        self.session.state = append_answer(self.session.state, says(answer))
        self.maps.finished(turn, self.session)
        while self.maps.updates.num_pending(("", "corpus")):
            await asyncio.sleep(0)


def learned(model: Scripted) -> list[str]:
    """What the map was given to learn from."""
    return [question.prompt for question in model.asked if question.name == "distiller"]


def test_a_repl_is_one_query_until_it_answers() -> None:
    model = Scripted()
    loop = Loop(make_maps(model))

    async def run() -> None:
        await loop.turn("How many lines?", CODE)
        await loop.turn(PRINTED, CODE)
        assert learned(model) == []
        await loop.turn(PRINTED, "It is 388.")

    asyncio.run(run())
    [query] = learned(model)
    assert "[user]\nHow many lines?" in query
    assert query.count("REPL output:") == 2
    assert query.rstrip().count("It is 388.") == 1


def test_the_next_question_ends_a_query_that_ended_in_a_command() -> None:
    model = Scripted()
    loop = Loop(make_maps(model))

    async def run() -> None:
        await loop.turn("Write me a loop.", CODE)
        assert learned(model) == []
        await loop.turn("Thanks, and how many lines?", "It is 388.")

    asyncio.run(run())
    first, second = learned(model)
    assert "Write me a loop." in first
    assert "how many lines?" not in first
    assert "Write me a loop." not in second


@pytest.mark.parametrize(("finished", "answer", "num"), [(True, CODE, 1), (False, "It is 388.", 0)])
def test_the_client_says_what_ends_a_query(finished: bool, answer: str, num: int) -> None:
    model = Scripted()
    asyncio.run(Loop(make_maps(model)).turn("How many?", answer, finished))
    assert len(learned(model)) == num


@pytest.mark.parametrize(
    ("answer", "num"),
    [
        (f"{CODE}\nFINAL(388)", 1),
        (f"FINAL_VAR(count)\n{CODE}", 1),
        ("```repl\nFINAL(388)\n```", 0),
        (f"{CODE}\nI shall say FINAL(388) soon.", 0),
    ],
)
def test_a_final_answer_beside_code_ends_its_query(answer: str, num: int) -> None:
    model = Scripted()
    asyncio.run(Loop(make_maps(model)).turn("How many?", answer))
    assert len(learned(model)) == num


def test_where_nothing_is_an_observation_every_answer_ends_its_query() -> None:
    """The control: with the rule `off` each iteration of the REPL is a question."""
    model = Scripted()
    loop = Loop(make_maps(model), ObservationRule("off"))

    async def run() -> None:
        await loop.turn("How many lines?", CODE)
        await loop.turn(PRINTED, "It is 388.")

    asyncio.run(run())
    assert len(learned(model)) == 2


def test_observations_are_passed_over_where_questions_are_counted() -> None:
    messages = [user("a"), says(CODE), user(PRINTED), says(CODE), user(PRINTED)]
    state = adopt(SessionState(), messages).state
    assert state.observations == {2, 4}
    assert not is_new_query(messages, state.observations)
    assert is_new_query(messages)
    assert question_of(last_query(messages, state.observations)) == "a"
    copies = (MapCopy(0, "MAP"), MapCopy(1, "LATER"))
    later = adopt(state, [*messages, says("388"), user("b")]).state
    held: Any = None
    shown = placed(MapTurn(held, "", copies=copies), render(later), later, TAKES_ALL)
    assert [n for n, message in enumerate(shown) if "MAP" in str(message["content"])] == [0]
    assert [n for n, message in enumerate(shown) if "LATER" in str(message["content"])] == [6]
    assert questions(later) == [0, 6]


def test_the_distiller_alone_is_told_the_right_answer() -> None:
    model = Scripted()
    loop = Loop(make_maps(model), options=replace(OPTIONS, update=UpdateOptions(ground_truth="three hundred")))
    asyncio.run(loop.turn("How many?", "It is 388."))
    assert ["three hundred" in question.prompt for question in model.asked] == [True, False]


def test_the_sections_of_a_map_are_settled_by_its_first_request() -> None:
    maps = make_maps(Scripted())
    wanted = replace(OPTIONS, sections=("context_roadmap",))
    asyncio.run(Loop(maps, options=wanted).turn("How many?", "It is 388."))
    assert maps.store.find(("", "corpus")).context_map.sections == ("context_roadmap",)
    with pytest.raises(Conflict, match=r"is domain_constants, but the map of .* has context_roadmap"):
        asyncio.run(Loop(maps, options=replace(OPTIONS, sections=("domain_constants",))).turn("How?", "So."))


@pytest.mark.parametrize("is_answered", [True, False], ids=["answered", "control"])
def test_a_failed_request_leaves_its_map_to_another_of_its_session(is_answered: bool) -> None:
    """The one that had made it took it back, with the budget of the other."""
    server = make_server()
    body: dict[str, Any] = {"model": "m", "messages": [user("How many?")]}
    request = ChatCompletionRequest(**cast(Any, body))
    chat = ChatRequest(request, cast(Any, RAW), body, SessionParams("s"), "", map=MapOptions("corpus", 512))

    async def main() -> None:
        begun, ends = asyncio.Event(), asyncio.Event()

        async def fails(request: Any, raw_request: Any) -> Any:
            begun.set()
            await ends.wait()
            return JSONResponse({"error": {}}, status_code=400)

        async def answers(request: Any, raw_request: Any) -> Any:
            return JSONResponse(said("388. It is the end.")) if is_answered else JSONResponse({}, status_code=400)

        failing = asyncio.create_task(answer_chat(server, chat, fails))
        await begun.wait()
        await answer_chat(server, chat, answers)
        ends.set()
        await failing

    asyncio.run(main())
    held = server.maps.store.find(("", "corpus"))
    assert (held is not None) is is_answered
    assert held is None or held.context_map.budget == 512
