"""Context maps between requests and models: who reads which map where, and the updates in the background."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import redact
from acmserve.context.maps.prompts import MapQuestion
from acmserve.context.maps.rules import MapRules
from acmserve.context.maps.text import render_map
from acmserve.context.maps.update import MapSettings
from acmserve.context.session.branches.parent import Parent
from acmserve.context.session.branches.thread import Thread
from acmserve.context.session.history import adopt, append_answer
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.storage.map_store import MapStore
from acmserve.context.storage.session import Session
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.template_rules import TAKES_ALL
from acmserve.errors import AcmError, Conflict, InvalidRequest, Unavailable
from acmserve.server.exchange.map_slot import MapSlots
from acmserve.server.maps.maps import Maps
from acmserve.server.maps.turn import MAX_COPIES, MapCopy, follow, placed
from acmserve.server.maps.updates import MapUpdates
from acmserve.server.models.map_model import MapAnswer
from acmserve.server.options.map_options import MapOptions, UpdateOptions
from tests.support.server.acm_app import Words

OPTIONS = MapOptions("corpus")
ROADMAP = "## CONTEXT ROADMAP\n"


def add(content: str) -> dict[str, str]:
    return {"type": "ADD", "section": "context_roadmap", "content": content}


@dataclass
class Scripted:
    """Answers as the model that keeps maps: an update adds the question of its query. Counts what it is asked."""

    asked: list[MapQuestion] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    cartographer: Callable[[int], str] | None = None
    distiller: Callable[[int], str | None] = lambda number: None
    error: AcmError | Exception | None = None
    num_words: int = 0

    def num_answer_tokens(self, options: UpdateOptions) -> int:
        return options.max_tokens or 100

    async def ask(self, question: MapQuestion, options: UpdateOptions) -> MapAnswer:
        self.asked.append(question)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if self.error is not None:
            raise self.error
        if question.name == "update":
            told = f"learned {len(self.asked)}" + " word" * self.num_words
            return self._wrote(json.dumps({"diagnosis": "at once", "item_tags": {}, "operations": [add(told)]}))
        number = len(self.asked) // 2
        if question.name == "distiller":
            bad = self.distiller(number)
            right = json.dumps({"diagnosis": f"query {number}", "item_tags": {}, "cache_candidates": []})
            return self._wrote(bad or right)
        if self.cartographer is not None:
            return self._wrote(self.cartographer(number))
        return self._wrote(json.dumps({"reasoning": "", "operations": [add(f"learned {number}")]}))

    def _wrote(self, text: str) -> MapAnswer:
        """The n-th answer reads n tokens, and writes ten times as many."""
        return MapAnswer(text, len(self.asked), 10 * len(self.asked))


class NoFiller(Words):
    """A tokenizer of which no text is one token each time that it is repeated."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))


def make_maps(model: Any = None, **settings: Any) -> Maps:
    words = Words()
    return Maps(MapUpdates(MapStore(clock=lambda: 7.0), MapRules(words), model, **settings), MapSlots(words))


def session_of(*messages: Message, session_id: str = "s", answer: Message | None = None) -> Session:
    state = adopt(SessionState(), messages).state
    if answer is not None:
        state = append_answer(state, answer)
    return Session("", session_id, state)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


CALL: Message = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "grep", "arguments": "{}"}}]}
RESULT: Message = {"role": "tool", "tool_call_id": "c", "content": "388 lines"}


def prompt(maps: Maps, session: Session, options: MapOptions = OPTIONS) -> list[str]:
    """The texts that the model reads."""
    turn = maps.begin(session, options, session.state)
    assert turn is not None
    return [str(m.get("content")) for m in placed(turn, render(session.state), session.state, TAKES_ALL)]


async def finish(maps: Maps, session: Session, options: MapOptions = OPTIONS, answer: Message | None = None) -> None:
    """A request of the session is answered, and every update that it causes is done."""
    turn = maps.begin(session, options, session.state)
    session.state = append_answer(session.state, answer or says("It is 388."))
    maps.finished(turn, session)
    while maps.updates.num_pending(("", "corpus")):
        await asyncio.sleep(0)


