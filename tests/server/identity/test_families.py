"""Threads of a session: each request goes to the one whose tools, system text and history it goes on with."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from acmserve.context.storage.session import Bound
from acmserve.errors import IntegrityError
from acmserve.server.identity.families import MAX_SIDE_THREADS, Families
from acmserve.server.identity.placement import FoundSession, Placement
from acmserve.server.identity.prompt import PromptUnits, read_prompt
from acmserve.server.identity.thread_hints import ThreadHints
from tests.support.server.clients import (
    AGENT_SYSTEM,
    SUMMARY_SYSTEM,
    SYSTEM,
    TITLE_SYSTEM,
    TOOLS,
    ChatClient,
    work,
)

ID = "ses_1"


def prompt_of(client: ChatClient) -> PromptUnits:
    prompt = read_prompt(client.body)
    assert prompt is not None
    return prompt


def placed(
    families: Families,
    client: ChatClient,
    told: ThreadHints | None = None,
    *,
    is_explicit: bool = False,
    tenant: str = "",
) -> Placement:
    made = families.place(tenant, ID, prompt_of(client), told or ThreadHints(), is_explicit=is_explicit)
    families.check_integrity()
    return made


def agent(topic: str = "harbour") -> ChatClient:
    return ChatClient().user(f"Find every entry about the {topic}, and list them by year.")


@pytest.fixture
def families() -> Families:
    return Families()


def title_of(client: ChatClient) -> ChatClient:
    ask = {"role": "user", "content": "Write a title for this conversation:"}
    return client.side(TITLE_SYSTEM, ask, client.messages[0])


def test_behind_a_take_over_that_fails_a_main_thread_shares_no_name_in_the_engine(families: Families) -> None:
    """The conversation that had made room keeps that of the session. The next one went by it, too."""
    client = agent()
    title = placed(families, title_of(client))
    failing = placed(families, client)
    assert failing.moved is not None
    assert (title.thread.engine_id, failing.moved.engine_id) == (ID, ID)
    assert families.withdraw("", failing)
    families.check_integrity()
    looked = families.look("", ID, prompt_of(client), ThreadHints(), is_explicit=False)
    second = placed(families, client)
    assert second.is_main
    assert second.moved is None
    assert second.thread.session_id == looked.thread.session_id == ID
    assert second.thread.engine_id == looked.thread.engine_id == failing.thread.engine_id != ID
    assert placed(families, title_of(client)).thread is failing.moved


def summary_of(client: ChatClient) -> ChatClient:
    return client.side(SUMMARY_SYSTEM, *client.messages, {"role": "user", "content": "Condense the above."})


@pytest.mark.parametrize("is_explicit", [False, True], ids=["theirs", "ours"])
def test_a_conversation_stays_in_the_main_thread(families: Families, is_explicit: bool) -> None:
    client = agent()
    for n in range(6):
        made = placed(families, client, is_explicit=is_explicit)
        assert made.is_main
        assert made.thread.session_id == made.thread.engine_id == ID
        work(client, "harbour", 2, 2 * n)
    assert len(families) == 1


@pytest.mark.parametrize("is_explicit", [False, True], ids=["theirs", "ours"])
@pytest.mark.parametrize("when", ["first", "later"])
def test_a_title_request_has_a_thread_of_its_own(families: Families, when: str, is_explicit: bool) -> None:
    client = agent()
    if when == "first":
        title = placed(families, title_of(client), is_explicit=is_explicit)
        assert title.is_main, "nothing tells that it is a side request"
        main = placed(families, client, is_explicit=is_explicit)
        assert main.moved is not None
        side = main.moved
    else:
        main = placed(families, client, is_explicit=is_explicit)
        title = placed(families, title_of(client), is_explicit=is_explicit)
        side = title.thread
    assert main.is_main
    assert main.thread.session_id == ID
    assert side.session_id.startswith(f"{ID}~task-")
    assert main.thread.engine_id != side.engine_id, "no KV of the title moves into the main prompt"
    work(client, "harbour", 3)
    assert placed(families, client, is_explicit=is_explicit).thread is main.thread
    again = placed(families, title_of(client), is_explicit=is_explicit)
    assert again.thread is side, "the next title takes the thread of the last one"


def test_a_compaction_is_a_fork_of_the_main_thread(families: Families) -> None:
    client = work(agent(), "harbour", 3)
    main = placed(families, client)
    client.answer("There are nine entries.")
    side = placed(families, summary_of(client))
    assert side.forked_from == ID
    assert side.thread.engine_id == main.thread.engine_id
    assert side.thread.session_id != ID
    work(client.user("Go on."), "harbour", 3, 3)
    assert placed(families, client).thread is main.thread
    again = placed(families, summary_of(client))
    assert again.thread is side.thread
    assert again.forked_from == ID, "what the main thread has by now is more"


@pytest.mark.parametrize("num_messages", [5, 9, 21])
def test_a_compaction_of_the_first_part_is_a_fork_however_short_it_is(families: Families, num_messages: int) -> None:
    client = work(agent(), "harbour", 12)
    main = placed(families, client)
    ask = {"role": "user", "content": "Condense the above."}
    side = placed(families, client.side(SUMMARY_SYSTEM, *client.messages[:num_messages], ask))
    assert side.forked_from == ID
    assert side.thread.engine_id == ID != side.thread.session_id
    assert placed(families, work(client, "harbour", 1, 20)).thread is main.thread


def test_codex_says_that_it_compacts(families: Families) -> None:
    """Its compaction has the system text of the conversation and no tools."""
    client = work(agent(), "harbour", 3)
    placed(families, client)
    compaction = client.side(SYSTEM, *client.messages, {"role": "user", "content": "Hand over to a colleague."})
    side = placed(families, compaction, ThreadHints(kind="compaction"))
    assert side.forked_from == ID
    assert side.thread.name.startswith("compaction-")
    after = ChatClient().user(client.messages[0]["content"]).user("A colleague left this: nine entries.")
    assert placed(families, after).is_main


def test_a_turn_of_the_thread_that_names_the_session_is_the_conversation(families: Families) -> None:
    """Codex, behind its compaction: people's messages in another order, and a summary. Nothing of the model's."""
    main = placed(families, work(agent(), "harbour", 3), ThreadHints(thread=ID))
    compacted = ChatClient().user("In short: nine entries.").user("Go on with the mill.")
    assert placed(families, compacted, ThreadHints(thread=ID)).thread is main.thread
    assert (
        placed(families, ChatClient().user("Count the mills."), ThreadHints(thread="ses_2")).thread is not main.thread
    )


def test_sub_agents_of_one_session_interleave(families: Families) -> None:
    """Claude Code: the session's id, another system prompt, other tools, another model, and an agent's id."""
    client = work(agent(), "harbour", 2)
    main = placed(families, client)
    subs = {
        name: ChatClient(AGENT_SYSTEM, ("read", "grep")).user(f"Search the {name}, and report what is torn.")
        for name in ("mill", "quarry", "ferry")
    }
    threads: dict[str, Any] = {}
    for turn in range(3):
        for name, sub in subs.items():
            made = placed(families, sub, ThreadHints(agent=f"id-{name}"))
            assert not made.is_main
            assert threads.setdefault(name, made.thread) is made.thread
            work(sub, name, 1, turn)
            assert placed(families, work(client, "harbour", 1, 10 * turn)).thread is main.thread
    assert len({thread.engine_id for thread in threads.values()} | {ID}) == 4


def test_sub_agents_without_an_id_are_told_apart_by_their_history(families: Families) -> None:
    client = work(agent(), "harbour", 2)
    main = placed(families, client)
    subs = {name: ChatClient(AGENT_SYSTEM, ("read",)).user(f"Search the {name}.") for name in ("mill", "quarry")}
    threads = {name: placed(families, sub).thread for name, sub in subs.items()}
    assert len({id(thread) for thread in threads.values()} | {id(main.thread)}) == 3
    for turn in range(3):
        for name, sub in subs.items():
            assert placed(families, work(sub, name, 1, turn)).thread is threads[name]
        assert placed(families, work(client, "harbour", 1, 10 * turn)).thread is main.thread


@pytest.mark.parametrize("is_explicit", [False, True], ids=["theirs", "ours"])
@pytest.mark.parametrize(
    "change",
    [
        {"system": SYSTEM + "\nGit status: 3 files changed since this morning."},
        {"system": SYSTEM.replace("shelf 7", "shelf 99")},
        {"tools": (*TOOLS, "paint")},
        {"tools": ()},
        {"tools": ("paint",)},
        {"system": SYSTEM + "\nToday is Tuesday.", "tools": TOOLS[:2]},
        {"system": AGENT_SYSTEM},
    ],
    ids=["git status", "a rule", "one tool more", "no tools", "other tools", "a date and fewer tools", "other system"],
)
def test_one_change_alone_makes_no_thread(families: Families, change: dict[str, Any], is_explicit: bool) -> None:
    client = work(agent(), "harbour", 2)
    main = placed(families, client, is_explicit=is_explicit)
    for name, value in change.items():
        setattr(client, name, value)
    for n in range(2):
        assert placed(families, work(client, "harbour", 1, 5 + n), is_explicit=is_explicit).thread is main.thread


def test_a_client_of_ours_may_change_everything_at_once(families: Families) -> None:
    client = work(agent(), "harbour", 2)
    main = placed(families, client, is_explicit=True)
    client.system, client.tools = AGENT_SYSTEM, ("paint",)
    assert placed(families, work(client, "harbour", 1, 5), is_explicit=True).thread is main.thread


def test_a_client_of_ours_may_begin_anew(families: Families) -> None:
    main = placed(families, work(agent(), "harbour", 2), is_explicit=True)
    assert placed(families, agent("mill"), is_explicit=True).thread is main.thread


def test_conversations_under_one_cache_key_have_threads(families: Families) -> None:
    clients = [agent(name) for name in ("harbour", "mill", "quarry")]
    threads = [placed(families, client).thread for client in clients]
    assert len({thread.session_id for thread in threads}) == 3
    for turn in range(3):
        for client, thread in zip(clients, threads, strict=True):
            assert placed(families, work(client, thread.session_id, 1, turn)).thread is thread


def test_a_family_has_so_many_side_threads_and_the_oldest_leaves(families: Families) -> None:
    placed(families, agent())
    made = [placed(families, ChatClient(AGENT_SYSTEM, ("read",)).user(f"Search cupboard {n}.")) for n in range(12)]
    left = [session_id for placement in made for session_id in placement.left]
    assert left == [placement.thread.session_id for placement in made[: 12 - MAX_SIDE_THREADS]]
    assert len(families) == MAX_SIDE_THREADS + 1


def test_a_failed_request_leaves_nothing(families: Families) -> None:
    client = work(agent(), "harbour", 2)
    first = placed(families, client)
    before = first.thread.conversation
    second = placed(families, work(client, "harbour", 1, 7))
    families.withdraw("", second)
    assert first.thread.conversation == before
    side = placed(families, title_of(client))
    families.withdraw("", side)
    assert len(families) == 1
    placed(families, work(client, "harbour", 1, 9))
    families.withdraw("", first)
    assert len(families) == 1, "a later request has come meanwhile"
    families.check_integrity()


def test_the_same_id_of_another_tenant_is_another_session(families: Families) -> None:
    mine, theirs = placed(families, agent(), tenant="a"), placed(families, agent(), tenant="b")
    assert mine.thread is not theirs.thread
    families.drop(("a", ID))
    assert placed(families, agent(), tenant="b").thread is theirs.thread


def test_a_broken_count_is_found(families: Families) -> None:
    placed(families, agent())
    families._num_bytes += 1
    with pytest.raises(IntegrityError, match="bytes counted"):
        families.check_integrity()


def test_memory_is_bounded_and_shared_fairly() -> None:
    families = Families(bound=Bound(64, 2**20))
    placed(families, agent("mill"), tenant="small")
    for n in range(500):
        prompt = read_prompt(agent(f"place {n}").body)
        assert prompt is not None
        families.place("greedy", f"id-{n}", prompt, ThreadHints(), is_explicit=False)
        families.check_integrity()
    prompt = read_prompt(work(agent("mill"), "mill", 1).body)
    assert prompt is not None
    assert families.find("small", prompt) == FoundSession(ID)


def test_any_order_of_requests_keeps_families_whole() -> None:
    """A random walk: requests of every kind, answers, failures, sessions that go, a memory that is full."""
    rng = random.Random(7)
    families = Families(bound=Bound(40, 2**18))
    systems = (SYSTEM, AGENT_SYSTEM, TITLE_SYSTEM, SUMMARY_SYSTEM, "")
    clients = [work(agent(name), name, 3) for name in ("harbour", "mill", "quarry")]
    made: list[tuple[str, Placement]] = []
    for step in range(3000):
        client = copy.deepcopy(rng.choice(clients))
        client.system, client.tools = rng.choice(systems), rng.choice([TOOLS, ("read",), ()])
        del client.messages[rng.randrange(1, len(client.messages)) :]
        prompt = read_prompt(client.user(f"Step {rng.randrange(9)}.").body)
        assert prompt is not None
        tenant, told = (
            rng.choice("ab"),
            rng.choice(
                [ThreadHints(), ThreadHints(), ThreadHints(agent=f"a{step % 3}"), ThreadHints(kind="compaction")]
            ),
        )
        found = families.find(tenant, prompt) if rng.random() < 0.3 else None
        name = f"id-{rng.randrange(12)}" if found is None else found.family
        if families.is_side(tenant, name):
            continue
        made.append((tenant, families.place(tenant, name, prompt, told, is_explicit=rng.random() < 0.5)))
        owner, placement = rng.choice(made[-9:])
        what = rng.randrange(5)
        if what == 0:
            families.withdraw(owner, placement)
        elif what == 1:
            families.drop((owner, placement.thread.session_id))
        elif what == 2:
            families.answered(owner, placement, {"role": "assistant", "content": f"Answer {step}."})
        families.check_integrity()
    assert len(families) > 20
