"""Random edit scripts hold the principles of 000 section 2.1, whatever the client, the model and a person do.

rules       The client writes on, resends, rewinds, diverges. It names an answer, with instructions that change or go.
            The server answers with calls of its own in between.
            Every tool of both suites gets right and wrong arguments. Whole messages are cut. Fragments are redacted.
            Edits wait, and take effect some at a time.
after each  Messages keep count, order and identity. Hidden text comes back byte for byte, in any order.
            A call that fails changes nothing. What is told of an edit is what it does. Visible text can be cut.
at the end  The whole script runs once more, from nothing: the same bytes, ids and results at every step.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.commit import apply_commit, commit_all
from acmserve.context.edits.cost import ShownTexts, effect_of
from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.find import HIDDEN, editable_texts, pieces_by_place, stretches, texts_of
from acmserve.context.schema.suite_registry import editing_suites
from acmserve.context.session.fragment import Piece, Visibility
from acmserve.context.session.going_on import RESPONSE_ID, go_on
from acmserve.context.session.history import adopt, append_answer, append_internal, end_turn
from acmserve.context.session.nesting import crossing, hiding
from acmserve.context.session.render import hidden_pieces, render, splice
from acmserve.context.session.state import SessionState
from acmserve.context.session.waiting import committed, waiting, waiting_behind
from acmserve.context.storage.codecs.state import state_from, state_value
from acmserve.context.tools.batch import Edit, EditKind, run_batch
from acmserve.context.tools.run import ToolCall, run_tool
from acmserve.context.tools.suites import tool_names
from acmserve.context.transcript.call_arguments import ArgumentPart, written_text
from acmserve.context.transcript.message import Message, Part, Place, text_at, with_texts
from acmserve.errors import InvalidRequest
from tests.support.context.conversation import KEY, Characters, as_bytes, bench
from tests.support.fuzzing import FACTOR

CHANGING = {
    "fold_fragment",
    "restore_fragment",
    "expand_fragment",
    "summarize_fragment",
    "summary_fragment",
    "revert_summary",
}
MARGIN = 8
"""Tokens by which the marker of a longer text may be longer."""
HIDING = (Visibility.FOLDED, Visibility.SUMMARIZED)
SPICE = ["\n", "\n\n", ". ", "\x00", "word ", "Word ", "\U0001f600", "[folded", " ", '"', "\\"]


@dataclass(frozen=True)
class Step:
    """One step of a script, as data: `kind` names a branch of `carry_out`."""

    kind: str
    arguments: Any


@dataclass(frozen=True)
class Held:
    """The machine's own picture of one message: who holds it and since which turn, without digests."""

    message: Message
    turn: int = -1
    internal: bool = False


def carry_out(state: SessionState, step: Step) -> tuple[SessionState, str]:
    """One step on a state. The text is what whoever asked for the step gets to read."""
    if step.kind == "adopt":
        adoption = adopt(state, step.arguments)
        return adoption.state, f"{adoption.num_known} {adoption.dropped}"
    if step.kind == "go on":
        name, messages = step.arguments
        adoption = go_on(state, name, messages)
        return adoption.state, f"{adoption.num_known} {adoption.dropped}"
    if step.kind == "turn":
        internal, answer = step.arguments
        return end_turn(append_answer(append_internal(state, internal), answer)), ""
    if step.kind == "batch":
        try:
            done = run_batch(committed(state), step.arguments, bench(), {})
        except InvalidRequest as error:
            return state, f"Error: {error}"
        return done.state, str([(edit.fragment.fragment_id, edit.num_tokens_after) for edit in done.done])
    if step.kind == "commit":
        plan = commit_all(state, "cheapest")
        return apply_commit(state, replace(plan, fragment_ids=plan.fragment_ids[step.arguments :])), ""
    suite, name, arguments, supplied = step.arguments
    if step.kind == "wait":
        context = replace(bench(suite, supplied=supplied), may_wait=True)
        outcome = run_tool(committed(state), ToolCall(name, arguments), context)
        return waiting_behind(state, outcome.state), outcome.result
    state = committed(state)
    outcome = run_tool(state, ToolCall(name, arguments), bench(suite, supplied=supplied))
    assert (outcome.error is None) == (not outcome.result.startswith("Error: "))
    if outcome.error is not None or outcome.needs is not None:
        assert outcome.state is state
    if outcome.error is not None:
        follow_remedy(state, step, outcome.error)
    if not outcome.changed:
        assert as_bytes(render(outcome.state)) == as_bytes(render(state))
    return outcome.state, outcome.result