def test_the_map_learns_from_a_query_and_the_next_one_of_any_session_reads_it() -> None:
    model = Scripted()
    maps = make_maps(model)
    asyncio.run(finish(maps, session_of(user("How many?"))))
    held = maps.store.get(("", "corpus"))
    assert [item.line for item in held.context_map.items] == ["[cr-00001] learned 1"]
    assert [question.name for question in model.asked] == ["distiller", "cartographer"]
    assert "[user]\nHow many?\n\n[assistant]\nIt is 388." in model.asked[0].prompt
    assert "How many?" in model.asked[1].prompt
    [change] = held.context_map.history
    assert (change.kind, change.at, change.session_id, change.diagnosis) == ("model", 7.0, "s", "query 0")
    [text] = prompt(maps, session_of(user("And now?"), session_id="other"))
    assert text.endswith(render_map(held.context_map) + "\n\nAnd now?")


def test_after_its_steps_a_map_asks_no_model_any_more() -> None:
    model = Scripted()
    maps = make_maps(model)

    async def queries() -> None:
        for number in range(7):
            await finish(maps, session_of(user(f"Question {number}?")), MapOptions("corpus", evolve_steps=4))

    asyncio.run(queries())
    assert len(model.asked) == 8
    assert maps.store.get(("", "corpus")).context_map.num_steps == 4


def test_one_call_does_what_two_do_and_is_held_to_one_schema() -> None:
    model = Scripted()
    maps = make_maps(model)
    options = MapOptions("corpus", update=UpdateOptions(num_calls=1, ground_truth="three hundred"))
    asyncio.run(finish(maps, session_of(user("How many?")), options))
    context_map = maps.store.get(("", "corpus")).context_map
    assert [item.text for item in context_map.items] == ["learned 1"]
    assert (context_map.num_steps, context_map.history[-1].diagnosis) == (1, "at once")
    [question] = model.asked
    assert "[user]\nHow many?\n\n[assistant]\nIt is 388." in question.prompt
    assert "three hundred" in question.prompt
    assert "{" not in question.prompt.replace('{"type"', "")
    assert question.schema["required"] == ["diagnosis", "operations"]


def test_a_map_that_evicts_nothing_is_frozen_when_it_is_full() -> None:
    """The control is the same map with its Evictor: it goes on learning, and older items leave."""
    found = {}
    for evicts in (False, True):
        model = Scripted(num_words=100)
        maps = make_maps(model)
        update = UpdateOptions(num_calls=1, evicts=evicts)
        options = MapOptions("corpus", budget=300, evolve_steps=9, update=update)
        for number in range(9):
            asyncio.run(finish(maps, session_of(user("Q?"), session_id=f"s{number}"), options))
        held = maps.store.get(("", "corpus")).context_map
        found[evicts] = [item.number for item in held.items], held.num_steps, len(model.asked), held.frozen
    assert found[False] == ([1, 2], 9, 3, True)
    assert found[True] == ([8, 9], 9, 9, True)


def test_updates_of_one_map_run_one_at_a_time_and_no_more_than_its_steps_are_taken_on() -> None:
    model = Scripted()
    maps = make_maps(model)

    async def queries() -> None:
        await asyncio.gather(*(finish(maps, session_of(user("Q?"), session_id=f"s{n}")) for n in range(9)))

    asyncio.run(queries())
    assert model.most_running == 1
    context_map = maps.store.get(("", "corpus")).context_map
    assert [item.text for item in context_map.items] == ["learned 1", "learned 2", "learned 3", "learned 4"]


