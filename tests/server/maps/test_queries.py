"""What a finished query is: iterations of a REPL are no questions, and the client may say it outright."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from starlette.responses import JSONResponse

from acmserve.context.maps.history import MapChange
from acmserve.context.maps.prompts import MapQuestion
from acmserve.context.maps.trajectory import keep_message, last_query, question_of
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
from acmserve.server.models.map_model import MapAnswer
from acmserve.server.options.map_options import MapOptions, QueryFinished, UpdateOptions
from acmserve.server.vllm.handlers import ChatCompletionRequest
from tests.server.maps.test_maps import Scripted, make_maps, says, user
from tests.support.routes.stand_in_model import RAW, said
from tests.support.server.acm_app import make_server

OPTIONS = MapOptions("corpus")
CODE = "```repl\nprint(len(part))\n```"
REPL = ObservationRule("auto", ("REPL output:",))
REFUSED = "REPL output:\nNothing was run."
PRINTED = "Code executed:\n```\nprint(len(part))\n```\n\nREPL output:\n388"


@dataclass
class HeldUp(Scripted):
    """Answers nobody while `is_held`."""

    is_held: bool = False

    async def ask(self, question: MapQuestion, options: UpdateOptions) -> MapAnswer:
        while self.is_held:
            await asyncio.sleep(0)
        return await super().ask(question, options)


class Loop:
    """A client whose model works in a REPL: it resends everything, and the server answers."""

    def __init__(self, maps: Maps, rule: ObservationRule | None = None, options: MapOptions = OPTIONS) -> None:
        self.options = options
        self.maps = maps
        self.messages: list[Message] = []
        self.session = Session("", "s", SessionState(observation_rule=rule))

    async def turn(self, text: str, answer: str, finished: QueryFinished | None = None, *, waits: bool = True) -> None:
        """The next message of the user is answered. `waits`: the loop goes on when the map has learned from it."""
        turn = self.begin(text, finished)
        self.messages.append(says(answer))
        self.session.state = append_answer(self.session.state, says(answer))
        self.maps.finished(turn, self.session)
        await asyncio.sleep(0)
        if waits:
            await self.maps.updates.done(("", "corpus"))

    def begin(self, text: str, finished: QueryFinished | None = None) -> MapTurn | None:
        self.messages.append(user(text))
        self.session.state = adopt(self.session.state, self.messages).state
        return self.maps.begin(self.session, self.options, self.session.state, query_finished=finished)


def history(loop: Loop) -> tuple[MapChange, ...]:
    """The updates that the map had."""
    return loop.maps.store.get(("", "corpus")).context_map.history


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


@pytest.mark.parametrize(
    ("answer", "num"),
    [
        ("It is 388.", 0),
        (CODE, 0),
        ("FINAL(388)", 1),
        (f"{CODE}\nFINAL_VAR(count)", 1),
        ("```repl\nFINAL(388)\n```", 0),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "off"])
def test_with_final_nothing_but_a_final_answer_ends_a_query(answer: str, num: int, mode: str) -> None:
    model = Scripted()
    asyncio.run(Loop(make_maps(model), ObservationRule(mode)).turn("How many?", answer, "final"))
    assert len(learned(model)) == num


@pytest.mark.parametrize("waits", [False, True], ids=["before the update", "behind the update"])
def test_a_final_answer_that_the_loop_refuses_teaches_nothing_more(waits: bool) -> None:
    """The update of the refused answer is taken back, or it is the only one where it was done by then."""
    model = Scripted()
    loop = Loop(make_maps(model), REPL)

    async def run() -> None:
        await loop.turn("How many lines?", "FINAL_VAR(nowhere)", "final", waits=waits)
        await loop.turn(REFUSED, "I think of it.", "final", waits=waits)
        await loop.turn(REFUSED, "FINAL(388", "final", waits=waits)
        await loop.turn(REFUSED, "FINAL(388)", "final")
        assert len(history(loop)) == 1
        await loop.turn("And words?", "FINAL(3000)", "final")

    asyncio.run(run())
    assert [change.error for change in history(loop)] == ["", ""]
    first, second = (query for query in learned(model) if "388)" in query or waits or "And words?" in query)
    assert first.count(REFUSED) == (0 if waits else 3)
    assert second.count("[user]") == 1
    held = loop.maps.store.get(("", "corpus"))
    assert held.context_map.num_read_tokens == sum(range(1, len(model.asked) + 1)), "what was dropped was read, too"


def test_what_is_taken_back_is_that_of_its_session_alone() -> None:
    model = HeldUp(is_held=True)
    maps = make_maps(model)
    mine, other = Loop(maps, REPL), Loop(maps, REPL)
    other.session = Session("", "other", SessionState(observation_rule=REPL))

    async def run() -> None:
        await mine.turn("How many lines?", "FINAL(388)", "final", waits=False)
        await other.turn("How many words?", "FINAL_VAR(nowhere)", "final", waits=False)
        await mine.turn("And files?", "FINAL_VAR(nowhere)", "final", waits=False)
        await mine.turn(REFUSED, CODE, "final", waits=False)
        assert maps.updates.num_pending(("", "corpus")) == 2
        model.is_held = False
        await mine.turn(REFUSED, "FINAL(3)", "final")

    asyncio.run(run())
    assert [change.session_id for change in history(mine)] == ["s", "other", "s"]


@pytest.mark.parametrize("refused", ["FINAL_VAR(nowhere)", "I think of it."])
def test_the_next_question_ends_one_that_never_had_a_final_answer(refused: str) -> None:
    """Also where the request behind the refused answer failed, twice. It takes nothing back."""
    model = HeldUp(is_held=True)
    loop = Loop(make_maps(model), REPL)

    async def run() -> None:
        await loop.turn("How many lines?", refused, "final", waits=False)
        num_pending = loop.maps.updates.num_pending(("", "corpus"))
        assert num_pending == ("FINAL" in refused)
        for _ in range(2):
            loop.begin(REFUSED, "final")
            loop.messages.pop()
        assert loop.maps.updates.num_pending(("", "corpus")) == num_pending
        model.is_held = False
        await loop.turn("And words?", "FINAL(3000)", "final")

    asyncio.run(run())
    assert len(history(loop)) == 2
    assert "How many lines?" in learned(model)[-2]
    assert "And words?" not in learned(model)[-2]


@pytest.mark.parametrize(
    "behind", [[], [{"role": "system", "content": "Three turns are left."}]], ids=["alone", "note"]
)
@pytest.mark.parametrize("steps", [[], [says(CODE), user("REPL output:\n388")]], ids=["asked", "asked and looked up"])
def test_an_accepted_answer_is_not_taken_back_by_the_next_question(behind: list[Message], steps: list[Message]) -> None:
    """Whatever stands behind that question in its first request."""
    model = HeldUp(is_held=True)
    loop = Loop(make_maps(model), REPL)

    async def run() -> None:
        await loop.turn("How many lines?", "FINAL(388)", "final", waits=False)
        loop.messages += [user("And words?"), *steps, *behind]
        loop.session.state = adopt(loop.session.state, loop.messages).state
        turn = loop.maps.begin(loop.session, OPTIONS, loop.session.state, query_finished="final")
        loop.session.state = append_answer(loop.session.state, says("FINAL(3000)"))
        loop.maps.finished(turn, loop.session)
        model.is_held = False
        await loop.maps.updates.done(("", "corpus"))

    asyncio.run(run())
    assert ["How many lines?" in query for query in learned(model)] == [True, False]
    assert ["And words?" in query for query in learned(model)] == [False, True]


@pytest.mark.parametrize("first", ["I think of it.", CODE, "FINAL(388)"])
def test_a_question_that_is_sent_again_teaches_once(first: str) -> None:
    """A client regenerates an answer, or tries again. The answer that stays is what is learned."""
    model = HeldUp(is_held=True)
    loop = Loop(make_maps(model), REPL)

    async def run() -> None:
        await loop.turn("How many words?", "FINAL(3000)", "final", waits=False)
        await loop.turn("And lines?", first, "final", waits=False)
        del loop.messages[-2:]
        await loop.turn("And lines?", "FINAL(389)", "final", waits=False)
        model.is_held = False
        await loop.maps.updates.done(("", "corpus"))

    asyncio.run(run())
    assert len(history(loop)) == 2
    assert "FINAL(389)" in learned(model)[-1]
    assert first not in learned(model)[-1]


def test_the_right_answer_of_a_question_is_told_with_that_question() -> None:
    """A query that the next question ends is distilled with what its own requests said."""
    model = Scripted()
    loop = Loop(make_maps(model), REPL)

    async def run() -> None:
        for question, answer, truth in (("Lines?", "I think of it.", "TRUTH-ONE"), ("Words?", "FINAL(3)", "TRUTH-TWO")):
            loop.options = replace(OPTIONS, update=UpdateOptions(ground_truth=truth))
            await loop.turn(question, answer, "final")

    asyncio.run(run())
    told = [("Lines?" in query, "TRUTH-ONE" in query, "TRUTH-TWO" in query) for query in learned(model)]
    assert told == [(True, True, False), (False, False, True)]


def test_observations_are_passed_over_where_questions_are_counted() -> None:
    messages = [user("a"), says(CODE), user(PRINTED), says(CODE), user(PRINTED)]
    state = adopt(SessionState(), messages).state
    assert state.observations == {2, 4}
    assert not is_new_query(messages, state.observations)
    assert is_new_query(messages)
    asked = [keep_message(message) for message in last_query(messages, state.observations)]
    assert question_of(asked) == "a"
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
