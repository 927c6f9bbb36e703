"""Branches: what the model sees of them, and that main goes on as if there had been none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import fold, redact
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.session.branches.branch_tool import BRANCH_TOOL, read_branch, read_return
from acmserve.context.session.branches.branching import INTERRUPTED, Spent, close_branch, open_branch
from acmserve.context.session.branches.fork import fork, num_complete, place_result
from acmserve.context.session.branches.parent import Parent, mark_of
from acmserve.context.session.carrying.record import DroppedEdit
from acmserve.context.session.going_on import RESPONSE_ID, go_on
from acmserve.context.session.history import END_REMOVED, INTERRUPTED_NOW, adopt, append_internal
from acmserve.context.session.render import evicted_entries, render, render_entries
from acmserve.context.session.state import Author, SessionState
from acmserve.context.storage.codecs.state import state_from, state_value
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.context.transcript.message import Message, texts
from acmserve.errors import AcmError, IntegrityError, InvalidRequest
from tests.context.eviction.test_context_meter import MEASURED, POLICIES, budget
from tests.support.context.branching import (
    WANTED,
    answered,
    branch_step,
    failed,
    opened_in,
    returned,
    step,
    tool_call,
    worked,
)
from tests.support.context.conversation import WORDS, as_bytes, assistant, call, done, lines, refusal, state_of, user
from tests.support.context.states import TEXTS
from tests.support.context.valid_chat import orphans

MAIN = state_of(user("Start the server.\n" + lines(12)))
WEATHER = tool_call("weather", "w1", city="Rome")


def stored(state: SessionState) -> SessionState:
    """The state as it comes back from its file."""
    return state_from(json.loads(json.dumps(state_value(state))), "it")


def client(state: SessionState) -> list[Message]:
    """What a client has of the session."""
    return [entry.message for entry in state.entries if entry.origin is not Author.INTERNAL]


STEPS = st.lists(
    st.builds(
        lambda names, text, result: step(*(tool_call(name) for name in names), text=text, result=result),
        st.lists(st.sampled_from(["grep", "read", "fold_fragment"]), min_size=1, max_size=3),
        st.none() | TEXTS,
        TEXTS,
    ),
    max_size=4,
)


@pytest.mark.parametrize("edit", ["fragment", "redaction"])
def test_an_edit_of_a_result_that_says_something_else_is_told(edit: str) -> None:
    state = answered(worked(opened_in(MAIN, "b1"), step(tool_call("grep"))), assistant("Which one?"))
    cut = cut_messages(state, 2, 3, WORDS)
    name = cut.fragments[0].fragment_id
    state = fold(cut.state, name, "sculptor", WORDS) if edit == "fragment" else redact(cut.state, name)
    adoption = adopt(state, [*client(state), user("Stop.")])
    assert adoption.state.branches[0].failed
    told = [(dropped.kind, dropped.edit_id) for dropped in adoption.dropped]
    assert told == [("branch", "b1"), (edit, name)]


@given(STEPS, st.sampled_from(["It is 8000.", "x", lines(30)]), st.booleans())
def test_main_goes_on_as_if_it_had_never_branched(steps: list[list[Message]], message: str, beside: bool) -> None:
    others = [tool_call("search_context", "s1", query="x")] if beside else []
    state = opened_in(MAIN, "b1", *others)
    for messages in steps:
        state = worked(state, messages)
    state = returned(state, message)
    state.check_integrity()
    never = append_internal(MAIN, branch_step("b1", *others, result=message))
    assert as_bytes(render(state)) == as_bytes(render(never))
    assert [m is o for m, o in zip(render(state), render(MAIN), strict=False)] == [True]
    assert stored(state) == state


def test_while_it_is_open_the_branch_sees_main_and_its_task() -> None:
    state = worked(opened_in(MAIN), step(tool_call("grep"), result="serve.py:40"))
    shown = render(state)
    assert shown[:1] == render(MAIN)
    assert WANTED.prompt in shown[2]["content"]
    assert WANTED.description in shown[2]["content"]
    assert shown[-1]["content"] == "serve.py:40"
    assert not orphans(shown)
    assert stored(state) == state


def test_a_branch_counts_its_calls_and_tokens() -> None:
    state = worked(opened_in(MAIN), step(tool_call("grep"), tool_call("read"), result=lines(5)))
    [branch] = returned(state).branches
    assert branch.state == "returned"
    assert branch.num_calls == 3
    assert 100 < branch.num_tokens < 200


def test_a_failed_branch_says_so_in_main() -> None:
    state = failed(worked(opened_in(MAIN), step(tool_call("grep"))), "the disk is full.")
    assert [message["role"] for message in render(state)] == ["user", "assistant", "tool"]
    assert render(state)[-1]["content"] == "Error: the branch ended without a result: the disk is full."
    assert state.branches[-1].state == "failed"


def test_a_message_of_the_user_ends_the_branch_and_is_seen() -> None:
    state = answered(opened_in(MAIN), {"role": "assistant", "content": None, "tool_calls": [WEATHER]})
    result = {"role": "tool", "tool_call_id": "w1", "content": "Rain."}
    going_on = adopt(state, [*client(state), result]).state
    assert going_on.branch is not None
    assert render(going_on)[-1] == result
    stopped = adopt(state, [*client(state), result, user("Stop that.")]).state
    stopped.check_integrity()
    assert stopped.branch is None
    assert [message["role"] for message in render(stopped)] == ["user", "assistant", "tool", "user"]
    assert render(stopped)[2]["content"].endswith(INTERRUPTED)
    late = adopt(state, [*client(state), user("Stop that."), result]).state
    assert [message["role"] for message in render(late)] == ["user", "assistant", "tool", "user"]
    assert not orphans(render(late))


def test_a_history_rewound_into_a_branch_opens_it_again_and_one_before_it_drops_it() -> None:
    asked = answered(opened_in(MAIN), {"role": "assistant", "content": None, "tool_calls": [WEATHER]})
    result = {"role": "tool", "tool_call_id": "w1", "content": "Rain."}
    inside = adopt(asked, [*client(asked), result]).state
    end = answered(returned(inside), assistant("Port 8000."))
    adoption = adopt(end, [*client(inside)])
    again = adoption.state
    again.check_integrity()
    assert adoption.dropped == (DroppedEdit("branch", inside.branches[0].call_id, END_REMOVED),), "its end is told"
    assert adopt(again, [*client(inside)]).dropped == (), "once"
    stopped = adopt(end, [*client(inside), user("Stop that.")])
    assert stopped.dropped == (DroppedEdit("branch", inside.branches[0].call_id, INTERRUPTED_NOW),)
    assert again.branch == inside.branch
    assert as_bytes(render(again)) == as_bytes(render(inside))
    assert not again.omissions
    before = adopt(end, client(MAIN)).state
    assert (before.branches, render(before)) == ((), render(MAIN))
    same = adopt(end, [*client(end), user("And now?")]).state
    assert same.branches == end.branches
    assert as_bytes(render(same)[:-1]) == as_bytes(render(end))


@pytest.mark.parametrize("stops", [False, True])
def test_an_earlier_answer_in_a_branch_tells_the_end_of_it_once(stops: bool) -> None:
    asking = {"role": "assistant", "content": None, "tool_calls": [WEATHER], RESPONSE_ID: "r1"}
    result = {"role": "tool", "tool_call_id": "w1", "content": "Rain."}
    asked = answered(opened_in(MAIN), asking)
    end = answered(returned(adopt(asked, [*client(asked), result]).state), assistant("Port 8000."))
    adoption = go_on(end, "r1", [result, *([user("Stop that.")] if stops else [])])
    adoption.state.check_integrity()
    assert (adoption.state.branch is None) is stops
    reason = INTERRUPTED_NOW if stops else END_REMOVED
    assert adoption.dropped == (DroppedEdit("branch", end.branches[0].call_id, reason),)


def test_main_cannot_be_edited_inside_a_branch_and_the_branch_can() -> None:
    state = cut_messages(MAIN, 0, 1, WORDS).state
    [outer] = state.fragments
    state = worked(opened_in(state), step(tool_call("grep"), result=lines(20, name="found")))
    assert "main conversation cannot be changed" in refusal(
        state, call(state, "fold_fragment", fragment_id=outer.fragment_id)
    )
    assert "Call return first" in refusal(state, call(state, "delimiter", suite="cwl", action="end"))
    inner = cut_messages(state, len(state.entries) - 1, len(state.entries), WORDS)
    state = done(call(inner.state, "fold_fragment", fragment_id=inner.fragments[0].fragment_id))
    assert "[folded" in render(state)[-1]["content"]
    found = done(call(state, "search_context", query="found 7", role="all"))
    state = returned(found)
    assert "[folded" not in str(render(state))
    assert "found 7" in call(state, "search_context", query="found 7", role="all").result
    assert done(call(state, "fold_fragment", fragment_id=outer.fragment_id)).fragment(outer.fragment_id).hidden


def test_the_returned_message_can_be_folded_and_redacted() -> None:
    state = returned(opened_in(MAIN), "The secret is hunter2. " * 20)
    made = cut_messages(state, 2, 3, WORDS)
    name = made.fragments[0].fragment_id
    assert "[folded" in render(fold(made.state, name, "sculptor", WORDS))[2]["content"]
    gone = redact(made.state, name)
    gone.check_integrity()
    assert "hunter2" not in str(render(gone))
    texts_left = [text for entry in gone.entries[:3] for _, text in texts(entry.message)]
    assert not any("hunter2" in text for text in texts_left)
    assert "hunter2" not in str(state_value(gone)["limits"])


def test_what_is_wrong_with_a_state_is_found() -> None:
    state = returned(opened_in(MAIN))
    [branch] = state.branches
    for broken in (
        replace(state, branches=(replace(branch, end=99),)),
        replace(state, branches=(replace(branch, call_id="other"),)),
        replace(state, branches=(replace(branch, start=0),)),
        replace(state, omissions=type(state.omissions)()),
        replace(state, branches=(replace(branch, end=None), replace(branch, call_entry=9))),
        replace(opened_in(MAIN), entries=(*opened_in(MAIN).entries, MAIN.entries[0])),
    ):
        with pytest.raises(IntegrityError):
            broken.check_integrity()
    with pytest.raises(IntegrityError):
        close_branch(state, "again", Spent())
    with pytest.raises(IntegrityError):
        open_branch(opened_in(MAIN), "b1", WANTED)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"description": " ", "prompt": "p"}, "description: is empty"),
        ({"description": "d" * 300, "prompt": "p"}, "300 characters"),
        ({"prompt": "p"}, "description"),
        ("{", "not valid JSON"),
        ({"description": "d", "prompt": "p", "depth": 2}, "no such argument"),
    ],
)
def test_a_wrong_call_says_what_to_write(arguments: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read_branch(arguments)
    with pytest.raises(InvalidRequest, match="message"):
        read_return({"message": "\n"})
    assert BRANCH_TOOL["function"]["parameters"]["required"] == ["description", "prompt"]


@settings(max_examples=60)
@given(STEPS, st.sampled_from(POLICIES), st.integers(10, 400), st.booleans())
def test_an_eviction_leaves_an_open_branch_whole(
    steps: list[list[Message]], policy: str, target: int, closes: bool
) -> None:
    state = MAIN
    for _ in range(3):
        state = append_internal(state, step(tool_call("grep"), result=lines(4)))
    meter = ContextMeter(WORDS)
    state = meter.follow(opened_in(state), keep_active=policy in ("cwl", "pi-cwl"))
    for messages in steps:
        state = worked(state, messages)
    state = meter.follow(state)
    start = state.branches[0].call_entry
    whole = render(replace(state, omissions=type(state.omissions)()))[start:]
    state = meter.carry_out(meter.plan(budget(target, policy=policy), MEASURED), state)
    assert render(state)[-len(whole) :] == whole
    if closes:
        state = meter.follow(returned(state))
        state = meter.carry_out(meter.plan(budget(target, policy=policy), MEASURED), state)
    state.check_integrity()
    meter.check_integrity()
    assert not orphans(render(state))
    assert stored(state) == state


def test_a_running_account_follows_a_return_without_beginning_anew() -> None:
    meter = ContextMeter(WORDS)
    state = meter.follow(worked(opened_in(MAIN), step(tool_call("grep"), result=lines(20))))
    graph, large = meter.graph, meter.num_tokens
    state = meter.follow(returned(state))
    meter.check_integrity()
    assert meter.graph is graph
    assert meter.num_tokens < large - 100
    anew = ContextMeter(WORDS)
    anew.follow(state)
    assert anew.num_tokens == meter.num_tokens


def test_a_fork_begins_as_its_parent_and_is_told_apart_from_it() -> None:
    state = answered(fold(*_cut(MAIN), "sculptor", WORDS), assistant("Started."))
    child = fork(state, "parent", "d", "p")
    child.check_integrity()
    assert as_bytes(render(child)) == as_bytes(render(state))
    assert child.parent is not None
    assert (child.parent.mark, child.parent.num_messages) == (mark_of(state.digest_key), 2)
    grown = adopt(child, [*client(state), user("Which port?")])
    assert grown.num_known == 2
    assert "[folded" in str(render(grown.state))
    assert stored(grown.state) == grown.state


def _cut(state: SessionState) -> tuple[SessionState, str]:
    made = cut_messages(state, 0, 1, WORDS)
    return made.state, made.fragments[0].fragment_id


def test_a_fork_begins_in_front_of_calls_that_wait_for_results() -> None:
    state = append_internal(MAIN, step(tool_call("search_context")))
    state = answered(state, {"role": "assistant", "content": None, "tool_calls": [WEATHER]})
    assert num_complete(state) == 3
    assert render(fork(state, "parent", "d", "p")) == render(MAIN)
    state = adopt(state, [*client(state), {"role": "tool", "tool_call_id": "w1", "content": "Rain."}]).state
    assert num_complete(state) == len(state.entries)


def test_what_a_fork_returns_stays_as_long_as_what_stands_before_it() -> None:
    state = answered(MAIN, assistant("Started."))
    parent = fork(state, "parent", "the port", "Which?").parent
    assert parent is not None
    placed = place_result(state, "b7", parent, "8000.", Spent(4, 99))
    placed.check_integrity()
    assert [message["role"] for message in render(placed)[-2:]] == ["assistant", "tool"]
    assert (placed.branches[0].num_calls, placed.branches[0].num_tokens) == (4, 99)
    grown = adopt(placed, [*client(state), user("Good.")]).state
    assert render(grown)[-2]["content"] == "8000."
    assert adopt(grown, client(grown)).state == grown
    assert render(adopt(grown, client(state)).state) == render(placed)
    rewound = adopt(grown, client(MAIN)).state
    assert (rewound.branches, render(rewound)) == ((), render(MAIN))
    first = place_result(MAIN, "b1", parent, "8000.", Spent())
    assert render(adopt(first, [*client(MAIN), user("Good.")]).state)[2]["content"] == "8000."


SECRET = "The vault code is 7741-KESTREL-9920-ALPINE, and nobody else has it."


def without_secret() -> SessionState:
    """A session in which the secret was redacted."""
    state = answered(state_of(user("Start the server."), user(SECRET)), assistant("Noted."))
    made = cut_messages(state, 1, 2, WORDS)
    return redact(made.state, made.fragments[0].fragment_id)


@pytest.mark.parametrize("where", ["message", "description", "prompt"])
def test_what_a_fork_returns_is_without_what_was_redacted(where: str) -> None:
    """Its client knows the text. A fork made by an older version has it in its task."""
    state = without_secret()
    given = {"message": "8000.", "description": "the port", "prompt": "Which?"} | {where: f"Report:\n{SECRET}\nEnd."}
    child = fork(state, "parent", given["description"], given["prompt"])
    assert "KESTREL" not in str(child)
    assert child.parent is not None
    old = replace(child.parent, description=given["description"], prompt=given["prompt"])
    for parent in (child.parent, old):
        placed = place_result(state, "b7", parent, given["message"], Spent())
        placed.check_integrity()
        assert "KESTREL" not in str(placed)
        assert [message["role"] for message in render(placed)[-2:]] == ["assistant", "tool"]
        grown = adopt(placed, [*client(state), user("Good.")]).state
        assert grown.branches == placed.branches
        assert stored(grown) == grown
    told = render(placed)[-1]["content"] if where == "message" else getattr(placed.branches[0], where)
    [name] = [fragment.fragment_id for fragment in state.fragments]
    assert told == f"Report:\n[{f'{name} continued' if where == 'message' else 'redacted'}]\nEnd."


def test_a_redaction_reaches_the_tasks_of_branches() -> None:
    """A branch that is open again has its task in the result of its call."""
    state = state_of(user("Start the server."), user(SECRET))
    wanted = replace(WANTED, prompt=f"Open the vault. {SECRET}\nGo.")
    state = open_branch(append_internal(state, branch_step("b1")), "b1", wanted)
    state = answered(state, {"role": "assistant", "content": None, "tool_calls": [WEATHER]})
    state = adopt(state, [*client(state), {"role": "tool", "tool_call_id": "w1", "content": "Rain."}]).state
    inside = client(state)
    made = cut_messages(answered(returned(state), assistant("Open.")), 1, 2, WORDS)
    gone = redact(made.state, made.fragments[0].fragment_id)
    gone.check_integrity()
    again = adopt(gone, inside).state
    assert again.branch is not None
    assert "Open the vault. [redacted]" in str(render(again))
    child = replace(made.state, parent=Parent("s", "", "d", wanted.prompt, 1, 1), branches=())
    child = redact(replace(child, omissions=type(child.omissions)()), made.fragments[0].fragment_id)
    assert all("KESTREL" not in str(left) for left in (gone, again, child))


def test_branches_survive_a_restart(tmp_path: Path) -> None:
    closed = returned(worked(opened_in(MAIN), step(tool_call("grep"))))
    states = {"closed": closed, "open": opened_in(closed, "b2"), "child": fork(closed, "closed", "d", "p")}
    store = SessionStore(archive=Archive(tmp_path))
    for name, state in states.items():
        store.save(store.create("", name), state)
    store.check_integrity()
    store.close()
    again = SessionStore(archive=Archive(tmp_path))
    assert {name: again.get("", name).state for name in states} == states
    session = again.get("", "open")
    again.save(session, returned(session.state))
    again.check_integrity()
    again.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"end": "3"}, "end of a branch is str"),
        ({"failed": 0}, "failed of a branch is int"),
        ({"start": True}, "start of a branch is bool"),
        ({"depth": 2}, "a branch has"),
        ({"end": 99}, "behind entry 0"),
    ],
)
def test_a_damaged_branch_is_named(change: dict[str, Any], said: str) -> None:
    value = state_value(returned(opened_in(MAIN)))
    value["limits"][0]["branches"][0] |= change
    with pytest.raises(AcmError, match=said):
        state_from(value, "it")


class Branching(RuleBasedStateMachine):
    """A client, a model that branches, a person who folds: what was said is shown, and every message is valid."""

    def __init__(self) -> None:
        super().__init__()
        self.state = SessionState(digest_key=bytes(16))
        self.sent: list[Message] = []
        self.meter = ContextMeter(WORDS)

    @initialize()
    def begins(self) -> None:
        self.client_says()

    def adopt(self, messages: list[Message]) -> None:
        self.sent = messages
        self.state = adopt(self.state, messages).state
        self.state = self.meter.follow(self.state)

    @rule()
    def client_says(self) -> None:
        self.adopt([*self.waiting_results(), user(f"Say {len(self.sent)}.")])

    def waiting_results(self) -> list[Message]:
        last = self.sent[-1] if self.sent else {}
        results = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in last.get("tool_calls") or ()]
        return [*self.sent, *results]

    @rule(back=st.integers(0, 6))
    def client_rewinds(self, back: int) -> None:
        kept = self.sent[: max(1, len(self.sent) - back)]
        while kept[-1]["role"] == "assistant" and kept[-1].get("tool_calls"):
            kept = kept[:-1]
        self.adopt(kept)

    @precondition(lambda self: self.state.branch is None and not self.sent[-1].get("tool_calls"))
    @rule()
    def opens(self) -> None:
        self.state = opened_in(self.state, f"b{len(self.state.entries)}-{self.state.num_turns}")

    @precondition(lambda self: not self.sent[-1].get("tool_calls"))
    @rule(num_lines=st.integers(1, 9))
    def works(self, num_lines: int) -> None:
        self.state = worked(self.state, step(tool_call("grep"), result=lines(num_lines)))

    @precondition(lambda self: not self.sent[-1].get("tool_calls"))
    @rule()
    def calls_a_tool_of_the_client(self) -> None:
        message = {"role": "assistant", "content": None, "tool_calls": [tool_call("weather")]}
        self.state = answered(self.state, message)
        self.adopt([*self.sent, message, *step(*message["tool_calls"])[1:]])

    @precondition(lambda self: self.state.branch is not None)
    @rule(fails=st.booleans())
    def closes(self, fails: bool) -> None:
        self.state = failed(self.state) if fails else returned(self.state)

    @precondition(lambda self: self.state.branch is None and self.sent[-1]["role"] != "assistant")
    @rule()
    def answers(self) -> None:
        message = assistant(f"Answer {len(self.sent)}.")
        self.state = answered(self.state, message)
        self.sent = [*self.sent, message]

    @rule(policy=st.sampled_from(POLICIES), low=st.integers(1, 300))
    def evicts(self, policy: str, low: int) -> None:
        self.state = self.meter.follow(self.state, keep_active=policy in ("cwl", "pi-cwl"))
        self.state = self.meter.carry_out(self.meter.plan(budget(low, policy=policy), MEASURED), self.state)

    @rule()
    def is_restarted(self) -> None:
        self.state = stored(self.state)
        self.meter = ContextMeter(WORDS)

    @invariant()
    def nothing_is_broken(self) -> None:
        self.state.check_integrity()
        shown = render(self.state)
        assert not orphans(shown)
        assert [m for m in shown if m["role"] == "user"] == [m for m in self.sent if m["role"] == "user"]
        left = render_entries(self.state)
        for branch in self.state.branches:
            inside = left[branch.start : branch.end]
            assert all(message is None for message in inside) or branch.is_open
        branch = self.state.branch
        if branch is not None:
            assert all(message is not None for message in left[branch.call_entry :])
            assert not evicted_entries(self.state) & set(range(branch.call_entry, len(left)))


TestBranching = Branching.TestCase
TestBranching.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
