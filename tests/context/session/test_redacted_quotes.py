"""What becomes of messages that quote a redacted text, as SECURITY.md says it."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import redact
from acmserve.context.session.carrying import redactions
from acmserve.context.session.history import adopt
from acmserve.context.session.state import SessionState
from tests.support.context.conversation import Characters

SECRET = "The launch code of the northern tower is 0451-7782-9913."
ASKED, QUOTE = {"role": "user", "content": SECRET}, {"role": "assistant", "content": f"You said: {SECRET}"}


def test_a_known_message_that_quotes_a_redacted_text_is_cut_when_it_changes() -> None:
    state = cut_messages(adopt(SessionState(), [ASKED, QUOTE]).state, 0, 1, Characters()).state
    state = redact(state, state.fragments[-1].fragment_id)
    for said, is_left in ((QUOTE["content"], True), (f"You said that: {SECRET} Yes.", False)):
        again = adopt(state, [ASKED, QUOTE | {"content": said}, {"role": "user", "content": "Go on."}]).state
        assert [SECRET in str(entry.message["content"]) for entry in again.entries] == [False, is_left, False]


def test_a_message_that_tells_a_redacted_text_a_thousand_times_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    state = cut_messages(adopt(SessionState(), [ASKED, QUOTE]).state, 0, 1, Characters()).state
    state = redact(state, state.fragments[-1].fragment_id)
    num_written = 0
    erase = redactions.erased

    def counted(*args: Any) -> str:
        nonlocal num_written
        num_written += 1
        return erase(*args)

    monkeypatch.setattr(redactions, "erased", counted)
    again = adopt(state, [ASKED, QUOTE, {"role": "user", "content": f"{SECRET}\n" * 1000}]).state
    assert num_written == 1
    assert set(str(again.entries[-1].message["content"])) == {"\x00", "\n"}
