"""Sessions found by content: the right one, never another tenant's, at a bounded cost."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable
from typing import Any

import pytest

from acmserve.errors import IntegrityError
from acmserve.server.identity import content, fingerprint, summaries
from acmserve.server.identity.content import MAX_COMPARED, ContentIndex
from acmserve.server.identity.families import Families
from acmserve.server.identity.prompt import PromptUnits, read_prompt
from acmserve.server.identity.thread_hints import ThreadHints
from tests.support.server.clients import SUMMARY_SYSTEM, SYSTEM, ChatClient, work
from tests.support.tenants.random_runs import (
    STANDING,
    THANKS,
    RandomRuns,
    change_system,
    first_part,
    insert_message,
    respell,
    standing,
)


class Server:
    """Requests without an id: each is placed where its content belongs."""

    def __init__(self) -> None:
        self.families = Families()

    def ask(self, client: ChatClient, tenant: str = "") -> str:
        prompt = prompt_of(client)
        family = self.find(client, tenant) or f"acm-{secrets.token_hex(8)}"
        placement = self.families.place(tenant, family, prompt, ThreadHints(), is_explicit=False)
        self.placement = placement
        return placement.thread.session_id

    def find(self, client: ChatClient, tenant: str = "") -> str | None:
        found = self.families.find(tenant, prompt_of(client))
        return None if found is None else found.family

    def answer(self, client: ChatClient, text: str, tenant: str = "") -> None:
        client.answer(text)
        self.families.answered(tenant, self.placement, client.messages[-1])


def prompt_of(client: ChatClient) -> PromptUnits:
    prompt = read_prompt(client.body)
    assert prompt is not None
    return prompt


def begun(topic: str = "harbour") -> ChatClient:
    return ChatClient().user(f"Find every entry about the {topic}, and list them by year.")


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_conversation_is_found_at_every_turn(server: Server) -> None:
    client = begun()
    first = server.ask(client)
    for n in range(5):
        assert server.ask(work(client, "harbour", 2, 2 * n)) == first
    assert server.ask(client) == first, "the same request again"


def test_system_text_and_tools_are_not_enough(server: Server) -> None:
    assert len({server.ask(begun(topic)) for topic in ("harbour", "mill", "quarry")}) == 3


def test_a_first_message_alone_is_not_enough(server: Server) -> None:
    assert server.ask(begun()) != server.ask(begun())


def drop_system(client: ChatClient) -> None:
    client.system = ""


def rewrite_first(client: ChatClient) -> None:
    client.messages[0] = {"role": "user", "content": "Memory, rewritten: the harbour closes at nine."}


def clear_results(client: ChatClient) -> None:
    for message in client.messages[:5]:
        if message["role"] == "tool":
            message["content"] = "[cleared]"


def drop_middle(client: ChatClient) -> None:
    del client.messages[3:7]


@pytest.mark.parametrize(
    "change",
    [change_system, drop_system, insert_message, rewrite_first, clear_results, respell, drop_middle],
    ids=lambda change: change.__name__,
)
def test_a_changed_history_is_found(server: Server, change: Callable[[ChatClient], None]) -> None:
    others = [work(begun(topic), topic, 8) for topic in ("mill", "quarry")]
    client = work(begun(), "harbour", 8)
    session = server.ask(client)
    taken = {server.ask(other) for other in others}
    change(client)
    assert server.ask(work(client, "harbour", 1, 20)) == session
    assert {server.ask(other) for other in others} == taken


def test_a_block_of_files_behind_the_history_moves_on_every_turn(server: Server) -> None:
    """As aider does: each turn inserts messages in front of it, and takes a reminder off the last one."""
    reminder, files = (
        "\n\nAnswer with edits only.",
        "The files:\n" + "\n".join(f"line {n} of the ledger" for n in range(60)),
    )
    history: list[dict[str, Any]] = []
    sessions = []
    for turn in range(4):
        ask = f"Change the heading of page {turn} to the harbour's name."
        block = [{"role": "user", "content": files}, {"role": "assistant", "content": "Ok."}]
        client = ChatClient(tools=(), messages=[*history, *block, {"role": "user", "content": ask + reminder}])
        sessions.append(server.ask(client))
        history += [{"role": "user", "content": ask}, {"role": "assistant", "content": f"Heading {turn} changed."}]
    assert len(set(sessions)) == 1


def test_a_changed_history_is_found_among_many_that_have_common_words_of_it(server: Server) -> None:
    """Others end with what people say everywhere, and with what runs of this task begin with."""
    for number in range(70):
        server.ask(
            begun().answer(f"I look at mill {number}.").user("Go on.").answer(f"Mill {number}.").user("Go on, do.")
        )
    for number in range(20):
        server.ask(standing().user("List every ferry."))
        server.families.answered("", server.placement, {"role": "assistant", "content": f"I look at quay {number}."})
    client = (
        standing().user("List every ferry.").answer("The first.").user("Go on.").answer("Another.").user("Go on, do.")
    )
    session = server.ask(client)
    server.answer(client, "The last.")
    insert_message(client)
    assert server.ask(client.user("And then?")) == session


def test_a_fork_from_the_middle_is_a_new_session(server: Server) -> None:
    client = work(begun(), "harbour", 6)
    session = server.ask(client)
    fork = copy.deepcopy(client)
    del fork.messages[-5:]
    other = server.ask(fork.user("Now look at the mill instead."))
    assert other != session
    assert server.ask(work(client, "harbour", 1, 9)) == session
    assert server.ask(work(fork, "mill", 1)) == other


def test_a_fork_from_the_middle_is_a_new_session_where_a_persons_words_repeat(server: Server) -> None:
    """The end of the conversation stands in the fork, but at another place."""
    client = ChatClient().user(STANDING)
    for number in range(5):
        session = server.ask(client)
        server.answer(client, f"I look at quay {number}.")
        client.user("Go on.")
    fork = copy.deepcopy(client)
    del fork.messages[-4:]
    fork.user("Look at the mill instead.")
    assert server.find(fork) is None
    assert server.ask(client) == session


def test_equal_beginnings_are_told_apart_by_their_answers(server: Server) -> None:
    """Several runs of one task, at the same time."""
    runs = [begun() for _ in range(6)]
    sessions = []
    for n, run in enumerate(runs):
        sessions.append(server.ask(run))
        server.answer(run, f"I begin with shelf {n}.")
    assert len(set(sessions)) == 6
    for run, session in zip(reversed(runs), reversed(sessions), strict=True):
        assert server.ask(run.user("Go on.")) == session


def test_a_run_that_repeats_another_one_word_for_word_is_its_own(server: Server) -> None:
    """A task that is run again at temperature 0. Its last request is the one that the first run ended with."""
    sessions: list[str] = []
    for _ in range(2):
        run, found = begun(), set()
        for step in range(4):
            found.add(server.ask(run))
            server.answer(run, f"I look at shelf {step}.")
            run.user(f"Shelf {step} holds the harbour's ledgers.")
        assert len(found) == 1
        sessions += found
    assert len(set(sessions)) == 2


def test_runs_are_told_apart_that_a_client_opens_with_the_same_words_of_the_model(server: Server) -> None:
    """One task is given many times. The first request of each run is the same to the byte."""
    runs = [ChatClient().user(STANDING).answer(THANKS).user("List every ferry.") for _ in range(4)]
    sessions = []
    for number, run in enumerate(runs):
        sessions.append(server.ask(run))
        server.answer(run, f"I begin with quay {number}.")
    assert len(set(sessions)) == len(runs)
    assert [server.ask(run.user("Go on.")) for run in runs] == sessions
    assert server.ask(runs[0]) == sessions[0], "the same request again"


def test_runs_are_told_apart_that_begin_while_the_first_waits_for_its_answer(server: Server) -> None:
    runs = [standing().user("List every ferry.") for _ in range(4)]
    places = []
    for run in runs:
        server.ask(run)
        places.append(server.placement)
    sessions = [placement.thread.session_id for placement in places]
    assert len(set(sessions)) == len(runs)
    for number, (run, placement) in enumerate(zip(runs, places, strict=True)):
        server.families.answered("", placement, run.answer(f"I begin with quay {number}.").messages[-1])
    assert [server.ask(run.user("Go on.")) for run in runs] == sessions
    assert [server.ask(run) for run in runs] == sessions, "the same requests again, which wait for an answer"


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_request_in_which_the_model_says_nothing_is_a_new_session(server: Server, is_answered: bool) -> None:
    client = begun()
    server.ask(client)
    if is_answered:
        server.families.answered("", server.placement, {"role": "assistant", "content": "I look at quay 1."})
    assert server.find(client) is None
    assert server.find(client.user("And every ferry.")) is None


def lookalike(day: int, *said: str) -> ChatClient:
    """A run of one task, in a context of its own date."""
    client = standing(day).user("List every ferry, and name those that the river has taken.")
    for text in said:
        client.answer(text).user("Go on.")
    return client


def test_a_lookalike_that_shares_no_exchange_of_the_session_is_a_new_session(server: Server) -> None:
    """It was begun elsewhere, on another day, and has the question of a session that was asked once."""
    client = lookalike(2)
    session = server.ask(client)
    server.answer(client, "I begin with quay 7.")
    assert server.find(lookalike(1, "I begin with quay 1.")) is None
    assert server.find(lookalike(1, "I begin with quay 1.", "I look at quay 2.")) is None
    assert server.ask(client.user("Go on.")) == session


def resumed_twice(server: Server) -> tuple[str, str, ChatClient]:
    """Two runs that resume one conversation, the sessions of both, and the client of the second, which went on."""
    runs = [lookalike(3, "I have read volume 1.") for _ in range(2)]
    sessions = []
    for number, run in enumerate(runs):
        sessions.append(server.ask(run))
        server.answer(run, f"I begin with quay {number}.")
    insert_message(runs[1])
    assert server.ask(runs[1].user("And then?")) == sessions[1] != sessions[0]
    return sessions[0], sessions[1], runs[1]


def test_a_run_that_has_another_ones_answer_is_not_the_first(server: Server) -> None:
    """A fork from the middle of the second run. What it shares with the first one was said elsewhere."""
    first, second, client = resumed_twice(server)
    fork = copy.deepcopy(client)
    fork.messages[-1]["content"] = "Look at the mill instead."
    assert server.find(fork) is None
    assert server.ask(client) == second
    assert server.ask(lookalike(3, "I have read volume 1.", "I begin with quay 0.")) == first


def rewound_while_the_first_waits(server: Server) -> tuple[str, ChatClient]:
    """The session of a run that waits for its first answer, and a fork of one that begins alike and was answered."""
    first = server.ask(standing().user("List every ferry."))
    client = standing().user("List every ferry.")
    assert server.ask(client) != first
    server.answer(client, "I begin with quay 1.")
    server.ask(client.user("Go on."))
    client.messages[-1]["content"] = "Look at the mill instead."
    return first, client


def test_a_run_that_is_rewound_does_not_take_one_that_waits_for_its_answer(server: Server) -> None:
    assert server.find(rewound_while_the_first_waits(server)[1]) is None


def test_control_whoever_asks_about_no_answers_takes_the_first(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries.Summaries, "has_anothers", lambda *_: False)
    first, client = rewound_while_the_first_waits(server)
    assert server.find(client) == first
    first, _, client = resumed_twice(server)
    client.messages[-1]["content"] = "Look at the mill instead."
    assert server.find(client) == first


def test_a_first_part_of_one_run_is_not_the_other_ones_end(server: Server) -> None:
    """Nothing that this server said stands in it, and the second run alone begins so."""
    _, second, client = resumed_twice(server)
    server.answer(client, "It is done.")
    assert server.find(first_part(client, 6)) is None
    assert server.find(first_part(client, 8)) == second
    del client.messages[1]
    assert server.find(first_part(client, 5)) is None, "it begins as the first run does now"


def test_control_without_that_rule_it_takes_the_session(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_shares_an_exchange", lambda *_: True)
    client = lookalike(2)
    session = server.ask(client)
    server.answer(client, "I begin with quay 7.")
    assert server.find(lookalike(1, "I begin with quay 1.")) == session


def test_a_client_that_writes_answers_in_its_own_words_stays_in_its_session(server: Server) -> None:
    """What it says of the first answer proves nothing. From then on its history does."""
    client, sessions = begun(), []
    for number in range(5):
        sessions.append(server.ask(client))
        server.families.answered("", server.placement, {"role": "assistant", "content": f"I look at quay {number}."})
        client.answer(f"The agent has looked at quay {number}, as it said.").user("Go on.")
    assert len(set(sessions[1:])) == 1


def test_a_call_is_the_same_as_an_object_and_as_text(server: Server) -> None:
    """The answer has JSON with spaces, a client of /v1/messages sends an object back."""
    client = begun()
    first = server.ask(client)
    function = {"name": "read", "arguments": '{"shelf": 7, "row": "a b"}'}
    client.messages.append({"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]})
    server.families.answered("", server.placement, client.messages[-1])
    client.messages[-1] = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c", "name": "read", "input": {"row": "a b", "shelf": 7}}],
    }
    result = {"type": "tool_result", "tool_use_id": "c", "content": "Nine ledgers."}
    client.messages.append({"role": "user", "content": [result]})
    assert server.ask(client) == first


def test_a_compaction_without_an_id_is_a_fork_of_its_conversation(server: Server) -> None:
    client = work(begun(), "harbour", 4)
    session = server.ask(client)
    summary = client.side(SUMMARY_SYSTEM, *client.messages, {"role": "user", "content": "Condense the above."})
    side = server.ask(summary)
    assert side != session
    assert server.placement.forked_from == session
    assert server.ask(work(client, "harbour", 1, 8)) == session


@pytest.mark.parametrize("num_messages", [19, 13, 9, 5])
def test_a_compaction_of_the_first_part_is_a_fork_of_its_conversation(server: Server, num_messages: int) -> None:
    others = [work(begun(topic), topic, 8) for topic in ("mill", "quarry")]
    taken = [server.ask(other) for other in others]
    client = work(begun(), "harbour", 10)
    session = server.ask(client)
    conversation = server.placement.thread.conversation
    side = server.ask(first_part(client, num_messages))
    assert server.placement.forked_from == session
    assert side != session
    assert server.families.is_side("", side)
    assert server.families.engine_id("", side) == session
    assert server.find(client) == session, "and nothing changed in the main thread"
    looked = server.families.look("", session, prompt_of(client), ThreadHints(), is_explicit=False)
    assert looked.thread.session_id == session
    after = ChatClient(messages=[*begun().messages, *client.messages[num_messages:]])
    assert server.ask(work(after, "harbour", 1, 30)) == session
    assert server.ask(first_part(client, num_messages)) != session
    assert [server.ask(other) for other in others] == taken
    assert conversation.tools
    server.families.check_integrity()


def keep_tools(side: ChatClient) -> None:
    side.tools = ("read",)


def keep_system(side: ChatClient) -> None:
    side.system = SYSTEM + "\nNow condense."


def leave_out_the_system(side: ChatClient) -> None:
    side.system = ""


def change_a_word(side: ChatClient) -> None:
    side.messages[2]["content"] += " The page is torn."


def go_on_otherwise(side: ChatClient) -> None:
    side.messages.insert(-1, {"role": "assistant", "content": "I would rather look at the mill."})


def keep_one_answer(side: ChatClient) -> None:
    del side.messages[3:-1]


def say_much_more(side: ChatClient) -> None:
    side.messages[-1]["content"] = "Compare it with this: " + "the mill stands by the river. " * 400


@pytest.mark.parametrize(
    "change",
    [
        keep_tools,
        keep_system,
        leave_out_the_system,
        change_a_word,
        go_on_otherwise,
        keep_one_answer,
        say_much_more,
    ],
    ids=lambda change: change.__name__,
)
def test_who_is_not_clearly_about_the_first_part_is_a_new_session(
    server: Server, change: Callable[[ChatClient], None]
) -> None:
    client = work(begun(), "harbour", 10)
    server.ask(client)
    side = first_part(client, 13)
    assert server.find(side) is not None
    change(side)
    assert server.find(side) is None


def test_a_first_part_that_two_conversations_have_is_nobodys(server: Server) -> None:
    """Two runs of one task that say the same up to there. The one that has more of it is found."""
    sessions = []
    for topic in ("mill", "quarry"):
        client = begun()
        for step in range(6):
            server.ask(client)
            server.answer(client, f"I look at shelf {step}.")
            client.user(f"Shelf {step} holds the harbour's ledgers.")
        sessions.append(server.ask(work(client, topic, 3)))
    assert len(set(sessions)) == 2
    assert server.find(first_part(client, 9)) is None
    assert server.find(first_part(client, 17)) == sessions[1]


def test_a_side_thread_is_nobodys_beginning(server: Server) -> None:
    """A summary of a summary's thread goes to the conversation that both are about."""
    client = work(begun(), "harbour", 10)
    session = server.ask(client)
    for num_messages in (9, 15, 9):
        server.ask(first_part(client, num_messages))
        assert server.placement.forked_from in (session, None)
        assert server.placement.thread.family == session
        assert server.placement.thread.engine_id == session


