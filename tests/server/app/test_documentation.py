"""The OpenAPI document of the whole server says what answers and requests have of ours, and real answers obey it."""

from __future__ import annotations

import copy
import uuid
from dataclasses import fields
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from acmserve.engine.requests.receipt import Receipt
from acmserve.server.app.openapi import ANSWERS, REQUESTS, TOLD
from acmserve.server.options.session_params import ACM_KEYS
from acmserve.server.routes.schemas.receipts import AcmFields, ReceiptView
from tests.support import http
from tests.support.client.kinds import KINDS
from tests.support.client.schema_check import differing, references, undescribed
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import log_lines, new_session, tool_call

LOOP = {"tools": "sculptor", "budget": 20_000}
COMPACT = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 600}}


@pytest.fixture(scope="module")
def document(scripted_server: str) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"{scripted_server}/openapi.json").json()
    return found


def answer_schema(document: dict[str, Any], path: str) -> dict[str, Any]:
    schema: dict[str, Any] = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"][
        "schema"
    ]
    return schema | {"components": document["components"]}


def request_schema(document: dict[str, Any], path: str) -> dict[str, Any]:
    schema: dict[str, Any] = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return schema | {"components": document["components"]}


def problems(schema: dict[str, Any], value: Any) -> list[str]:
    return [error.message[:300] for error in Draft202012Validator(schema).iter_errors(value)]


def bodies(path: str) -> list[dict[str, Any]]:
    """Requests of a session: the least, and what a route has beside it."""
    text = f"{uuid.uuid4().hex}\n{log_lines(40)}"
    history = [{"role": "user", "content": text}, {"role": "assistant", "content": "Noted."}]
    history += [{"role": "user", "content": "Go on."}]
    least = {"model": MODEL, "session_id": new_session(), "acm": {"fidelity": "auto"}}
    xargs = {"script_id": uuid.uuid4().hex, "script": [tool_call("search_context", query="harbour"), "Done."]}
    if path == "/v1/completions":
        return [least | {"prompt": text, "max_tokens": 4}]
    if path == "/v1/responses":
        return [least | {"input": text, "max_output_tokens": 4}]
    asked = least | {"messages": history, "max_tokens": 200}
    if path == "/v1/messages":
        return [asked, asked | {"session_id": new_session(), "context_management": {"edits": [COMPACT]}}]
    return [asked, asked | {"session_id": new_session(), "acm": LOOP, "vllm_xargs": xargs}]


@pytest.mark.parametrize("path", ANSWERS)
def test_answers_are_as_documented(scripted_server: str, document: dict[str, Any], path: str) -> None:
    schema = answer_schema(document, path)
    for body in bodies(path):
        assert problems(request_schema(document, path), body) == []
        answer = http.post(scripted_server + path, json=body)
        assert answer.status_code == 200, answer.text
        payload = answer.json()
        assert problems(schema, payload) == []
        assert payload["acm"]["receipt"]["prompt_tokens"] > 0


@pytest.mark.parametrize("path", ANSWERS)
def test_a_receipt_that_lacks_a_field_is_not_as_documented(
    scripted_server: str, document: dict[str, Any], path: str
) -> None:
    """The control: the schema of `acm` is looked into."""
    payload = http.post(scripted_server + path, json=bodies(path)[0]).json()
    for spoiled in ("kept_tokens", "moves", "session_id"):
        wrong = copy.deepcopy(payload)
        del (wrong["acm"] if spoiled == "session_id" else wrong["acm"]["receipt"])[spoiled]
        assert problems(answer_schema(document, path), wrong) != [], spoiled


@pytest.mark.parametrize("path", TOLD)
def test_answers_without_a_receipt_are_as_documented(scripted_server: str, document: dict[str, Any], path: str) -> None:
    said = {"messages" if "messages" in path else "input": [{"role": "user", "content": log_lines(30)}]}
    schema, session = answer_schema(document, path), new_session()
    answer = http.post(scripted_server + path, json={"model": MODEL, "session_id": session, **said})
    assert answer.status_code == 200, answer.text
    payload = answer.json()
    assert problems(schema, payload) == []
    assert payload["acm"] == {"session_id": session, "found_by": "session_id"}
    assert answer.headers["X-ACM-Receipt"] == f"session={session}; found_by=session_id"
    del payload["acm"]["found_by"]
    assert problems(schema, payload) != [], "the control"
    plain = http.post(scripted_server + path, json={"model": MODEL, **said}).json()
    assert problems(schema, plain) == []
    assert "acm" not in plain


def test_the_headers_are_documented(document: dict[str, Any]) -> None:
    for path in (*ANSWERS, *TOLD):
        headers = document["paths"][path]["post"]["responses"]["200"]["headers"]
        assert "`found_by`" in headers["X-ACM-Receipt"]["description"]


@pytest.mark.parametrize("path", REQUESTS)
def test_requests_show_our_fields(document: dict[str, Any], path: str) -> None:
    schema = request_schema(document, path)
    shown = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]
    assert set(REQUESTS[path]) <= set(shown)
    assert all(shown[name]["description"] for name in REQUESTS[path])
    prompt = {"input": "Hi."} if path == "/v1/responses" else {"prompt": "Hi.", "messages": [], "max_tokens": 1}
    valid = {"model": MODEL, "session_id": "s", **prompt}
    assert problems(schema, valid) == []
    assert problems(schema, valid | {"session_id": 7}) != []
    if "acm" in REQUESTS[path]:
        assert problems(schema, valid | {"acm": {"fidelity": "best"}}) != []
        assert problems(schema, valid | {"acm": {"fidelty": "exact"}}) != []


def test_every_field_of_ours_is_described_on_every_route(document: dict[str, Any]) -> None:
    """`acm`, `context_management` and the receipt, in requests and answers, down to the last field."""
    schemas, seen = document["components"]["schemas"], set[str]()
    shown = [(request_schema(document, path), names) for path, names in REQUESTS.items()]
    shown += [(answer_schema(document, path), ("acm",)) for path in TOLD]
    for path in ANSWERS:
        is_edited = path != "/v1/completions"
        shown.append((answer_schema(document, path), ("acm", "context_management") if is_edited else ("acm",)))
    for schema, names in shown:
        properties = schemas[schema["$ref"].rpartition("/")[2]]["properties"]
        for name in names:
            assert properties[name]["description"], (schema["$ref"], name)
            for reference in references(properties[name]):
                assert list(undescribed(reference, schemas, seen)) == []
    assert {"ReceiptView", "StepView", "AcmFields", "AppliedEditView", "CompactionEntry", "BudgetReportView"} <= seen


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_client_reads_what_the_server_documents(document: dict[str, Any], kind: type) -> None:
    assert list(differing(kind, KINDS[kind], document["components"]["schemas"])) == []


def test_the_field_of_vllms_responses_stays(document: dict[str, Any]) -> None:
    """`context_management` of /v1/responses is OpenAI's, with another meaning."""
    schema = request_schema(document, "/v1/responses")
    fields_shown = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]
    assert "ContextManagementFields" not in str(fields_shown["context_management"])
    valid = {"model": MODEL, "input": "Hi.", "context_management": [{"type": "compaction", "compact_threshold": 9}]}
    assert problems(schema, valid) == []
    assert problems(schema, valid | {"context_management": {"edits": []}}) != []


def test_the_document_lists_what_is_read_and_written() -> None:
    assert set(AcmFields.model_fields) == set(ACM_KEYS)
    assert set(ReceiptView.model_fields) == {field.name for field in fields(Receipt)}
