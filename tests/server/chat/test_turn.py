"""Sticky edits on the real server: the client resends its history as it always does, the session's edits stay.

The scripted model stands in for a chat model. It says "Noted." to every request without a script, so answers do not
distract from what is tested. Engine, KV cache, template and tokenizer are real. Fidelity is `exact`, where not said.
"""

from __future__ import annotations

import openai
import pytest
from openai import OpenAI

from tests.support import http
from tests.support.server.chat_session import HISTORY, LOG, Session
from tests.support.server.scripted_server import MODEL

BLOCK = 128


@pytest.fixture
def session(scripted_client: OpenAI, scripted_server: str) -> Session:
    return Session(scripted_client, scripted_server)


def test_a_session_without_edits_is_asked_what_the_client_sent(session: Session, scripted_client: OpenAI) -> None:
    receipt = session.chat()
    plain = scripted_client.chat.completions.create(model=MODEL, messages=HISTORY, max_tokens=8)  # type: ignore[arg-type]
    assert plain.usage is not None
    assert receipt["prompt_tokens"] == plain.usage.prompt_tokens
    assert [m["message"] for m in session.context["messages"][:2]] == HISTORY


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_answer_is_recorded_and_found_again(session: Session, stream: bool) -> None:
    session.chat(stream)
    context = session.context
    assert [m["origin"] for m in context["messages"]] == ["client", "client", "answer"]
    assert context["messages"][2]["message"]["content"] == session.history[2]["content"] == "Noted."
    session.say("Thank you.")
    second = session.chat(stream)
    assert [m["origin"] for m in session.context["messages"]] == ["client", "client", "answer", "client", "answer"]
    # "Noted.", the end of its message, the new message, the beginning of the answer.
    assert second["computed_tokens"] < 25
    assert {m["kv"] for m in session.context["messages"][:4]} == {"kept"}


def test_a_fold_stays_although_the_client_resends_everything(session: Session) -> None:
    before = session.chat()
    first, second, *_ = session.cut()
    edited = session.edit({"op": "fold", "fragment_id": first}, {"op": "fold", "fragment_id": second})
    hidden = edited["tokens_before"] - edited["tokens_after"]
    session.say("And now?")
    after = session.chat()
    assert after["prompt_tokens"] == pytest.approx(before["prompt_tokens"] - hidden + 20, abs=15)
    assert "log begins" not in session.context["messages"][1]["message"]["content"]
    session.say("And then?")
    again = session.chat()
    assert again["computed_tokens"] < 25, "the edited prefix is cached"


def test_a_restore_shows_the_original_to_the_byte_and_finds_its_blocks(session: Session) -> None:
    session.chat()
    ids = session.cut()
    session.edit(*({"op": "fold", "fragment_id": fragment_id} for fragment_id in ids))
    session.chat()
    session.edit(*({"op": "restore", "fragment_id": fragment_id} for fragment_id in reversed(ids)))
    assert session.context["messages"][1]["message"] == HISTORY[1]
    session.history = list(HISTORY)
    receipt = session.chat()
    assert receipt["computed_tokens"] == 1, "the original blocks are still cached"


def test_folds_under_reuse_move_the_text_behind_them_once(session: Session) -> None:
    session.chat()
    ids = session.cut()
    session.edit({"op": "fold", "fragment_id": ids[0]}, {"op": "fold", "fragment_id": ids[1]})
    receipt = session.chat(acm={"fidelity": "reuse"})
    assert len(receipt["moves"]) == 1
    assert receipt["moved_tokens"] > 700
    assert receipt["computed_tokens"] < 120
    kv = [m["kv"] for m in session.context["messages"]]
    assert kv[0] == "kept"
    assert kv[1] == "partly moved"


def test_a_diverging_history_keeps_the_edits_before_it(session: Session) -> None:
    session.chat()
    first, *_ = session.cut()
    session.edit({"op": "fold", "fragment_id": first})
    session.say(f"Another log begins here. {LOG} It ends here.")
    session.chat()
    markers = {"start_marker": "Another log", "end_marker": "It ends here.", "num_fragments": 1}
    (later,) = session.post("tools/fragment_context", {"arguments": markers}).json()["fragment_ids"]
    session.edit({"op": "fold", "fragment_id": later})
    session.history = [*session.history[:3], {"role": "user", "content": "Forget that. What else?"}]
    session.chat()
    states = {f["fragment_id"]: f["state"] for f in session.context["fragments"]}
    assert states[first] == "folded"
    assert later not in states


def test_a_request_that_fails_changes_nothing(session: Session) -> None:
    session.chat()
    before = session.context
    session.history = [{"role": "user", "content": LOG * 30}]
    with pytest.raises(openai.BadRequestError):
        session.chat()
    assert session.context == before