@pytest.mark.parametrize(
    ("error", "num_steps", "said"),
    [
        (Unavailable("the model is away"), 0, "the model is away"),
        (InvalidRequest("trajectory", "is too long."), 0, "trajectory: is too long."),
        (RuntimeError("surprise"), 1, "RuntimeError: surprise"),
    ],
)
def test_an_error_is_noted_and_hurts_nobody(error: Exception, num_steps: int, said: str) -> None:
    maps = make_maps(Scripted(error=error))
    asyncio.run(finish(maps, session_of(user("How many?"))))
    context_map = maps.store.get(("", "corpus")).context_map
    assert (context_map.items, context_map.num_steps) == ((), num_steps)
    assert context_map.history[-1].error == said


@pytest.mark.parametrize("answer", ["no", "```json\n" + "x" * 100_000, '{"reasoning": 1, "operations": []}'])
def test_an_answer_that_is_not_what_was_asked_changes_nothing_and_is_noted(answer: str) -> None:
    maps = make_maps(Scripted(cartographer=lambda _: answer))
    asyncio.run(finish(maps, session_of(user("How many?"))))
    context_map = maps.store.get(("", "corpus")).context_map
    assert context_map.items == ()
    assert context_map.num_steps == 1
    assert context_map.history[-1].error.startswith("cartographer: answered")


def test_a_bad_answer_of_the_distiller_costs_no_step() -> None:
    answers = iter(["no", "no", "no"])
    model = Scripted(distiller=lambda _: next(answers, None))
    maps = make_maps(model)

    async def queries() -> None:
        for number in range(8):
            await finish(maps, session_of(user(f"Question {number}?")), MapOptions("corpus", evolve_steps=4))

    asyncio.run(queries())
    context_map = maps.store.get(("", "corpus")).context_map
    assert (context_map.num_steps, context_map.frozen, len(context_map.items)) == (4, True, 4)
    assert [bool(change.error) for change in context_map.history] == [True] * 3 + [False] * 4


def test_a_request_may_wait_for_the_updates_of_its_map() -> None:
    gate = asyncio.Event()

    class Gated(Scripted):
        async def ask(self, question: MapQuestion, options: UpdateOptions) -> MapAnswer:
            await gate.wait()
            return await super().ask(question, options)

    maps = make_maps(Gated())
    key = ("", "corpus")

    async def run() -> None:
        await maps.updates.done(key)
        session = session_of(user("How many?"))
        turn = maps.begin(session, OPTIONS, session.state)
        session.state = append_answer(session.state, says("388"))
        maps.finished(turn, session)
        given_up = asyncio.create_task(maps.updates.done(key))
        asked = asyncio.create_task(maps.updates.done(key))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not asked.done()
        given_up.cancel()
        gate.set()
        await asked
        assert maps.store.get(key).context_map.num_steps == 1

    asyncio.run(run())


def test_a_map_tells_what_its_updates_read_and_wrote_also_those_that_failed() -> None:
    maps = make_maps(Scripted(distiller=lambda number: "no JSON" if number == 1 else None))

    def spent() -> tuple[int, int, int]:
        found = maps.store.get(("", "corpus")).context_map
        return found.num_steps, found.num_read_tokens, found.num_written_tokens

    asyncio.run(finish(maps, session_of(user("How many?"))))
    assert spent() == (1, 1 + 2, 10 * (1 + 2))
    asyncio.run(finish(maps, session_of(user("How many more?"))))
    assert spent() == (1, 1 + 2 + 3, 10 * (1 + 2 + 3))


def test_what_an_update_read_counts_also_where_nothing_came_of_it() -> None:
    """A redaction has it begin again, and the map is pinned before it does."""
    model = Scripted()
    maps, told = make_maps(model), session_of(user(SECRET), answer=says("Noted."))

    async def main() -> None:
        maps.finished(maps.begin(told, OPTIONS, told.state), told)
        await asyncio.sleep(0)
        assert len(model.asked) == 1
        maps.redact(told, redact_first(told))
        maps.settle("", "corpus", MapSettings(pinned=True))
        await maps.updates.done(("", "corpus"))

    asyncio.run(main())
    found = maps.store.get(("", "corpus")).context_map
    assert found.pinned
    assert (found.num_steps, found.num_read_tokens) == (0, sum(range(1, len(model.asked) + 1)))
    assert found.num_read_tokens > 0