def follow_remedy(state: SessionState, step: Step, error: InvalidRequest) -> None:
    """What a refusal advises is never refused itself."""
    suite, name, arguments, supplied = step.arguments

    def works(tool: str, changed: Mapping[str, Any]) -> None:
        tried = run_tool(state, ToolCall(tool, arguments | changed), bench(suite, supplied=supplied))
        assert tried.error is None, (name, arguments, str(error), tried.result)

    for fragment_id in re.findall(r"Restore (f\w{5}) first|Call \w+_fragment\(\"(f\w{5})\"\)", error.remedy):
        edits.restore(state, "".join(fragment_id))
    if "use role 'all'" in error.remedy and error.field == "start_marker":
        works(name, {"role": "all", "end_marker": arguments["start_marker"], "num_fragments": 1})
    if "swap the two" in error.remedy:
        works(name, {"start_marker": arguments["end_marker"], "end_marker": arguments["start_marker"]})
    if instead := re.search(r"Call (\w+) instead", error.remedy):
        works(instead[1], {})
    if known := re.search(r"Known fragments: (.+)\.", error.remedy):
        assert all(state.fragment(fragment_id) for fragment_id in known[1].split(", "))
    if "fragment a longer text around it" in error.remedy:
        num_needed = int(re.findall(r"would stand there has ([\d,]+)", str(error))[0].replace(",", "")) + MARGIN
        place = state.fragment(arguments["fragment_id"]).pieces[0].place
        if place.part is None and pays_as_a_whole(state, place, num_needed):
            whole = cut_messages(state, place.entry, place.entry + 1, bench().tokenizer)
            edits.fold(whole.state, whole.fragments[0].fragment_id, suite, bench().tokenizer)
    if pays := re.search(r"fragment (\d+) tokens or more of its message", error.remedy):
        place = state.fragment(arguments["fragment_id"]).pieces[0].place
        entry = state.entries[place.entry].message
        if place.part is None and pays_as_a_whole(state, place, int(pays[1])):
            whole = cut_messages(state, place.entry, place.entry + 1, bench().tokenizer)
            folded = run_tool(
                whole.state, ToolCall("fold_fragment", {"fragment_id": whole.fragments[0].fragment_id}), bench(suite)
            )
            assert folded.error is None, (str(error), entry, folded.result)


def pays_as_a_whole(state: SessionState, place: Place, num_needed: int) -> bool:
    """Whether a message shows so many tokens, and could be a fragment as it stands."""
    piece = Piece(place, 0, len(state.text_at(place)))
    if len(editable_texts(state.entries[place.entry].message)) > 1:
        return False
    shown = ShownTexts(state, bench().tokenizer).num_tokens(piece)
    return shown >= num_needed and not crossing(state.fragments, [piece]) and not hiding(state.fragments, [piece])


