"""Many small texts are looked through as one, and what is found is what each one alone would say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.alignment import redacted_index
from acmserve.context.alignment.core_text import CoreText
from acmserve.context.alignment.redacted_index import RedactedIndex
from acmserve.context.alignment.redacted_text import RedactedText, seal_text
from acmserve.context.session.carrying.redactions import EntryRedactions, cut_each, cut_redacted
from acmserve.context.session.history import adopt
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from tests.support.context.conversation import KEY, assistant, user

WORDS = st.lists(st.sampled_from(["=", "ab", "a b\n", "abc", "a" * 15 + "b", "xyz", " "]), min_size=1, max_size=30)
SECRETS = st.lists(WORDS.map("".join).filter(str.strip), min_size=1, max_size=6)
NUM = 10_000


def sealed(text: str, name: str) -> RedactedText:
    found = seal_text(text, KEY, name, "user", 9)
    assert found is not None
    return found


def forged(secret: RedactedText) -> RedactedText:
    """One whose hashes are true, and whose digests are not."""
    blocks = secret.blocks
    return replace(secret, blocks=b"".join(blocks[at : at + 8] + bytes(8) for at in range(0, len(blocks), 16)))


@st.composite
def told(draw: st.DrawFn, secrets: list[str]) -> list[str]:
    """Texts in which secrets stand whole, in part, and across the seam of two texts."""
    pieces = draw(st.lists(st.one_of(WORDS.map("".join), st.sampled_from(secrets)), max_size=12))
    whole = "".join(pieces)
    seams = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    return [whole[start:end] for start, end in zip([0, *seams], [*seams, len(whole)], strict=True)]


@settings(max_examples=100, deadline=None)
@given(SECRETS, st.data())
def test_it_finds_together_what_it_finds_in_each(secrets: list[str], data: st.DataObject) -> None:
    """Whatever is made up, however soon a search ends for that, and wherever a batch ends."""
    hidden = [sealed(text, f"f{number % 4}") for number, text in enumerate(secrets)]
    hidden = [forged(text) if data.draw(st.booleans()) else text for text in hidden]
    places = st.frozensets(st.sampled_from([text.fragment_id for text in hidden]))
    sought = [(CoreText(user(text)), data.draw(places)) for text in data.draw(told(secrets))]
    index = RedactedIndex(hidden, KEY)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(redacted_index, "_MAX_FALSE", data.draw(st.sampled_from([1, 2, 256])))
        alone = [index.find(text, in_place) for text, in_place in sought]
        patched.setattr(redacted_index, "_NUM_AT_ONCE", data.draw(st.integers(1, 100)))
        assert index.find_each(sought) == alone


@settings(max_examples=50, deadline=None)
@given(SECRETS, st.data())
def test_it_cuts_together_what_it_cuts_out_of_each_message(secrets: list[str], data: st.DataObject) -> None:
    hidden = [sealed(text, f"f{number % 4}") for number, text in enumerate(secrets)]
    names = st.frozensets(st.sampled_from([text.fragment_id for text in hidden]))
    index = RedactedIndex(hidden, KEY)
    sent: list[tuple[Message, EntryRedactions]] = []
    for text in data.draw(told(secrets)):
        arguments = data.draw(
            st.sampled_from([json.dumps({"a": [text, text]}), json.dumps({text: 1}), text, {"a": text}])
        )
        message = data.draw(st.sampled_from([user(text), assistant([{"type": "text", "text": text}, text])]))
        if data.draw(st.booleans()):
            message = assistant(None) | {"tool_calls": [call("c", arguments), call("d", "{}")]}
        sent.append((message, EntryRedactions(data.draw(names), data.draw(names))))
    assert cut_each(sent, index) == [cut_redacted(message, index, in_place) for message, in_place in sent]


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "write", "arguments": arguments}}


def strings(texts: list[str]) -> list[Message]:
    return [assistant(None) | {"tool_calls": [call("c", json.dumps({"a": texts}))]}]


def calls(texts: list[str]) -> list[Message]:
    return [
        assistant(None) | {"tool_calls": [call(str(number), json.dumps({"a": t})) for number, t in enumerate(texts)]}
    ]


def messages(texts: list[str]) -> list[Message]:
    return [user(text) for text in texts]


@pytest.mark.parametrize("form", [strings, calls, messages])
def test_many_small_texts_cost_no_more_passes_than_a_long_one(
    form: Callable[[list[str]], list[Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nine lengths of blocks. A search of a text is one look-up of its hashes for each."""
    redacted = tuple(sealed("0123456789abcdef"[:num], f"f{num}") for num in range(8, 17))
    state = adopt(SessionState(digest_key=KEY, redacted=redacted), []).state
    texts = [f"small text {number}" for number in range(NUM)]
    num_passes = 0
    search = np.searchsorted

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_passes
        num_passes += 1
        return search(*args, **kwargs)

    monkeypatch.setattr(np, "searchsorted", counted)
    adopt(state, [user("".join(texts))])
    num_of_one, num_passes = num_passes, 0
    adopted = adopt(state, form(texts)).state
    assert num_of_one >= 9
    assert num_passes <= 10 * num_of_one
    assert [entry.sealed for entry in adopted.entries] == [False] * len(adopted.entries)