def test_a_pinned_map_asks_no_model() -> None:
    model = Scripted()
    maps = make_maps(model)
    maps.settle("", "corpus", MapSettings(pinned=True))
    asyncio.run(finish(maps, session_of(user("How many?"))))
    assert model.asked == []


def test_an_answer_that_calls_tools_ends_no_query() -> None:
    model = Scripted()
    maps = make_maps(model)
    asyncio.run(finish(maps, session_of(user("How many?")), answer=CALL))
    assert model.asked == []


def test_the_trajectory_is_the_last_query_with_its_calls() -> None:
    model = Scripted()
    maps = make_maps(model)
    asyncio.run(finish(maps, session_of(user("Old?"), says("Yes."), user("How many?"), CALL, RESULT)))
    asked = model.asked[0].prompt
    assert "calls grep({})\n\n[tool]\n388 lines\n\n[assistant]\nIt is 388." in asked
    assert "Old?" not in asked


def test_a_long_trajectory_is_cut_to_the_window() -> None:
    model = Scripted()
    maps = make_maps(model, window=1_500)
    long = user("first " + "word " * 3_000 + "last")
    asyncio.run(finish(maps, session_of(long)))
    asked = model.asked[0].prompt
    assert len(Words().starts(asked)) <= 1_400
    assert "first" in asked
    assert "last" in asked
    assert "characters left out" in asked


def test_shutdown_ends_updates_and_notes_those_cut_off() -> None:
    class Hanging(Scripted):
        async def ask(self, question: MapQuestion, options: UpdateOptions) -> MapAnswer:
            await asyncio.Event().wait()
            raise AssertionError

    maps = make_maps(Hanging())

    async def run() -> None:
        for number in range(2):
            session = session_of(user("How many?"), session_id=f"s{number}")
            turn = maps.begin(session, OPTIONS, session.state)
            session.state = append_answer(session.state, says("388"))
            maps.finished(turn, session)
        await asyncio.sleep(0)
        assert maps.updates.num_pending(("", "corpus")) == 2
        await maps.close()

    asyncio.run(run())
    context_map = maps.store.get(("", "corpus")).context_map
    assert [(change.session_id, change.error) for change in context_map.history] == [
        ("s0", "The server stopped before the update was done."),
        ("s1", "The server stopped before the update was done."),
    ]
    assert context_map.num_steps == 0
    assert maps.updates.num_pending(("", "corpus")) == 0


SECRET = "the safe opens with cormorant 0451"


def redact_first(session: Session) -> SessionState:
    """Redact the first message of a session. Returns the state from before."""
    before = session.state
    cut = cut_messages(before, 0, 1, Words()).state
    session.state = redact(cut, cut.fragments[-1].fragment_id)
    return before


@pytest.mark.parametrize("number", [0, 1], ids=["under way", "waits"])
def test_a_redaction_reaches_queries_that_wait_and_no_distiller_reads_the_text(number: int) -> None:
    model = Scripted()
    maps = make_maps(model)
    told = session_of(user(SECRET), answer=says(f"Noted: {SECRET}."))
    branch = replace(told, session_id="branch", state=replace(told.state, parent=Parent("s", "", "", "", 1, 1)))
    stranger = session_of(user(SECRET), session_id="stranger", answer=says("I was told, too."))
    sessions = [told, branch, stranger] if number == 0 else [stranger, told, branch]

    async def main() -> None:
        for session in sessions:
            turn = maps.begin(session, MapOptions("corpus", update=UpdateOptions(ground_truth=SECRET)), session.state)
            maps.finished(turn, session)
        await asyncio.sleep(0)
        assert len(model.asked) == 1
        maps.redact(told, redact_first(told))
        while maps.updates.num_pending(("", "corpus")):
            await asyncio.sleep(0)

    asyncio.run(main())
    read = [SECRET in question.prompt for question in model.asked if question.name == "distiller"]
    assert read == ([True, False, False, True] if number == 0 else [True, False, False])
    history = maps.store.get(("", "corpus")).context_map.history
    assert [change.session_id for change in history] == [session.session_id for session in sessions]