class EditScript(RuleBasedStateMachine):
    """Everything but redaction: it alone cannot be undone."""

    def __init__(self) -> None:
        super().__init__()
        self.state = SessionState(digest_key=KEY)
        self.held: list[Held] = []
        self.script: list[Step] = []
        self.seen: list[tuple[bytes, str]] = []
        self.num_words = 0
        self.redacted: set[str] = set()

    def do(self, step: Step) -> str:
        self.state, result = carry_out(self.state, step)
        self.script.append(step)
        self.seen.append((as_bytes(render(self.state)), result))
        return result

    def client(self) -> list[Message]:
        return [held.message for held in self.held if not held.internal]

    def text(self, data: st.DataObject, max_words: int = 80) -> str:
        """Words that occur nowhere else, with white space, signs and a few repetitions between them."""
        parts = []
        for _ in range(max_words - data.draw(st.integers(0, max_words - 1), "words fewer")):
            self.num_words += 1
            parts.append(f"w{self.num_words}x ")
            if self.num_words % 4 == 0:
                parts.append(SPICE[self.num_words // 4 % len(SPICE)])
        return "".join(parts)

    def message(self, data: st.DataObject) -> Message:
        role = data.draw(st.sampled_from(["user", "user", "user", "assistant", "tool", "system"]), "role")
        shape = data.draw(st.sampled_from(["string", "string", "parts", "call", "call"]), "shape")
        if shape == "string":
            return {"role": role, "content": self.text(data)}
        if shape == "parts":
            image = {"type": "image_url", "image_url": {"url": self.text(data, 1)}}
            return {
                "role": role,
                "content": [{"type": "text", "text": self.text(data)}, image, self.text(data, 5), {"type": "text"}],
            }
        arguments = {"a": {"b": [1.5e3, None, self.text(data)]}, "command": self.text(data, 1), "z": self.text(data)}
        written = json.dumps(arguments, ensure_ascii=data.draw(st.booleans(), "ascii"))
        function = {"name": "run", "arguments": written if data.draw(st.integers(0, 3), "object") else arguments}
        content = self.text(data, 20) if data.draw(st.booleans(), "speaks") else None
        return {"role": "assistant", "content": content, "tool_calls": [{"id": "c1", "function": function}]}

    def rewind(self, num_messages: int) -> None:
        """The picture after the client cut its history: internal messages stay exactly as long as their answer."""
        kept, known = [], 0
        for held in self.held:
            if not held.internal and known == num_messages:
                break
            known += not held.internal
            kept.append(held)
        answered = {held.turn for held in kept if not held.internal}
        self.held = [held for held in kept if not held.internal or held.turn in answered]

    def send(self, new: list[Message]) -> None:
        limit = len(self.held)
        stays = [f for f in self.state.fragments if all(piece.place.entry < limit for piece in f.pieces)]
        self.held += [Held(message) for message in new]
        self.do(Step("adopt", self.client()))
        assert [f for f in self.state.fragments if f.visibility is not Visibility.REDACTED] == [
            f for f in stays if f.visibility is not Visibility.REDACTED
        ]

    @initialize(data=st.data())
    def first_message(self, data: st.DataObject) -> None:
        self.send([{"role": "user", "content": self.text(data, 200)}])

    @rule(data=st.data())
    def client_writes_on(self, data: st.DataObject) -> None:
        self.send([self.message(data) for _ in range(data.draw(st.integers(1, 3), "messages"))])

    @rule()
    def client_resends_in_other_words(self) -> None:
        before = self.state
        self.held = [h if h.internal else replace(h, message=respelled(h.message)) for h in self.held]
        self.do(Step("adopt", self.client()))
        assert (self.state.fragments, self.state.hits) == (before.fragments, before.hits)

    @rule(data=st.data())
    def client_rewinds_or_diverges(self, data: st.DataObject) -> None:
        num_dropped = data.draw(st.integers(0, len(self.client()) - 1), "dropped messages")
        self.rewind(len(self.client()) - (num_dropped if data.draw(st.booleans(), "many") else min(num_dropped, 2)))
        self.send([self.message(data) for _ in range(data.draw(st.integers(0, 2), "new messages"))])

    @rule(data=st.data())
    def server_answers(self, data: st.DataObject) -> None:
        turn = self.state.num_turns
        internal = [self.message(data) for _ in range(data.draw(st.integers(0, 2), "internal"))]
        answer = {"role": "assistant", "content": self.text(data), RESPONSE_ID: f"r{len(self.script)}"}
        self.held += [*(Held(message, turn, internal=True) for message in internal), Held(answer, turn)]
        self.do(Step("turn", (internal, answer)))

    @precondition(lambda self: any(RESPONSE_ID in message for message in self.client()))
    @rule(data=st.data(), instructions=st.sampled_from(["none", "same", "longer", "longer", "other", "other"]))
    def client_names_an_answer(self, data: st.DataObject, instructions: str) -> None:
        """Its history stands in the session. What goes with the instructions, or behind the answer, is told."""
        names = [message[RESPONSE_ID] for message in reversed(self.client()) if RESPONSE_ID in message]
        name = data.draw(st.sampled_from(names), "answer")
        before, client = self.state, self.client()
        self.rewind(next(at for at, message in enumerate(client) if message.get(RESPONSE_ID) == name) + 1)
        num_left = len(self.held)
        own = [held for held in self.held[:1] if held.message["role"] == "system"]
        text = own[0].message["content"] if own else ""
        text = text if isinstance(text, str) else ""
        text = {"none": "", "same": text, "longer": f"{self.text(data, 9)}{text}"}.get(instructions, self.text(data))
        new = [{"role": "user", "content": self.text(data)}]
        head = [{"role": "system", "content": text}] if text else []
        self.held = [*map(Held, head), *self.held[len(own) :], *map(Held, new)]
        if own and instructions == "same" and text:
            self.held[0] = own[0]
        told = self.do(Step("go on", (name, [*head, *new])))
        left = {fragment.fragment_id for fragment in self.state.fragments}
        lost = [f.fragment_id for f in before.fragments if f.fragment_id not in left]
        assert all(fragment_id in told for fragment_id in lost)
        if num_left == len(before.entries) and self.held[: len(own)] == own and len(head) == len(own):
            assert told.endswith(" ()")
        assert state_from(state_value(self.state), "here") == self.state

    @rule(data=st.data(), suite=st.sampled_from(editing_suites()), role=st.sampled_from(["user", "assistant", "all"]))
    def fragment(self, data: st.DataObject, suite: str, role: str) -> None:
        start = end = self.words_of(data)
        in_calls = [text for _, part, text in texts_of(self.state, role) if isinstance(part, ArgumentPart)]
        here = [text for _, _, text in texts_of(self.state, role)]
        here = in_calls if in_calls and data.draw(st.booleans(), "in arguments") else here
        if here and data.draw(st.integers(0, 4), "wrong markers") < 4:
            first = data.draw(st.integers(0, len(here) - 1), "first")
            last = data.draw(st.integers(first, min(first + 2, len(here) - 1)), "last")
            offset = data.draw(st.integers(0, max(0, len(here[first]) - 9)), "offset")
            start, end = here[first][offset : offset + 9], here[last][-data.draw(st.integers(3, 30), "end") :]
        arguments: dict[str, Any] = {"start_marker": start, "end_marker": end, "role": role}
        arguments["num_fragments"] = data.draw(st.sampled_from([1, 1, "2", 3, 20, 21]), "num_fragments")
        self.do(Step("tool", (suite, "fragment_context", arguments, None)))

    @precondition(lambda self: self.state.fragments)
    @rule(data=st.data())
    def fold(self, data: st.DataObject) -> None:
        self.do(Step("tool", ("sculptor", "fold_fragment", {"fragment_id": self.fragment_id(data)}, None)))

    @precondition(lambda self: self.state.fragments)
    @rule(data=st.data(), suite=st.sampled_from(editing_suites()))
    def change_a_fragment(self, data: st.DataObject, suite: str) -> None:
        names = [name for name in tool_names(suite) if name in CHANGING]
        arguments = {"fragment_id": self.fragment_id(data)}
        name = data.draw(st.sampled_from(names), "tool")
        if "summar" in name and name != "revert_summary":
            arguments["focus"] = data.draw(st.sampled_from(["keys", "keys", "values", "values", ""]), "focus")
        supplied = data.draw(st.sampled_from(["short", "short", "a summary\nof two lines", " ", None]), "summary")
        self.do(Step("tool", (suite, name, arguments, supplied)))

    @rule(data=st.data(), kind=st.sampled_from([EditKind.FOLD, EditKind.FOLD, EditKind.RESTORE]))
    def edit_in_a_batch(self, data: st.DataObject, kind: EditKind) -> None:
        start = data.draw(st.integers(-1, len(self.held)), "start")
        messages = Edit(kind, messages=(start, start + data.draw(st.integers(0, 2), "length")))
        self.do(Step("batch", [messages, *([Edit(kind, self.fragment_id(data))] * data.draw(st.booleans(), "two"))]))

    @rule(data=st.data(), name=st.sampled_from(["fold_fragment", "fold_fragment", "fold_fragment", "restore_fragment"]))
    def edit_that_waits(self, data: st.DataObject, name: str) -> None:
        """Folds of texts that are long enough to pay."""
        text = max((text for _, _, text in texts_of(self.state, "all")), key=len, default="nowhere")
        cut = {"start_marker": text[:9], "end_marker": text[-9:], "role": "all", "num_fragments": 1}
        self.do(Step("wait", ("sculptor", "fragment_context", cut, None)))
        long = [f.fragment_id for f in self.state.fragments if f.num_tokens > 100 or f.waits]
        chosen = data.draw(st.sampled_from(long), "long") if long else self.fragment_id(data)
        before = self.state
        self.do(Step("wait", ("sculptor", name, {"fragment_id": chosen}, None)))
        was = next((f for f in before.fragments if f.fragment_id == chosen), None)
        if was is not None and was.hidden and not was.waits:
            assert not self.state.fragment(chosen).waits, "its text is gone from the prompt already"
        elif name == "fold_fragment":
            assert as_bytes(render(self.state)) == as_bytes(render(before)), "the prompt shows it later"

    @precondition(lambda self: waiting(self.state))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.do(Step("commit", data.draw(st.sampled_from([0, 1]), "how many wait on")))

    @precondition(lambda self: len(self.state.fragments) > 3)
    @rule()
    def restore_context(self) -> None:
        self.do(Step("tool", ("sculptor-v1", "restore_context", {}, None)))
        assert all(fragment.visibility is Visibility.REDACTED for fragment in self.state.fragments)

    @rule(data=st.data(), role=st.sampled_from(["user", "assistant", "all"]), upper=st.booleans())
    def search(self, data: st.DataObject, role: str, upper: bool) -> None:
        query = self.words_of(data)
        query = query.upper() if upper else query
        self.do(Step("tool", ("sculptor", "search_context", {"query": query, "role": role}, None)))

    @precondition(lambda self: self.state.hits)
    @rule(data=st.data())
    def look_closer(self, data: st.DataObject) -> None:
        hits = [hit.search_id for hit in self.state.hits[-3:]]
        search_id = data.draw(st.sampled_from([*hits, "s00000"]), "hit")
        self.do(Step("tool", ("sculptor", "get_search_detail", {"search_id": search_id}, None)))

    def fragment_id(self, data: st.DataObject) -> str:
        """One that exists where there is one, the later ones first, and now and then another."""
        known = [f.fragment_id for f in reversed(self.state.fragments)]
        if not known or data.draw(st.integers(0, 9), "unknown") == 9:
            return "f00000"
        return data.draw(st.sampled_from(known), "fragment")

    def words_of(self, data: st.DataObject) -> str:
        """A stretch of some text of the conversation, now and then one that is nowhere."""
        everything = [text for entry in self.state.entries for _, text in editable_texts(entry.message)]
        text = data.draw(st.sampled_from([*everything, "nowhere"]), "text")
        start = data.draw(st.integers(0, len(text) - 1), "start")
        return text[start : start + data.draw(st.integers(1, 12), "length")]

    @invariant()
    def nothing_is_broken(self) -> None:
        self.state.check_integrity()
        rendered = render(self.state)
        assert len(self.state.entries) == len(rendered) == len(self.held)
        for shown, held in zip(rendered, self.held, strict=True):
            assert without_texts(shown, held.message) == without_texts(held.message, held.message)
        for place, hidden in hidden_pieces(self.state).items():
            shown_here = text_at(rendered[place.entry], place.part)
            assert all(text in shown_here for _, text in hidden)
            num_gone = sum(piece.end - piece.start - len(text) for piece, text in hidden)
            assert len(shown_here) == len(self.state.text_at(place)) - num_gone

    @invariant()
    def visible_text_can_be_fragmented(self) -> None:
        """Whatever the model sees and was not told to leave: any two stretches of it may be the markers."""
        draw = random.Random(len(self.script))
        visible = visible_stretches(self.state)
        if not visible:
            return
        first = draw.randrange(len(visible))
        last = draw.randrange(first, min(first + 4, len(visible)))
        start, end = markers_in(visible[first], draw)
        end = end if first == last else markers_in(visible[last], draw)[1]
        arguments = {"start_marker": start, "end_marker": end, "role": "all", "num_fragments": draw.randint(1, 5)}
        outcome = run_tool(self.state, ToolCall("fragment_context", arguments), bench())
        assert outcome.error is None, (arguments, outcome.result)
        outcome.state.check_integrity()
        assert outcome.fragment_ids
        assert not any(outcome.state.fragment(name).hidden for name in outcome.fragment_ids)

    @invariant()
    def what_waits_is_shown_and_hidden_once_it_takes_effect(self) -> None:
        names = {fragment.fragment_id for fragment in waiting(self.state)}
        seen = replace(self.state, fragments=tuple(f for f in self.state.fragments if f.fragment_id not in names))
        assert as_bytes(render(self.state)) == as_bytes(render(seen))
        landed = committed(self.state)
        assert waiting(landed) == ()
        if names:
            landed.check_integrity()
            assert state_from(state_value(self.state), "here") == self.state

    @invariant()
    def hidden_text_comes_back_in_any_order(self) -> None:
        hidden = [f.fragment_id for f in self.state.fragments if f.visibility in HIDING]
        random.Random(len(self.script)).shuffle(hidden)
        state = self.state
        for fragment_id in hidden:
            state = edits.restore(state, fragment_id)
        self.check_shows_everything(render(state))
        self.check_shows_everything(render(edits.restore_all(self.state)))

    def check_shows_everything(self, rendered: list[Message]) -> None:
        """The very objects of the client: what was never edited, or was edited and restored, is not even copied."""
        assert all(shown is held.message for shown, held in zip(rendered, self.held, strict=True))

    @invariant()
    def what_is_told_of_an_edit_is_what_it_does(self) -> None:
        """A token is a character here, so the sums have to agree to the last one."""
        state = committed(self.state)
        for fragment in state.fragments[-8:]:
            other = edits.folded(state, fragment, "sculptor")
            if fragment.hidden:
                other = replace(fragment, visibility=Visibility.VISIBLE, shown=None, focus=None)
            if fragment.visibility is Visibility.REDACTED:
                continue
            after = state.replace_fragment(other)
            effect = effect_of(state, after, "exact", Characters())
            shown, then = characters(state), characters(after)
            assert effect.num_saved == len(shown) - len(then)
            same = next((at for at, (a, b) in enumerate(zip(shown, then, strict=False)) if a != b), len(then))
            assert len(then) - same <= effect.cost.num_computed
            moved = effect_of(state, after, "reuse", Characters()).cost
            assert moved.num_computed + moved.num_moved == effect.cost.num_computed

    def teardown(self) -> None:
        state = SessionState(digest_key=KEY)
        for step, seen in zip(self.script, self.seen, strict=True):
            state, result = carry_out(state, step)
            assert (as_bytes(render(state)), result) == seen
        assert state == self.state


class RedactionScript(EditScript):
    """The same with redactions: what is redacted is gone from everything that the session keeps, and stays gone.

    The client keeps its own copy and resends it at every turn. The session recognises it and keeps the redacted one.
    """

    @rule(data=st.data())
    @precondition(lambda self: any(f.visibility is not Visibility.REDACTED for f in self.state.fragments))
    def redact(self, data: st.DataObject) -> None:
        alive = [f for f in self.state.fragments if f.visibility is not Visibility.REDACTED]
        fragment = data.draw(st.sampled_from(alive), "fragment")
        gone = self.state.fragment_text(fragment)
        self.redacted |= {word for word in gone.split() if word[0] == "w" and word[-1] == "x" and len(word) > 2}
        before = len(self.state.entries)
        self.do(Step("batch", [Edit(EditKind.REDACT, fragment.fragment_id)]))
        assert len(self.state.entries) == before
        assert self.state.fragment(fragment.fragment_id).visibility is Visibility.REDACTED

    def check_shows_everything(self, rendered: list[Message]) -> None:
        redacted = pieces_by_place(self.state, Visibility.REDACTED)
        shown_there = hidden_pieces(edits.restore_all(self.state))
        for index, (shown, held) in enumerate(zip(rendered, self.held, strict=True)):
            here = [place for place in redacted if place.entry == index]
            if not here:
                assert shown is held.message or self.state.entries[index].sealed
                continue
            expected = dict(editable_texts(held.message))
            expected |= {place.part: splice(expected[place.part], shown_there[place]) for place in here}
            assert {part: text_at(shown, part) for part in expected} == expected

    @invariant()
    def the_redacted_is_gone(self) -> None:
        kept = set(re.findall(r"w\d+x", repr((self.state.entries, self.state.fragments, render(self.state)))))
        assert not kept & self.redacted
        for word in sorted(self.redacted)[:3]:
            found = run_tool(self.state, ToolCall("search_context", {"query": word, "role": "all"}), bench())
            assert found.result.startswith("No match")


def respelled(message: Message) -> Message:
    """The same message as another client library would send it."""
    copy: dict[str, Any] = {**message, "tool_calls": message.get("tool_calls"), "refusal": None, "name": ""}
    if copy["tool_calls"]:
        calls: list[Mapping[str, Any]] = copy["tool_calls"]
        copy["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": spelled_anew(call["function"]["arguments"])}}
            for call in calls
        ]
    return copy