def test_a_first_request_that_fails_leaves_no_session(session: Session) -> None:
    session.history = [{"role": "user", "content": LOG * 30}]
    with pytest.raises(openai.BadRequestError):
        session.chat()
    assert http.get(session.url, headers={"X-Cache-Salt": session.name}).status_code == 404


def test_a_redaction_is_computed_exactly_and_cannot_be_undone(session: Session) -> None:
    session.chat(acm={"fidelity": "reuse"})
    first, second, *_ = session.cut()
    session.edit({"op": "redact", "fragment_id": second})
    receipt = session.chat(acm={"fidelity": "reuse"})
    assert receipt["moved_tokens"] == 0
    text = session.context["messages"][1]["message"]["content"]
    assert f"[redacted {second}: " in text
    assert "line 30:" not in text
    refused = session.post("edits", {"edits": [{"op": "restore", "fragment_id": second}]})
    assert refused.status_code == 409
    found = session.post("tools/search_context", {"arguments": {"query": "line 30:"}}).json()
    assert "No match" in found["result"]
    session.edit({"op": "fold", "fragment_id": first})
    assert session.chat(acm={"fidelity": "reuse"})["moved_tokens"] > 0, "what was computed since may be moved"


def test_a_search_result_costs_its_own_tokens_only(session: Session) -> None:
    session.chat()
    result = session.post("tools/search_context", {"arguments": {"query": "line 33:"}}).json()["result"]
    session.say(f"Your search found: {result}")
    receipt = session.chat()
    num_appended = receipt["prompt_tokens"] - receipt["kept_tokens"]
    assert receipt["computed_tokens"] == num_appended < 250


def test_sessions_of_another_salt_do_not_exist(session: Session) -> None:
    session.chat()
    assert http.get(f"{session.url}/context").status_code == 404
    assert http.get(f"{session.url}/context", headers={"X-Cache-Salt": "other"}).status_code == 404


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("tools", [{}, {"acm": {"tools": "sculptor"}}], ids=["once", "loop"])
def test_a_fold_survives_a_changed_system_message(session: Session, stream: bool, tools: dict[str, object]) -> None:
    """A git status that is taken anew, a text as parts, and an answer without its ends: nothing is lost or told."""
    session.chat(stream, **tools)
    first, second, *_ = session.cut()
    session.edit({"op": "fold", "fragment_id": first}, {"op": "fold", "fragment_id": second})
    text = str(HISTORY[1]["content"])
    session.history = [
        {"role": "system", "content": f"{HISTORY[0]['content']}\nGit status: 3 files changed."},
        {"role": "user", "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": " Noted. "},
        {"role": "user", "content": "And now?"},
    ]
    session.chat(stream, **tools)
    assert "dropped" not in session.acm
    messages = [m["message"]["content"] for m in session.context["messages"]]
    assert messages[0].endswith("3 files changed.")
    assert messages[1][0]["text"].startswith(f"[folded {first}: ")
    assert "log begins" not in str(messages)
    assert {f["state"] for f in session.context["fragments"] if f["fragment_id"] in (first, second)} == {"folded"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("tools", [{}, {"acm": {"tools": "sculptor"}}], ids=["once", "loop"])
def test_a_fold_that_cannot_stay_is_told(session: Session, stream: bool, tools: dict[str, object]) -> None:
    session.chat(stream, **tools)
    first, *_ = session.cut()
    session.edit({"op": "fold", "fragment_id": first})
    session.history = [HISTORY[0], {"role": "user", "content": "Something else altogether."}]
    session.chat(stream, **tools)
    told = {edit["id"]: edit for edit in session.acm["dropped"]}
    assert told[first] == {"kind": "fragment", "id": first, "reason": "its message is no longer in the history."}
    session.say("And now?")
    session.chat(stream, **tools)
    assert "dropped" not in session.acm, "it is told once"


def test_a_redacted_text_stays_out_of_a_message_in_other_words(session: Session) -> None:
    """It comes again glued to a reminder, and in a new message of its own."""
    session.chat()
    _, second, *_ = session.cut()
    (redacted,) = (f for f in session.context["fragments"] if f["fragment_id"] == second)
    assert redacted["state"] == "visible"
    assert "line 30:" in str(session.context["messages"])
    session.edit({"op": "redact", "fragment_id": second})
    text = str(HISTORY[1]["content"])
    session.history = [
        HISTORY[0],
        {"role": "user", "content": [{"type": "text", "text": text}, {"type": "text", "text": "Be brief."}]},
        {"role": "assistant", "content": "Noted."},
        {"role": "user", "content": f"You lost this:\n{text}\nSo note it again."},
    ]
    session.chat()
    shown = str(session.context)
    assert "line 30:" not in shown
    assert shown.count(f"[redacted {second}: ") == 1
    assert f"[{second} continued]" in shown
    assert all(words in shown for words in ("Be brief.", "You lost this:", "So note it again."))