def test_random_requests_of_eight_tenants_find_their_own_sessions() -> None:
    """Among them 400 compactions of which a summary alone is left, and what others do with such a summary."""
    counts = RandomRuns().play(10_000)
    assert (counts["wrong tenant"], counts["wrong session"]) == (0, 0)
    assert counts["forks"] > 1000
    assert counts["certain"] > 400
    assert counts["by summary"] >= counts["certain"]
    assert counts["twins"] < 5, "so often nobody can tell whose it is"


def test_without_the_separation_of_tenants_owners_are_wrong() -> None:
    """The control: the same requests, all asked as one tenant, and the check turns red."""
    assert RandomRuns(lambda tenant: "").play(2_000)["wrong tenant"] > 0


@pytest.mark.parametrize(
    ("owner", "name", "says"),
    [
        (summaries, "_names_its_session", True),
        (content, "_shares_an_exchange", True),
        (ContentIndex, "_is_another_run", False),
        (summaries.Summaries, "has_anothers", False),
        (fingerprint, "_ours", 1),
    ],
)
def test_without_a_rule_sessions_are_wrong(
    owner: object, name: str, says: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of each rule: a stale summary, a lookalike, a run that begins alike, another run's answer."""
    monkeypatch.setattr(owner, name, lambda *_: says)
    assert RandomRuns().play(2_000)["wrong session"] > 0


@pytest.mark.parametrize("part", ["_names", "_openings", "_beginnings"])
def test_a_broken_index_is_found(server: Server, part: str) -> None:
    server.ask(work(standing().user("List every ferry."), "ferry", 3))
    index = server.families._tenants[""].index
    names = getattr(index, part)
    names = getattr(names, "_names", names)
    names.pop(next(iter(names)))
    with pytest.raises(IntegrityError, match="1 names missing, 0 too many"):
        server.families.check_integrity()


def test_the_cost_is_bounded_by_the_prompt() -> None:
    """Whatever a tenant has: two looks for each unit, and so many conversations that are compared."""
    server = Server()
    for n in range(400):
        server.ask(work(ChatClient().user("The same task for all."), f"place {n}", 10))
    common = [work(ChatClient().user("The same task for all."), "the same place", 10) for _ in range(400)]
    for n, client in enumerate(common):
        server.ask(client.user(f"Ending {n % 3}."))
    prompt = prompt_of(work(common[0], "the same place", 20, 50))
    looked, compared = server.families.work
    server.families.find("", prompt)
    looked, compared = server.families.work[0] - looked, server.families.work[1] - compared
    assert looked <= 2 * len(prompt)
    assert compared <= 2 * MAX_COMPARED * 100