def spelled_anew(arguments: Any) -> Any:
    """The same arguments with other white space, keys in another order, and other escapes."""
    read = json.loads(arguments) if isinstance(arguments, str) else arguments
    turned = dict(reversed(read.items()))
    return json.dumps(turned, separators=(" ,", ":  ")) if isinstance(arguments, str) else turned


def without_texts(message: Message, original: Message) -> Message:
    """What an edit never touches. Fields that are empty do not count, and a redacted entry keeps its first spelling."""
    parts: list[Part] = [part for part, _ in editable_texts(original)]
    bare = with_texts(message, dict.fromkeys(parts, ""))
    calls = [(call["id"], call["function"]["name"], arguments_of(call)) for call in bare.get("tool_calls") or ()]
    return {name: value for name, value in bare.items() if value and name != "tool_calls"} | {"calls": calls}


def arguments_of(call: Mapping[str, Any]) -> Any:
    """The arguments as a template reads them: whatever was folded, they are JSON."""
    arguments = call["function"]["arguments"]
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def characters(state: SessionState) -> str:
    """All that the model reads."""
    return "".join(
        written_text(text_at(shown, part), part)
        for entry, shown in zip(state.entries, render(state), strict=True)
        for part, _ in editable_texts(entry.message)
    )


def visible_stretches(state: SessionState) -> list[str]:
    """The texts between what is hidden, without white space around them."""
    hidden = pieces_by_place(state, *HIDDEN)
    found = []
    for entry, part, text in texts_of(state, "all"):
        for start, end in stretches(len(text), hidden.get(Place(entry, part), ())):
            found.append(text[start:end])
    return [text for text in found if text.strip()]


def markers_in(text: str, draw: random.Random) -> tuple[str, str]:
    """Two markers in a text, the second one not before the first one, and none of them blank."""
    words = [match.span() for match in re.finditer(r"\S+", text)]
    first = draw.randrange(len(words))
    last = draw.randrange(first, len(words))
    return text[slice(*words[first])], text[words[last][0] : words[last][1]]


@pytest.mark.parametrize("machine", [EditScript, RedactionScript])
def test_random_edit_scripts(machine: type[EditScript]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=25 * FACTOR, stateful_step_count=30, deadline=None)
    )