@pytest.mark.parametrize("is_open", [False, True], ids=["ended", "open"])
def test_a_right_answer_that_is_told_after_a_redaction_is_told_without_it(is_open: bool) -> None:
    """Also where the next question ends the query. The control: a session that redacted nothing tells it all."""
    options = MapOptions("corpus", update=UpdateOptions(ground_truth=f"Say that {SECRET}."))

    async def learned(*, redacts: bool) -> str:
        model = Scripted()
        maps, session = make_maps(model), session_of(user(SECRET), says("Noted."), user("How many?"))
        if redacts:
            redact_first(session)
        await finish(maps, session, options, says("```repl\nprint(388)\n```") if is_open else None)
        if is_open:
            assert not model.asked
            session.state = adopt(session.state, [*(e.message for e in session.state.entries), user("And now?")]).state
            await finish(maps, session, options)
        return model.asked[0].prompt

    assert SECRET in asyncio.run(learned(redacts=False))
    told = asyncio.run(learned(redacts=True))
    assert "cormorant" not in told
    assert "Say that [redacted]." in told


def test_a_redaction_reaches_queries_that_waited_when_their_thread_was_given_another_id() -> None:
    model = Scripted()
    maps = make_maps(model)
    first, told = session_of(user("How many?"), answer=says("388")), session_of(user(SECRET), answer=says("Noted."))
    stranger = session_of(user(SECRET), session_id="other", answer=says("I was told, too."))

    async def main() -> None:
        for session in (first, told, stranger):
            maps.finished(maps.begin(session, OPTIONS, session.state), session)
        await asyncio.sleep(0)
        thread = Thread(told.session_id, "task-1", told.session_id)
        moved = replace(told, session_id=f"{told.session_id}~task-1", state=replace(told.state, thread=thread))
        maps.redact(moved, redact_first(moved))
        while maps.updates.num_pending(("", "corpus")):
            await asyncio.sleep(0)

    asyncio.run(main())
    read = [SECRET in question.prompt for question in model.asked if question.name == "distiller"]
    assert read == [False, False, True]


@pytest.mark.parametrize("placement", ["head", "tail"])
def test_a_redaction_reaches_the_copies_of_maps_in_the_sessions_prompts(placement: str) -> None:
    maps, options = make_maps(), MapOptions("corpus", placement=placement)
    maps.settle("", "corpus", MapSettings(text=f"{ROADMAP}a log of 388 lines\n{SECRET}\nof the harbour"))
    session = session_of(user(SECRET), user("How many?"))
    maps.begin(session, options, session.state)
    maps.redact(session, redact_first(session))
    session.state = append_answer(session.state, CALL)
    turn = maps.begin(session, options, session.state)
    assert turn is not None
    shown = [turn.text, *(copy.text for copy in turn.copies)]
    assert len(shown) == (1 if placement == "head" else 2)
    assert all("[redacted]" in text and "of the harbour" in text and "cormorant" not in text for text in shown)
    maps.forget(session.key)
    assert not maps.reads


def test_a_map_deleted_meanwhile_stays_deleted() -> None:
    maps = make_maps(Scripted())

    async def run() -> None:
        session = session_of(user("How many?"), answer=says("388"))
        maps.finished(maps.begin(session, OPTIONS, session.state), session)
        maps.store.delete(("", "corpus"))
        for _ in range(9):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert maps.store.find(("", "corpus")) is None


def test_settings_that_contradict_the_maps_are_refused() -> None:
    maps = make_maps()
    session = session_of(user("How many?"))
    maps.begin(session, MapOptions("corpus", 512, 2), session.state)
    maps.begin(session, MapOptions("corpus"), session.state)
    with pytest.raises(Conflict, match=r"acm\.map\.budget: is 1,024, but the map of 'corpus' has 512"):
        maps.begin(session, MapOptions("corpus", 1024), session.state)
    with pytest.raises(InvalidRequest, match=r"acm\.map\.budget: 9 tokens are less than the map's headers"):
        maps.begin(session, MapOptions("other", 9), session.state)


