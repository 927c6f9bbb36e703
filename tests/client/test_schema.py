"""The client's classes are what the server's OpenAPI document says, and the document says it of every field."""

from __future__ import annotations

import copy
from dataclasses import dataclass, make_dataclass
from typing import Any, Literal, get_args, get_type_hints

import pytest

from acmserve.client import errors
from acmserve.client.options import AcmOptions
from acmserve.client.receipts import AcmAnswer, PromptReceipt
from acmserve.client.views.sessions import EditName, FragmentStatus
from acmserve.server.http import errors as server_errors
from acmserve.server.routes.schemas.context_management import CompactionFields, ContextManagementView
from acmserve.server.routes.schemas.receipts import ReceiptFields, SessionFields
from tests.support.client.kinds import KINDS
from tests.support.client.schema_check import differing, undescribed
from tests.support.server.acm_app import make_app

REFERENCE = "#/components/schemas/{model}"


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    """Those of the routes' document, and those that join vLLM's own."""
    found: dict[str, Any] = dict(make_app().openapi()["components"]["schemas"])
    for model in (ReceiptFields, SessionFields, CompactionFields, ContextManagementView):
        schema = model.model_json_schema(ref_template=REFERENCE)
        found |= schema.pop("$defs", {}) | {model.__name__: schema}
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_class_is_what_its_schema_says(kind: type, schemas: dict[str, Any]) -> None:
    assert list(differing(kind, KINDS[kind], schemas)) == []


def test_every_field_is_described(schemas: dict[str, Any]) -> None:
    seen: set[str] = set()
    assert [field for name in schemas for field in undescribed(name, schemas, seen)] == []
    assert len(seen) > 60


def test_a_change_of_the_server_is_found(schemas: dict[str, Any]) -> None:
    """The control: one change at a time, far below the class that is looked at."""
    for change, found in {
        "new": "the client lacks it",
        "gone": "the schema lacks it",
        "null": "null is allowed",
        "type": "is not",
        "value": "is not",
        "needed": "is not required",
    }.items():
        changed = copy.deepcopy(schemas)
        receipt = changed["ReceiptView"]
        if change == "new":
            receipt["properties"]["swapped_tokens"] = {"type": "integer"}
        elif change == "gone":
            del receipt["properties"]["moves"]
        elif change == "null":
            receipt["properties"]["kept_tokens"] = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
        elif change == "type":
            changed["MoveView"]["properties"]["num_tokens"]["type"] = "number"
        elif change == "value":
            changed["WaitingEditView"]["properties"]["state"]["enum"].append("redacted")
        else:
            receipt["required"].remove("reason")
        told = list(differing(AcmAnswer, "ReceiptFields", changed))
        assert told, change
        assert all(found in line for line in told), (change, told)
    assert list(undescribed("Told", {"Told": {"properties": {"a": {"type": "string"}}}}, set())) == ["Told.a"]


def test_a_class_that_is_looser_is_found(schemas: dict[str, Any]) -> None:
    @dataclass
    class Loose:
        dst_start: int | None
        src_start: str
        num_tokens: int

    told = list(differing(Loose, "MoveView", schemas))
    assert [line.partition(":")[0] for line in told] == ["MoveView.dst_start", "MoveView.src_start"]
    looser = make_dataclass("Looser", [(name, Any) for name in get_type_hints(PromptReceipt)])
    assert len(list(differing(looser, "ReceiptView", schemas))) > 5


def test_options_of_a_request_are_those_of_the_server(schemas: dict[str, Any]) -> None:
    shown, hints = schemas["AcmFields"]["properties"], get_type_hints(AcmOptions)
    assert set(hints) == set(shown)
    for name in ("fidelity", "commit"):
        (enum,) = [option["enum"] for option in shown[name]["anyOf"] if "enum" in option]
        assert set(get_args(hints[name])) == set(enum)
    words = [option["const"] for option in shown["query_finished"]["anyOf"] if "const" in option]
    assert [get_args(one) for one in get_args(hints["query_finished"]) if one is not bool] == [tuple(words)]


def test_edits_are_those_of_the_server(schemas: dict[str, Any]) -> None:
    assert set(get_args(EditName)) == set(schemas["EditRequest"]["properties"]["op"]["enum"])
    assert set(get_args(FragmentStatus)) == set(schemas["ContextFragment"]["properties"]["state"]["enum"])


def test_kinds_of_errors_are_those_of_the_server() -> None:
    """By the words that stand in `type` of an error."""
    known = {kind.__name__: status for status, kind in errors.KINDS.items()}
    of_vllm: dict[str, Literal[401]] = {"AuthenticationError": 401}
    assert known == {name: status.value for status, name in server_errors._TYPES.items()} | of_vllm
