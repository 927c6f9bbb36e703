"""A conversation that goes on from a summary alone stays in its session, where nobody can be wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from acmserve.errors import IntegrityError
from acmserve.server.identity import summaries
from acmserve.server.identity.families import Families, Placement
from acmserve.server.identity.placement import FoundSession
from acmserve.server.identity.prompt import PromptUnits, read_prompt
from acmserve.server.identity.summaries import Summaries
from acmserve.server.identity.thread_hints import ThreadHints
from tests.support.server.clients import AGENT_SYSTEM, SUMMARY_SYSTEM, ChatClient, work
from tests.support.tenants.random_runs import COMMON, GO_ON, NOTED, STANDING, THANKS, compacted, first_part

SUMMARY = f"{COMMON}Left is ledger 7."


class Server:
    """Requests without an id, each placed where it belongs."""

    def __init__(self) -> None:
        self.families = Families()
        self.num_sessions = 0

    def find(self, client: ChatClient, tenant: str = "") -> FoundSession | None:
        return self.families.find(tenant, prompt_of(client))

    def place(self, client: ChatClient, tenant: str = "") -> Placement:
        found = self.find(client, tenant)
        self.num_sessions += 1
        family = f"acm-{self.num_sessions}" if found is None else found.family
        made = self.families.place(tenant, family, prompt_of(client), ThreadHints(), is_explicit=False)
        self.families.check_integrity()
        return made

    def ask(self, client: ChatClient, answer: str = "", tenant: str = "") -> str:
        made = self.place(client, tenant)
        if answer:
            self.families.answered(tenant, made, {"role": "assistant", "content": answer})
        return made.thread.session_id


def prompt_of(client: ChatClient) -> PromptUnits:
    prompt = read_prompt(client.body)
    assert prompt is not None
    return prompt


def worked(topic: str = "harbour") -> ChatClient:
    return work(ChatClient().user(STANDING).answer(THANKS).user(f"Find every entry about the {topic}."), topic, 8)


@pytest.fixture
def server() -> Server:
    return Server()


def summed(server: Server, client: ChatClient | None = None, summary: str = SUMMARY, tenant: str = "") -> str:
    """A conversation that was asked and summed up. Its session."""
    client = client or worked()
    session = server.ask(client, tenant=tenant)
    side = server.ask(first_part(client), summary, tenant)
    assert side.startswith(f"{session}~")
    return session


def as_user(summary: str) -> ChatClient:
    return compacted(summary)


def as_parts(summary: str) -> ChatClient:
    client = compacted("")
    client.messages[2]["content"] = [{"type": "text", "text": f" {summary}\n"}, {"type": "text", "text": "It is nine."}]
    return client


def as_answer(summary: str) -> ChatClient:
    return ChatClient().user("What did we do so far?").answer(summary).user(GO_ON)


def with_calls(summary: str) -> ChatClient:
    client = ChatClient().user(summary)
    return work(client, "harbour", 1, 40)


@pytest.mark.parametrize("shape", [as_user, as_parts, as_answer, with_calls], ids=lambda shape: shape.__name__)
def test_a_conversation_goes_on_from_its_summary(server: Server, shape: Callable[[str], ChatClient]) -> None:
    others = {topic: server.ask(worked(topic)) for topic in ("mill", "quarry")}
    session = summed(server)
    client = shape(SUMMARY)
    assert server.find(client) == FoundSession(session, by_summary=True)
    made = server.place(client)
    assert (made.thread.session_id, made.is_main, made.forked_from) == (session, True, None)
    assert server.find(work(client, "harbour", 1, 50)) == FoundSession(session), "it goes on word for word now"
    assert {topic: server.ask(work(worked(topic), topic, 1, 60)) for topic in others} == others


def test_a_session_is_summed_up_again_and_again(server: Server) -> None:
    client, sessions = worked(), set()
    for number in range(5):
        sessions.add(server.ask(work(client, "harbour", 2, 10 * number)))
        summary = f"{COMMON}Left is ledger {number}."
        assert server.ask(first_part(client), summary) not in sessions
        client = compacted(summary)
        assert server.find(client) == FoundSession(*sessions, by_summary=True)
    assert len(sessions) == 1


def test_a_summary_of_the_first_part_names_its_session(server: Server) -> None:
    client = worked()
    session = server.ask(client)
    server.ask(first_part(client, 13), SUMMARY)
    assert server.find(compacted(SUMMARY)) == FoundSession(session, by_summary=True)


def test_a_summary_that_is_asked_for_twice_names_its_session(server: Server) -> None:
    """The first answer was lost on its way to the client."""
    client = worked()
    session = server.ask(client)
    for _ in range(2):
        server.ask(first_part(client), SUMMARY)
    assert server.find(compacted(SUMMARY)) == FoundSession(session, by_summary=True)


def test_a_request_that_fails_can_be_sent_again(server: Server) -> None:
    session = summed(server)
    made = server.place(compacted(SUMMARY))
    server.families.withdraw("", made)
    assert server.find(compacted(SUMMARY)) == FoundSession(session, by_summary=True)
    assert server.ask(compacted(SUMMARY)) == session


def test_a_failed_summary_names_nobody(server: Server) -> None:
    client = worked()
    summed(server, client)
    client.user("Go on.")
    server.ask(client)
    server.families.withdraw("", server.place(first_part(client)))
    assert server.find(compacted(SUMMARY)) is None, "what it said before is of another state of the conversation"


@pytest.mark.parametrize("summary", ["OK", "Done.", "All is done, and nothing is left.", COMMON[:127].strip()])
def test_a_short_answer_names_nobody(server: Server, summary: str) -> None:
    summed(server, summary=summary)
    assert server.find(compacted(summary)) is None


def nothing_behind(client: ChatClient) -> None:
    """A person pastes it into a new conversation."""
    del client.messages[3:]


def more_of_a_person_behind(client: ChatClient) -> None:
    client.messages[3]["role"] = "user"


def in_a_longer_text(client: ChatClient) -> None:
    client.messages[2]["content"] = f"Somebody has told me: {SUMMARY}"


def a_part_of_it(client: ChatClient) -> None:
    client.messages[2]["content"] = SUMMARY[:-4]


def other_tools(client: ChatClient) -> None:
    client.tools = ("read",)


def no_tools(client: ChatClient) -> None:
    client.tools = ()


def other_system(client: ChatClient) -> None:
    client.system = AGENT_SYSTEM


@pytest.mark.parametrize(
    "change",
    [nothing_behind, more_of_a_person_behind, in_a_longer_text, a_part_of_it, other_tools, no_tools, other_system],
    ids=lambda change: change.__name__,
)
def test_who_does_not_clearly_go_on_from_it_is_a_new_session(
    server: Server, change: Callable[[ChatClient], None]
) -> None:
    summed(server)
    client = compacted(SUMMARY)
    change(client)
    assert server.find(client) is None


@pytest.mark.parametrize("where", ["a new conversation", "one that goes on"])
def test_a_summary_that_somebody_pasted_names_nobody(server: Server, where: str) -> None:
    session = summed(server)
    other = ChatClient().user(STANDING).answer(THANKS).user(SUMMARY)
    if where == "one that goes on":
        other = worked("mill")
        server.ask(other)
        other.user(SUMMARY)
    pasted = server.ask(other, "I see.")
    assert pasted != session
    assert server.ask(other.answer("I see.").user("Go on.")) == pasted
    rewound = copy.deepcopy(other)
    rewound.messages[-1]["content"] = "Go on with something else."
    assert server.find(rewound) is None, "a fork from the middle is a new session"
    assert server.find(compacted(SUMMARY)) is None, "and its own client gets a new one"


def test_control_a_summary_that_is_not_passed_over_takes_a_rewound_conversation(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Summaries, "pass_over", lambda *_: None)
    session = summed(server)
    other = ChatClient().user(STANDING).answer(THANKS).user(SUMMARY)
    server.ask(other, "I see.")
    server.ask(other.answer("I see.").user("Go on."))
    other.messages[-1]["content"] = "Go on with something else."
    assert server.find(other) == FoundSession(session, by_summary=True)


def test_a_conversation_that_went_on_left_its_summary_aside(server: Server) -> None:
    client = worked()
    session = summed(server, client)
    assert server.ask(client.answer("Noted.").user("Go on.")) == session
    assert server.find(compacted(SUMMARY)) is None


def test_a_summary_names_its_session_once(server: Server) -> None:
    session = summed(server)
    assert server.ask(compacted(SUMMARY), "I go on.") == session
    assert server.find(compacted(SUMMARY, "Begin with the mill.")) is None, "a second client goes on from it"


def go_on_alone(words: str = GO_ON) -> ChatClient:
    """The summary is all that a client has kept, so that the request is an opening like any other."""
    return ChatClient().user(SUMMARY).answer(NOTED).user(words)


def test_a_request_that_comes_again_before_its_answer_stays_in_the_session(server: Server) -> None:
    """The client has lost its patience. The first request still runs."""
    session = summed(server)
    first = server.place(go_on_alone())
    assert first.thread.session_id == session
    assert server.find(go_on_alone("Begin with the mill.")) is None, "a second client goes on from it"
    again = server.place(go_on_alone())
    assert (again.thread.session_id, again.is_main, again.forked_from) == (session, True, None)
    server.families.withdraw("", first)
    server.families.answered("", again, {"role": "assistant", "content": "I go on."})
    assert server.find(go_on_alone()) is None, "the control: once it is answered, it is another run"
    assert server.find(go_on_alone().answer("I go on.").user("And then?")) == FoundSession(session)


def test_control_without_that_rule_a_request_that_comes_again_is_a_new_session(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "_comes_again", lambda *_: False)
    session = summed(server)
    assert server.ask(go_on_alone()) == session
    assert server.find(go_on_alone()) is None


@pytest.mark.parametrize("is_fork", [False, True], ids=["of a conversation", "of a fork"])
def test_an_answer_that_two_sessions_gave_names_none(server: Server, is_fork: bool) -> None:
    summed(server)
    other = worked("mill")
    server.ask(other, "" if is_fork else SUMMARY)
    if is_fork:
        server.ask(first_part(other), SUMMARY)
        server.ask(first_part(other), f"{SUMMARY} And ledger 8.")
    assert server.find(compacted(SUMMARY)) is None, "not even when one of them has said something else since"


@pytest.mark.parametrize("shape", [as_user, as_answer], ids=lambda shape: shape.__name__)
def test_a_text_that_a_session_gave_long_ago_names_no_other(server: Server, shape: Callable[[str], ChatClient]) -> None:
    """Its fork has said something else since. Then a fork of another session says the same, word for word."""
    client = worked("mill")
    summed(server, client)
    server.ask(first_part(client), f"{SUMMARY} And ledger 8.")
    summed(server)
    assert server.find(shape(SUMMARY)) is None


def test_control_a_text_that_is_remembered_no_more_names_the_last_session(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "MAX_GIVEN", 0)
    client = worked("mill")
    summed(server, client)
    server.ask(first_part(client), f"{SUMMARY} And ledger 8.")
    session = summed(server)
    assert server.find(compacted(SUMMARY)) == FoundSession(session, by_summary=True)


def test_a_summary_that_somebody_pasted_names_nobody_when_it_is_given_again(server: Server) -> None:
    client = worked()
    summed(server, client)
    server.ask(ChatClient().user(STANDING).answer(THANKS).user(SUMMARY), "I see.")
    server.ask(first_part(client), SUMMARY)
    assert server.find(compacted(SUMMARY)) is None


def test_a_session_that_is_rewound_behind_its_summary_takes_no_other_with_the_same_one(server: Server) -> None:
    """Both have gone on from it: the first from its own, and another one gave the same since."""
    first = summed(server)
    client = compacted(SUMMARY)
    assert server.ask(client, "I go on.") == first
    assert server.ask(client.answer("I go on.").user("And then?"), "I am done.") == first
    second = summed(server, worked("mill"))
    assert second != first
    rewound = compacted(SUMMARY, "Begin with the mill.")
    assert server.find(rewound) is None
    assert server.ask(client.answer("I am done.").user("At last?")) == first


def test_a_sub_agent_that_is_told_the_summary_has_a_session_of_its_own(server: Server) -> None:
    session = summed(server)
    sub = ChatClient(AGENT_SYSTEM, ("read",)).user(SUMMARY).answer(NOTED).user("Search the mill.")
    taken = server.ask(sub, "Nothing.")
    assert taken != session
    assert server.ask(sub.answer("Nothing.").user("Search again.")) == taken
    assert server.ask(work(worked(), "harbour", 1, 40)) == session, "and its parent goes on"


def test_control_an_answer_that_is_not_compared_names_the_last_session(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Summaries, "compare", lambda *_: None)
    session = summed(server)
    server.ask(worked("mill"), SUMMARY)
    assert server.find(compacted(SUMMARY)) == FoundSession(session, by_summary=True)


def test_two_summaries_in_one_request_name_none(server: Server) -> None:
    summed(server)
    summed(server, worked("mill"), f"{SUMMARY} Of the mill.")
    client = compacted(SUMMARY)
    client.messages.insert(3, {"role": "user", "content": f"{SUMMARY} Of the mill."})
    assert server.find(client) is None


def test_another_tenants_summary_names_nobody(server: Server) -> None:
    session = summed(server, tenant="key-1")
    assert server.find(compacted(SUMMARY), "key-1") == FoundSession(session, by_summary=True)
    for tenant in ("key-2", "key-1/salt", ""):
        assert server.find(compacted(SUMMARY), tenant) is None
        assert server.ask(compacted(SUMMARY), tenant=tenant) != session
    assert server.find(compacted(SUMMARY), "key-1") == FoundSession(session, by_summary=True), (
        "what others paste is nothing"
    )


def test_a_history_that_goes_on_word_for_word_says_more_than_a_summary(server: Server) -> None:
    """A person has written something, and then a fork of another session says the same."""
    other = worked("mill").answer("Noted.").user(SUMMARY)
    mine = server.ask(other)
    summed(server)
    assert server.find(other.answer(NOTED).user(GO_ON)) == FoundSession(mine)


def test_what_no_fork_said_names_nobody(server: Server) -> None:
    """A title, or a question beside the conversation, is no summary of it. Nor is an answer of the conversation."""
    session = server.ask(worked(), SUMMARY)
    side = ChatClient(SUMMARY_SYSTEM, ()).user("Describe an archive.")
    prompt = prompt_of(side)
    made = server.families.place("", session, prompt, ThreadHints(), is_explicit=False)
    server.families.answered("", made, {"role": "assistant", "content": f"{SUMMARY} Quite."})
    assert not made.is_main
    assert server.find(compacted(SUMMARY)) is None
    assert server.find(compacted(f"{SUMMARY} Quite.")) is None


def test_an_answer_with_a_call_is_no_summary(server: Server) -> None:
    client = worked()
    server.ask(client)
    made = server.place(first_part(client))
    call = {"id": "c", "function": {"name": "read", "arguments": "{}"}}
    server.families.answered("", made, {"role": "assistant", "content": SUMMARY, "tool_calls": [call]})
    assert server.find(compacted(SUMMARY)) is None


def test_a_session_that_goes_is_named_no_more(server: Server) -> None:
    session = summed(server)
    server.families.drop(("", session))
    assert server.find(compacted(SUMMARY)) is None
    for thread in list(server.families._tenants[""].sessions):
        server.families.drop(("", thread))
    server.families.check_integrity()
    assert len(server.families) == 0


def test_what_is_listed_and_not_known_is_found(server: Server) -> None:
    summed(server)
    server.families._tenants[""].summaries.add("acm-0", server.families._tenants[""].sessions["acm-1"].conversation)
    server.families.check_integrity()
    of_fork = next(thread for thread in server.families._tenants[""].sessions.values() if thread.is_fork)
    server.families._tenants[""].summaries.add("acm-0", of_fork.conversation)
    with pytest.raises(IntegrityError, match="summaries: 0 names missing, 2 too many"):
        server.families.check_integrity()


def test_a_main_thread_that_has_summed_itself_up_is_found(server: Server) -> None:
    session = summed(server)
    thread = server.families._tenants[""].sessions[session]
    thread.summed = thread.conversation
    with pytest.raises(IntegrityError, match="summaries: 1 are no forks"):
        server.families.check_integrity()


def test_texts_that_were_given_are_bounded(server: Server) -> None:
    client = worked()
    for number in range(summaries.MAX_GIVEN + 9):
        server.ask(client, f"{COMMON}Left is ledger {number}.")
        client.answer(f"{COMMON}Left is ledger {number}.").user("Go on.")
    given = server.families._tenants[""].summaries
    assert len(given._givers) == summaries.MAX_GIVEN
    given._givers |= dict.fromkeys(range(9), "")
    with pytest.raises(IntegrityError, match=f"265 texts of {summaries.MAX_GIVEN}"):
        server.families.check_integrity()
