"""The routes for a model that runs elsewhere: the schemas of the context tools, and the execution of one call."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from acmserve.context.tools.run import ToolCall, find_tool
from acmserve.context.tools.suites import (
    PRESETS,
    SUITES,
    describe,
    find_preset,
    find_suite,
    offered_beside,
    suite_tools,
)
from acmserve.server.http.errors import problems
from acmserve.server.http.route_class import AcmRoute
from acmserve.server.options.loop_options import check_outside_loop
from acmserve.server.routes.dependencies import CallerDep, SessionId
from acmserve.server.routes.schemas.sessions import ToolAnswer, ToolRequest, ToolSuite
from acmserve.server.routes.schemas.suites import AnySuite
from acmserve.server.routes.views.storage import storage_view

tools_router = APIRouter(route_class=AcmRoute, tags=["acm: tools"])


@tools_router.get("/tools", operation_id="acm_list_tools", summary="Get the tools of a suite", responses=problems(400))
async def list_tools(
    suite: Annotated[
        AnySuite,
        Query(description=f"{describe(SUITES)}."),
    ] = "sculptor",
) -> ToolSuite:
    """Gives the tools of a suite, ready for the `tools` array of a chat request, and the prompts that teach them.

    An agent loop of your own sends them along. It executes each call with `POST
    .../sessions/{session_id}/tools/{name}`, and returns the result as the content of the tool message.
    """
    return ToolSuite(
        suite=suite,
        tools=list(suite_tools(suite)),
        presets={name: PRESETS[find_preset((suite,), name)] for name in PRESETS},
    )


@tools_router.post(
    "/sessions/{session_id}/tools/{name}",
    operation_id="acm_call_tool",
    summary="Execute one tool call",
    responses=problems(400, 404, 409, 413, 415, 503),
)
async def call_tool(
    session_id: SessionId,
    name: Annotated[str, Path(min_length=1, max_length=64, description="Name of the tool, e.g. `fold_fragment`.")],
    caller: CallerDep,
    given: ToolRequest | None = None,
) -> ToolAnswer:
    """Executes one call of a context tool on a session and returns its result for the model.

    A call that is wrong (an unknown id, an argument out of range, a fold of what is folded) is a 200 with `is_error:
    true`. The session is unchanged, and `result` says what the model is to do instead. The next chat request of the
    session sees the edited conversation. The history that the client resends stays the original one.
    """
    call = given or ToolRequest()
    check_outside_loop(call.commit)
    async with caller.held(session_id) as session:
        before = session.state
        suite = call.suite or find_suite(offered_beside(session.suite), name)
        find_tool(suite, name)
        outcome = await caller.server.editor.call_tool(session, ToolCall(name, call.arguments), suite, call.fidelity)
        if outcome.state.fragments != before.fragments:
            caller.server.precompute.note_edit(session)
    return ToolAnswer(
        name=name,
        result=outcome.result,
        is_error=outcome.error is not None,
        changed=outcome.changed,
        fragment_ids=list(outcome.fragment_ids),
        storage=storage_view(session),
    )