def test_head_where_no_slot_can_be_makes_no_map() -> None:
    maps, session = make_maps(), session_of(user("q"))
    head = MapOptions("corpus", placement="head")
    for slots in (None, MapSlots(NoFiller())):
        maps = Maps(maps.updates, slots)
        with pytest.raises(InvalidRequest, match="'head' is impossible"):
            maps.begin(session, head, session.state)
        assert len(maps.store) == 0
        assert not maps.reads
    maps.begin(session, OPTIONS, session.state)
    with pytest.raises(InvalidRequest, match="'head' is impossible"):
        maps.begin(session, head, session.state)
    assert maps.reads[session.key].placement == "tail"


def test_a_map_of_a_request_that_fails_is_taken_back_but_where_others_read_it() -> None:
    maps, mine, other = make_maps(), session_of(user("q")), session_of(user("q"), session_id="other")
    making = maps.expect("", OPTIONS)
    assert making is not None
    maps.begin(mine, OPTIONS, mine.state)
    maps.begin(other, OPTIONS, other.state)
    maps.leave(mine, making, answered=False)
    assert len(maps.store) == 1
    assert maps.expect("", OPTIONS) is None, "it is there"
    maps.begin(other, None, other.state)
    maps.store.delete(("", "corpus"))
    making = maps.expect("", OPTIONS)
    assert making is not None
    maps.begin(mine, OPTIONS, mine.state)
    maps.leave(mine, making, answered=False)
    assert len(maps.store) == 0
    assert not maps.reads


@pytest.mark.parametrize("meanwhile", ["answered", "set", "refused"])
def test_a_map_that_a_failed_request_made_stays_where_it_is_used(meanwhile: str) -> None:
    """Another request of the same session was answered with it, or somebody set it. Then its settings were gone."""
    maps, session = make_maps(), session_of(user("q"))
    options = MapOptions("corpus", 512)
    first = maps.expect("", options)
    maps.begin(session, options, session.state)
    second = maps.expect("", options)
    assert first is not None
    assert second is not None
    maps.begin(session, options, session.state)
    if meanwhile == "set":
        assert not maps.settle("", "corpus", MapSettings(budget=512))[1]
    maps.leave(session, second, answered=meanwhile == "answered")
    maps.leave(session, first, answered=False)
    held = maps.store.find(("", "corpus"))
    assert (held is None) == (meanwhile == "refused"), "the control: both fail"
    assert held is None or held.context_map.budget == 512
    third = maps.expect("", options)
    assert (third is None) == (held is not None)


def test_tail_a_copy_stays_and_an_update_is_appended() -> None:
    maps = make_maps()
    maps.settle("", "corpus", MapSettings(ROADMAP + "one"))
    turns: list[Message] = [user("Q1")]
    first = prompt(maps, session_of(*turns))
    turns += [says("A1"), user("Q2")]
    second = prompt(maps, session_of(*turns))
    assert second == [*first, "A1", "Q2"], "the map has not changed"
    maps.settle("", "corpus", MapSettings(ROADMAP + "[cr-00001] two"))
    turns += [says("A2"), user("Q3")]
    third = prompt(maps, session_of(*turns))
    assert third[:4] == [*second, "A2"][:4]
    assert "[cr-00001] two" in third[4]
    assert third[4].endswith("\n\nQ3")


