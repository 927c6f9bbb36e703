"""The ways in which real agents speak, without installing them. `make clients` drives the agents themselves."""

from __future__ import annotations

import uuid

import pytest

from acmserve.bench.models.scripted_model import UNSCRIPTED
from tests.support import http
from tests.support.clients import facts
from tests.support.clients.recorder import Exchange
from tests.support.clients.shapes import SPEAKERS, WITH_IDS, Shape


def say(url: str, shape: Shape) -> Exchange:
    answer = http.post(url + shape.path, json=shape.body, headers=dict(shape.headers))
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return Exchange("POST", shape.path, dict(shape.headers), shape.body, answer.status_code, headers, answer.text)


@pytest.mark.parametrize("speaker", SPEAKERS)
def test_every_request_of_a_client_is_answered(scripted_server: str, speaker: str) -> None:
    for shape in SPEAKERS[speaker](uuid.uuid4().hex):
        answer = say(scripted_server, shape)
        assert answer.status == 200, f"{shape.name}: {answer.answer[:400]}"
        assert facts.said(answer) == UNSCRIPTED, shape.name
        is_mute = "stream" in shape.body and "completions" in shape.path and "stream_options" not in shape.body
        assert is_mute or facts.prompt_tokens(answer), f"{shape.name}: no usage"


@pytest.mark.parametrize("speaker", WITH_IDS)
def test_a_client_that_names_its_session_has_it(scripted_server: str, speaker: str) -> None:
    session = uuid.uuid4().hex
    answers = [say(scripted_server, shape) for shape in SPEAKERS[speaker](session) if not shape.side]
    assert {facts.session_of(answer) for answer in answers} == {session}
    assert http.get(f"{scripted_server}/v1/acm/sessions/{session}").status_code == 200
    kept = [(facts.acm_of(answer) or {})["receipt"]["kept_tokens"] for answer in answers]
    assert kept[1] > 0, "the second request goes on where the first one ended"


@pytest.mark.parametrize("speaker", WITH_IDS)
def test_what_stands_beside_the_conversation_has_a_thread_of_its_own(scripted_server: str, speaker: str) -> None:
    """In the client's order, so that side requests stand between those of the conversation."""
    session = uuid.uuid4().hex
    found = [(shape, facts.session_of(say(scripted_server, shape))) for shape in SPEAKERS[speaker](session)]
    main = {name for shape, name in found if not shape.side}
    assert len(main) == 1
    assert None not in main
    # A title that comes first has the plain id until the conversation begins, which takes it over.
    first = next(number for number, (shape, _) in enumerate(found) if not shape.side)
    assert not main & {name for shape, name in found[first:] if shape.side}
