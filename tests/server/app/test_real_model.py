"""Sessions and the tool loop with the bundled model itself, through the unmodified official client.

SmolLM2 does not choose tools by itself. With `first_call_required` vLLM guides it into one, and what it writes then is
its own: mostly a wrong call, which the loop has to survive. What a model does that calls tools well is in
`chat/test_loop.py`, with a scripted one behind the same interface.
"""

from __future__ import annotations

import time
from typing import Any

from openai import OpenAI
from openapi_spec_validator import validate

from acmserve.context.tools.suites import tool_names
from tests.support import http
from tests.support.server.scripts import log_lines, new_session

MODEL = "smollm2"
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": f"The log begins.\n{log_lines(25)}\nThe log ends. What is the capital of France?"}
]


def ask(client: OpenAI, session: str, max_tokens: int = 48, **acm: Any) -> Any:
    body = {"session_id": session, "acm": {"tools": "sculptor", "max_tool_calls": 2, **acm}}
    return client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=max_tokens,
        temperature=0,
        extra_body=body,  # type: ignore[arg-type]
    )


def check_receipts(acm: dict[str, Any]) -> None:
    for step in acm["steps"]:
        receipt = step["receipt"]
        counts = receipt["kept_tokens"] + receipt["moved_tokens"] + receipt["computed_tokens"]
        assert counts == receipt["prompt_tokens"]


def test_the_model_answers_with_tools_at_hand(client: OpenAI) -> None:
    answer = ask(client, new_session(), max_tokens=16, preset="unified")
    acm = answer.model_extra["acm"]
    assert acm["stopped_by"] in ("answer", "length", "max_tool_calls")
    assert answer.choices[0].message.content
    check_receipts(acm)


def test_a_required_first_call_is_carried_out(client: OpenAI) -> None:
    answer = ask(client, new_session(), preset="unified", first_call_required=True)
    acm = answer.model_extra["acm"]
    operations = [operation for step in acm["steps"] for operation in step["operations"]]
    if acm["stopped_by"] != "length":
        assert operations[0]["tool"] in tool_names("sculptor")
        assert operations[0]["result"]
    assert len(operations) <= 2
    check_receipts(acm)


def test_sessions_are_driven_with_the_client_itself(client: OpenAI) -> None:
    name = new_session()
    made = client.post("/acm/sessions", cast_to=dict[str, Any], body={"session_id": name, "messages": MESSAGES})
    assert made["num_messages"] == 1
    arguments = {"start_marker": "The log begins.", "end_marker": "The log ends.", "num_fragments": 1}
    cut = client.post(
        f"/acm/sessions/{name}/tools/fragment_context", cast_to=dict[str, Any], body={"arguments": arguments}
    )
    (fragment_id,) = cut["fragment_ids"]
    edits = [{"op": "summarize", "fragment_id": fragment_id, "focus": "places"}]
    edited = client.post(f"/acm/sessions/{name}/edits", cast_to=dict[str, Any], body={"edits": edits})
    assert edited["tokens_after"] < edited["tokens_before"]
    chat = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=16,
        temperature=0,
        extra_body={"session_id": name},  # type: ignore[arg-type]
    )
    assert chat.usage is not None
    assert chat.usage.prompt_tokens < edited["tokens_before"]
    shown = client.get(f"/acm/sessions/{name}/context", cast_to=dict[str, Any])
    assert f'[summary of {fragment_id}, focus "places"' in shown["messages"][0]["message"]["content"]
    assert shown["messages"][1]["origin"] == "answer"


def test_the_servers_own_document_describes_the_routes(server: str) -> None:
    document = http.get(f"{server}/openapi.json").raise_for_status().json()
    ours = {path: item for path, item in document["paths"].items() if path.startswith("/v1/acm")}
    assert {"/v1/acm/tools", "/v1/acm/sessions", "/v1/acm/sessions/{session_id}/edits"} <= ours.keys()
    validate(document | {"paths": ours})


def test_an_unknown_path_below_ours_is_answered_in_our_words(server: str) -> None:
    answer = http.get(f"{server}/v1/acm/nothing")
    assert answer.status_code == 404
    assert answer.json()["error"]["remedy"]


def test_a_small_model_teaches_its_map(client: OpenAI) -> None:
    """By itself it goes on with a list until it is cut off, and neither query would teach anything."""
    context = new_session()
    told = {"external_context_id": context, "wait": True, "evolve_steps": 2, "update": {"max_tokens": 256}}
    shown = "User: Ann || Instance: How tall is the tower?\nUser: Bert || Instance: Where is Oslo?"
    for question in ("Which line asks for a place?", "Who asks for a number?"):
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"{shown}\n{question}"}],
            max_tokens=16,
            temperature=0,
            extra_body={"session_id": new_session(), "acm": {"map": told}},
        )
    url = f"{str(client.base_url).rstrip('/')}/acm/maps/{context}"
    deadline = time.monotonic() + 6 * http.SECONDS
    while http.get(url).raise_for_status().json()["num_pending"]:
        assert time.monotonic() < deadline, "the last update never ends"
        time.sleep(0.2)
    changes = http.get(f"{url}/history").raise_for_status().json()["data"]
    assert len(changes) == 2
    assert any(change["diagnosis"] and not change["error"] for change in changes)
