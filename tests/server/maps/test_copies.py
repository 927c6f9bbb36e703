"""Copies of a map in a prompt from which something was evicted, or whose messages were merged for the template."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, cast

import pytest

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import fold
from acmserve.context.eviction.compact import Summary
from acmserve.context.eviction.oldest_first.user_messages import UserMessages
from acmserve.context.maps.text import render_map
from acmserve.context.maps.update import MapSettings
from acmserve.context.session.history import adopt
from acmserve.context.session.render import questions, render, shown_questions
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session_store import SessionLimits, SessionStore
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import with_ranges
from acmserve.context.transcript.template_rules import STRICT, TAKES_ALL, TemplateRules
from acmserve.plan.request import SessionParams
from acmserve.server.budget.budgets import Budgets
from acmserve.server.budget.conversation_summary import LivePrompt
from acmserve.server.chat.options import ChatRequest, read_options
from acmserve.server.chat.turn import answer_chat
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.served_prompts import ServedContexts
from acmserve.server.maps.turn import MapCopy, MapTurn, placed
from acmserve.server.models.prompt_renderer import Placing
from acmserve.server.vllm.handlers import ChatCompletionRequest
from tests.context.eviction.test_context_meter import MEASURED, budget, new_meter, state_of, worked
from tests.support.routes.stand_in_model import RAW, Model, said
from tests.support.server.acm_app import FirstSentence, Words, WordVectors

LEAD = "Context map, in place of any earlier one"
LEAD_LINE = f"{LEAD}: what earlier questions taught about the external context."
ROADMAP = "## CONTEXT ROADMAP\n"
SYSTEM: Message = {"role": "system", "content": "You mend programs."}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def question(number: int) -> Message:
    return user(f"question {number}.")


def answer(number: int) -> Message:
    return says(f"answer {number}.")


def turn_of(*copies: MapCopy) -> MapTurn:
    return MapTurn(cast(Any, None), "", copies=copies)


def show(state: SessionState, rules: TemplateRules, *copies: MapCopy) -> list[Any]:
    return placed(turn_of(*copies), [], state, rules)


@dataclass
class Counting:
    """A `PromptRenderer` that counts words, and keeps what it has counted."""

    place: Placing
    counted: list[list[Message]] = field(default_factory=list)

    def written(self, messages: Sequence[Message]) -> str | None:
        return " ".join(str(message["content"]) for message in self.place(messages))

    def num_tokens(
        self,
        messages: Sequence[Message],
    ) -> int | None:
        self.counted.append(list(self.place(messages)))
        return sum(4 + len(str(message["content"]).split()) for message in self.counted[-1])


class Talk:
    """A client that asks, and resends everything."""

    def __init__(
        self,
        policy: str,
        rules: TemplateRules,
        most: int = 420,
        *,
        is_loop: bool = False,
        summarizer: FirstSentence | None = None,
    ) -> None:
        words = Words()
        self.server = ContextServer(
            SessionStore(SessionLimits()),
            words,
            summarizer or FirstSentence(),
            WordVectors(),
            ServedContexts(words),
            budgets=Budgets(words, rules=rules),
            renderers=self._renderer,
        )
        self.acm: dict[str, Any] = {
            "map": {"external_context_id": "corpus", "placement": "tail"},
            "budget": {"max_tokens": most, "low_watermark": most // 2, "policy": policy},
            "observations": "off",
        } | ({"tools": ["sculptor"]} if is_loop else {})
        self.messages: list[Message] = [SYSTEM]
        self.model = Model()
        self.counting: Counting | None = None

    def _renderer(self, body: Any, place: Placing) -> Counting:
        self.counting = Counting(place)
        return self.counting

    @property
    def state(self) -> SessionState:
        return self.server.store.get("", "s").state

    def learn(self, number: int) -> None:
        """The map says something new."""
        self.server.maps.settle("", "corpus", MapSettings(f"{ROADMAP}[cr-00001] news {number}."))

    def ask(self, number: int, num_asked: int, num_said: int) -> list[dict[str, Any]]:
        """The messages that the model reads with the next question."""
        self.messages.append(user(f"question {number}." + " please" * num_asked))
        body = {"model": "m", "messages": self.messages, "acm": self.acm}
        request = ChatCompletionRequest(**cast(Any, body))
        chat = read_options(self.server, ChatRequest(request, RAW, dict(body), SessionParams("s"), ""))
        told = f"answer {number}." + " word" * num_said
        self.model.lines.append(said(told))
        asyncio.run(self._answered(chat))
        self.messages.append(says(told))
        return [message for message in self.model.requests[-1].messages if "tool" not in message]

    async def _answered(self, chat: ChatRequest) -> None:
        response = await answer_chat(self.server, chat, self.model)
        assert response is not None
        assert response.status_code == 200


def read_in(message: Message) -> list[tuple[str, int]]:
    """What stands in a message of a user, in order: copies of the map by their news, and questions by their number."""
    found = re.findall(r"news (\d+)\.|question (\d+)\.", str(message["content"]))
    return [("map", int(news)) if news else ("question", int(asked)) for news, asked in found]


@pytest.mark.parametrize("is_loop", [False, True], ids=["plain", "loop"])
@pytest.mark.parametrize("rules", [TAKES_ALL, STRICT], ids=["takes all", "strict"])
@pytest.mark.parametrize(
    ("policy", "num_asked", "num_said"),
    [("chain", 60, 2), ("recency", 4, 60), ("chain", 40, 20)],
    ids=["users", "recency", "both"],
)
def test_each_copy_stands_in_front_of_its_question_and_the_newest_is_never_lost(
    policy: str, num_asked: int, num_said: int, rules: TemplateRules, is_loop: bool
) -> None:
    talk = Talk(policy, rules, 800 if policy == "recency" else 420, is_loop=is_loop)
    talk.learn(0)
    newest, last, was = 0, list[dict[str, Any]](), None
    num_moved = num_merged = num_kept = 0
    for number in range(14):
        if number in (1, 2, 5, 9):
            talk.learn(number)
            newest = number
        shown = talk.ask(number, num_asked, num_said)
        asked = [read_in(message) for message in shown if message["role"] == "user"]
        flat = [one for message in asked for one in message]
        assert [news for kind, news in flat if kind == "map"].count(newest) == 1
        for (kind, news), (next_kind, question) in pairwise(flat):
            if kind == "map":
                assert next_kind == "question", "a copy stands in front of a question"
                assert question == news or (news == newest and ("question", news) not in flat)
                num_moved += question != news
        assert flat[-1] == ("question", number)
        num_merged += any(sum(kind == "question" for kind, _ in message) > 1 for message in asked)
        if was == talk.state.omissions:
            num_kept += 1
            assert shown[: len(last)] == last, "a byte of what was served has changed"
        assert talk.counting is not None
        if talk.counting.counted:
            assert [m["content"] for m in talk.counting.counted[-1]] == [m["content"] for m in shown]
        last, was = shown, talk.state.omissions
    assert num_kept > 1
    assert (num_moved > 0) == (policy == "chain")
    assert (num_merged > 0) == (rules is STRICT and num_said >= 20)


@pytest.mark.parametrize("rules", [TAKES_ALL, STRICT], ids=["takes all", "strict"])
@pytest.mark.parametrize("policy", ["cwl", "pi-cwl", "recency", "clear_tool_uses", "users", "recency and users"])
def test_behind_every_policy_each_copy_stands_in_front_of_its_question(policy: str, rules: TemplateRules) -> None:
    state, meter = state_of(worked()), new_meter()
    meter.follow(state)
    asked = [str(state.entries[entry].message["content"]) for entry in questions(state)]
    copies = [MapCopy(number, f" news {number}.") for number in range(len(asked) - 1)]
    if policy != "users":
        wanted = budget(150, 100, policy=policy.removesuffix(" and users"))
        state = meter.carry_out(meter.plan(wanted, MEASURED), state)
    if "users" in policy:
        state = meter.carry_out(UserMessages().plan(meter.view, 0), state)
    shown = shown_questions(state)
    assert state.omissions
    assert (len(shown) < len(asked)) == ("users" in policy)
    written = [str(message["content"]) for message in show(state, rules, *copies)]
    for copy in copies[:-1]:
        number = copy.ordinal
        here = [text for text in written if f"{LEAD_LINE}\n\n news {number}.\n\n{asked[number]}" in text]
        assert len(here) == (number in shown)
    newest, last = copies[-1], max(shown)
    place = newest.ordinal if newest.ordinal in shown else last
    assert len([text for text in written if f"{LEAD_LINE}\n\n{newest.text}\n\n{asked[place]}" in text]) == 1
    assert str(written).count(LEAD) == len([copy for copy in copies[:-1] if copy.ordinal in shown]) + 1
    plain = [str(message["content"]) for message in render(state, rules)]
    assert [re.sub(r"Context map, in place.*?\.\n\n news \d+\.\n\n", "", text) for text in written] == plain


def test_a_newest_copy_whose_question_went_goes_to_the_last_question_and_stays_there() -> None:
    talk = Talk("chain", TAKES_ALL)
    talk.ask(0, 4, 2)
    talk.learn(1)
    places = list[int]()
    for number in range(1, 14):
        shown = talk.ask(number, 40, 2)
        [(_, (_, question))] = [
            both for message in shown for both in pairwise(read_in(message)) if both[0] == ("map", 1)
        ]
        places.append(question)
        assert question in (number, *places[-2:-1]), "it goes to the last question, or stays"
    assert places[0] == 1
    assert 1 < len(set(places)) < len(places) / 2, "it goes with an eviction of its question alone"


def test_without_an_eviction_prompts_are_what_they_were() -> None:
    talk = Talk("chain", STRICT)
    del talk.acm["budget"]
    talk.learn(0)
    first = render_map(talk.server.maps.store.get(("", "corpus")).context_map)
    for number in range(4):
        if number == 2:
            talk.learn(2)
        shown = talk.ask(number, 2, 2)
        second = render_map(talk.server.maps.store.get(("", "corpus")).context_map)
        wanted = [str(message["content"]) for message in talk.messages[:-1]]
        for at, text in ((1, first), (5, second)):
            if at < len(wanted):
                wanted[at] = f"{LEAD_LINE}\n\n{text}\n\n{wanted[at]}"
        assert [message["content"] for message in shown] == wanted


def test_a_fold_in_a_message_of_the_user_moves_no_copy() -> None:
    state = adopt(SessionState(), [user("question 0. " + "word " * 90), says("Yes."), user("question 1.")]).state
    cut = cut_messages(state, 0, 1, Words()).state
    folded = fold(cut, cut.fragments[-1].fragment_id, "sculptor", Words())
    shown = show(folded, STRICT, MapCopy(0, " news 0."), MapCopy(1, " news 1."))
    assert [str(message["content"]).startswith(LEAD) for message in shown] == [True, False, True]
    assert "news 0.\n\n[folded " in str(shown[0]["content"])


def test_a_question_that_is_merged_with_the_one_before_has_its_copy_in_front() -> None:
    """The older copy keeps its bytes: what is in front of the new question was served before."""
    messages = [SYSTEM, user("question 0."), says("answer 0."), user("question 1.")]
    state = adopt(SessionState(), messages).state
    before = show(replace(state, entries=state.entries[:3]), STRICT, MapCopy(0, " news 0."))
    merged = replace(state, omissions=with_ranges(state.omissions, [(2, 3)]))
    shown = show(merged, STRICT, MapCopy(0, " news 0."), MapCopy(1, " news 1."))
    assert [message["role"] for message in shown] == ["system", "user"]
    assert read_in(shown[1]) == [("map", 0), ("question", 0), ("map", 1), ("question", 1)]
    assert str(shown[1]["content"]).startswith(f"{before[1]['content']}\n\n{LEAD}")
    parts = [{"type": "text", "text": "question 1."}]
    listed = adopt(SessionState(), [*messages[:3], {"role": "user", "content": parts}]).state
    shown = show(replace(listed, omissions=merged.omissions), STRICT, MapCopy(1, " news 1."))
    assert [read_in({"content": part["text"]}) for part in shown[1]["content"]] == [
        [("question", 0)],
        [("map", 1)],
        [("question", 1)],
    ]


class Behind(FirstSentence):
    """Is asked behind the conversation, and keeps the messages of that."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[Message]] = []

    def live_refusal(self, model: str) -> str:
        return ""

    async def summarize_live(self, live: LivePrompt, shown: Sequence[Message], instructions: str = "") -> Summary:
        self.asked.append(live.body(shown)["messages"])
        return Summary("So it went.", 50, 4)


def test_a_summary_is_asked_for_behind_the_very_messages_that_were_served() -> None:
    behind = Behind()
    talk = Talk("compact", TAKES_ALL, 1200, summarizer=behind)
    last, num_asked, num_copies = list[Message](), 0, 0
    for number in range(16):
        if number in (0, 3, 7, 11):
            talk.learn(number)
        shown = talk.ask(number, 40, 30)
        for messages in behind.asked[num_asked:]:
            assert messages == last[: len(messages)]
            num_copies += str(messages).count(LEAD)
        num_asked, last = len(behind.asked), [*shown, talk.messages[-1]]
    assert num_asked > 0
    assert num_copies > 0