def test_a_query_keeps_the_map_that_it_began_with() -> None:
    for placement in ("tail", "head"):
        maps, options = make_maps(), MapOptions("corpus", placement=placement)
        maps.settle("", "corpus", MapSettings(ROADMAP + "one"))
        begun = session_of(user("Q1"))
        before = maps.begin(begun, options, begun.state)
        maps.settle("", "corpus", MapSettings(ROADMAP + "[cr-00001] two"))
        goes_on = session_of(user("Q1"), CALL, RESULT)
        after = maps.begin(goes_on, options, goes_on.state)
        assert before is not None
        assert after is not None
        assert (after.text, after.copies) == (before.text, before.copies)
        assert "[cr-00001] one" in after.text
        next_one = session_of(user("Q1"), CALL, RESULT, says("A1"), user("Q2"))
        newest = maps.begin(next_one, options, next_one.state)
        assert newest is not None
        assert "[cr-00001] two" in newest.text


@pytest.mark.parametrize(("can_move", "placement"), [(True, "head"), (False, "tail")])
def test_the_placement_follows_the_fidelity_where_none_is_asked_for(can_move: bool, placement: str) -> None:
    session = session_of(user("Q1"))
    turn = make_maps().begin(session, OPTIONS, session.state, can_move=can_move)
    assert turn is not None
    assert turn.fields["map"]["placement"] == placement


@pytest.mark.parametrize("placement", ["head", "tail"])
def test_a_branch_begins_with_the_map_that_its_parent_reads(placement: str) -> None:
    maps, options = make_maps(), MapOptions("corpus", placement=placement)
    maps.settle("", "corpus", MapSettings(ROADMAP + "one"))
    parent = session_of(user("Q1"))
    before = maps.begin(parent, options, parent.state)
    maps.settle("", "corpus", MapSettings(ROADMAP + "[cr-00001] two"))
    branch = session_of(user("Q1"), says("A1"), user("Look there."), session_id="branch")
    branch.state = replace(branch.state, parent=Parent("s", "", "", "Look there.", 2, 2))
    begun = maps.begin(branch, options, branch.state)
    assert before is not None
    assert begun is not None
    assert (begun.text, begun.copies) == (before.text, before.copies)


def test_tail_a_map_that_says_nothing_yet_is_not_shown() -> None:
    assert prompt(make_maps(), session_of(user("Q1"))) == ["Q1"]


def test_head_stands_behind_the_clients_instructions_or_in_a_system_message() -> None:
    maps, options = make_maps(), MapOptions("corpus", placement="head")
    system, question = prompt(maps, session_of({"role": "system", "content": "You help."}, user("Q1")), options)
    assert system.startswith("You help.\n\nContext map")
    assert question == "Q1"
    assert prompt(maps, session_of(user("Q1")), options)[0].startswith("Context map")


def test_parts_of_content_stay_parts() -> None:
    maps = make_maps()
    maps.settle("", "corpus", MapSettings(ROADMAP + "one"))
    parts = [{"type": "text", "text": "Q1"}]
    session = session_of({"role": "system", "content": parts}, {"role": "user", "content": parts})
    messages = [entry.message for entry in session.state.entries]
    for placement, changed in (("head", 0), ("tail", 1)):
        turn = maps.begin(session, MapOptions("corpus", placement=placement), session.state)
        assert turn is not None
        shown = placed(turn, messages, session.state, TAKES_ALL)
        assert [len(message["content"]) for message in shown] == [2 - changed, 1 + changed]
        assert shown[1 - changed] is messages[1 - changed]
        assert messages[changed]["content"] == parts


@given(st.lists(st.tuples(st.integers(1, 30), st.sampled_from(["", "a", "b", "c"]), st.booleans()), max_size=40))
def test_copies_are_bounded_ascend_and_end_with_the_newest(steps: list[tuple[int, str, bool]]) -> None:
    copies: tuple[MapCopy, ...] = ()
    for num_users, text, new_query in steps:
        before = copies
        copies = follow(copies, num_users, text, new_query=new_query)
        ordinals = [copy.ordinal for copy in copies]
        assert ordinals == sorted(set(ordinals))
        assert all(ordinal < num_users for ordinal in ordinals)
        assert len(copies) <= MAX_COPIES
        if text and new_query:
            assert copies[-1].text == text
        if len(copies) > 1:
            assert copies[:-1] == before[: len(copies) - 1], "old copies stay where they are"
