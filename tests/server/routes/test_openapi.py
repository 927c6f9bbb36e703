"""The OpenAPI document of the `/v1/acm` routes is valid, says what it should, and is what the routes do (schemathesis).

The document that is held against the routes names every status one by one. The range 4XX, which stands for what vLLM's
own server says in front of the routes, is taken out of the document first.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from acmserve.context.maps.update import MapSettings
from acmserve.context.session.history import adopt
from acmserve.context.tools.suites import tool_names
from acmserve.server.context.branches import make_branch
from acmserve.server.context.server import ContextServer
from tests.support.fuzzing import FACTOR
from tests.support.server.acm_app import HISTORY, make_app, make_server

OPERATIONS = {
    "acm_list_tools",
    "acm_create_session",
    "acm_list_sessions",
    "acm_get_session",
    "acm_delete_session",
    "acm_export_session",
    "acm_import_session",
    "acm_get_context",
    "acm_list_messages",
    "acm_get_message",
    "acm_listen",
    "acm_listen_to_session",
    "acm_get_rollout",
    "acm_list_turns",
    "acm_get_totals",
    "acm_list_usage",
    "acm_call_tool",
    "acm_edit_session",
    "acm_get_budget",
    "acm_set_budget",
    "acm_delete_budget",
    "acm_evict",
    "acm_list_episodes",
    "acm_create_branch",
    "acm_list_branches",
    "acm_return_branch",
    "acm_delete_branch",
    "acm_list_maps",
    "acm_get_map",
    "acm_set_map",
    "acm_delete_map",
    "acm_export_map",
    "acm_get_map_history",
    "acm_prepare_edits",
    "acm_get_preparation",
}


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in document["paths"].values():
        yield from path.values()


def strict_app() -> FastAPI:
    """The app, its document without the range 4XX."""
    app = make_app()
    document = copy.deepcopy(app.openapi())
    for operation in operations(document):
        del operation["responses"]["4XX"]
    app.openapi_schema = document
    return app


def server_with_one() -> ContextServer:
    """A session `s` with four messages, so that ranges of edits exist, a branch of it, and a context map `m`."""
    server = make_server()
    session = server.store.create("", "s")
    server.store.save(session, adopt(session.state, HISTORY).state)
    make_branch(server, session, "find out", "What is it?")
    server.maps.settle("", "m", MapSettings("## CONTEXT ROADMAP\n388 records"))
    return server


APP = strict_app()
DOCUMENT: dict[str, Any] = APP.openapi()
schema = schemathesis.openapi.from_asgi("/openapi.json", APP)


def test_the_document_is_valid() -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(make_app().openapi()).iter_errors()] == []


def test_every_route_is_documented() -> None:
    found = list(operations(DOCUMENT))
    assert {operation["operationId"] for operation in found} == OPERATIONS
    for operation in found:
        assert len(operation["summary"]) > 5, operation["operationId"]
        assert len(operation["description"]) > 40, operation["operationId"]
        assert operation["tags"], operation["operationId"]


def test_errors_have_one_shape() -> None:
    for operation in operations(DOCUMENT):
        for status, response in operation["responses"].items():
            if status.startswith("2"):
                continue
            assert status != "422"
            assert response["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Problem"}


@pytest.mark.parametrize(
    "name",
    [
        "NewSession",
        "BudgetRequest",
        "MapRequest",
        "NewBranch",
        "ReturnRequest",
        "EditsRequest",
        "EditRequest",
        "ToolRequest",
        "Message",
        "ProblemInfo",
    ],
)
def test_every_field_of_a_request_is_described(name: str) -> None:
    fields = DOCUMENT["components"]["schemas"][name]["properties"]
    assert [field for field, schema in fields.items() if not schema.get("description")] == []


@schema.parametrize()
@settings(
    max_examples=10 * FACTOR,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_routes_do_what_the_document_says(case: schemathesis.Case) -> None:
    """As generated, and once more on a session (and for a tool) that exists.

    Valid data may still be refused: that is the nature of these routes. Only the session knows whether a range of
    messages or a fragment exists.
    """
    APP.state.acm_server = server_with_one()
    APP.state.server = SimpleNamespace(should_exit=True)  # streams of events end at once
    case.call_and_validate(excluded_checks=[positive_data_acceptance])
    if "session_id" in case.path_parameters:
        names = tool_names("sculptor")
        case.path_parameters["session_id"] = "s"
        if "branch_id" in case.path_parameters:
            [branch] = [session for session in APP.state.acm_server.store.list("") if session.session_id != "s"]
            case.path_parameters["branch_id"] = branch.session_id
        if "name" in case.path_parameters:
            case.path_parameters["name"] = names[len(str(case.body)) % len(names)]
        case.call_and_validate(excluded_checks=[positive_data_acceptance, negative_data_rejection])
    if "external_context_id" in case.path_parameters:
        case.path_parameters["external_context_id"] = "m"
        case.call_and_validate(excluded_checks=[positive_data_acceptance, negative_data_rejection])
    APP.state.acm_server.store.check_integrity()
    APP.state.acm_server.maps.store.check_integrity()
