"""The routes of branches, for clients that run sub-agents themselves."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path
from starlette.responses import Response

from acmserve.context.session.branches.branch_tool import read_branch, read_return
from acmserve.context.storage.session import Session
from acmserve.errors import Conflict, NotFound
from acmserve.plan.request import MAX_SESSION_ID_CHARS
from acmserve.server.context.branches import check_branch_of, give_back, make_branch, spent_by
from acmserve.server.context.server import ContextServer
from acmserve.server.http.errors import problems
from acmserve.server.http.route_class import AcmRoute
from acmserve.server.routes.dependencies import Caller, CallerDep, SessionId
from acmserve.server.routes.schemas.branches import BranchInfo, BranchList, NewBranch, ReturnRequest
from acmserve.server.routes.views.branches import branch_infos
from acmserve.server.routes.views.storage import deleting, deletion_view, storage_view
from acmserve.server.sessions.family import branches_of

branches_router = APIRouter(route_class=AcmRoute, tags=["acm: branches"])

BranchId = Annotated[
    str, Path(min_length=1, max_length=MAX_SESSION_ID_CHARS, description="`branch_id` of a branch that is a session.")
]


@branches_router.post(
    "/sessions/{session_id}/branches",
    operation_id="acm_create_branch",
    summary="Make a branch",
    status_code=201,
    responses=problems(400, 404, 409, 413, 415),
)
async def create_branch(session_id: SessionId, new: NewBranch, caller: CallerDep, response: Response) -> BranchInfo:
    """Makes a session that begins as this one is, with all that was edited and evicted in it.

    Chat with `session_id` = `branch_id`. Send the first `num_messages` messages of the parent as they were, the prompt
    as a message of the user, and go on from there. Nothing of the parent is computed again. Siblings may run at the
    same time. Where the parent's model waits for results of its calls, the branch begins in front of that step. A
    branch has no branches of its own.
    """
    wanted = read_branch(new.model_dump())
    async with caller.held(session_id) as parent:
        branch = make_branch(caller.server, parent, wanted.description, wanted.prompt)
        response.headers["Location"] = f"/v1/acm/sessions/{quote(branch.session_id, safe='')}"
        return _made(caller.server, branch)


@branches_router.get(
    "/sessions/{session_id}/branches",
    operation_id="acm_list_branches",
    summary="List the branches of a session",
    responses=problems(400, 404),
)
async def list_branches(session_id: SessionId, caller: CallerDep) -> BranchList:
    """Lists the branches of a session: those that the model opened in its loop, and those made by requests.

    A branch that was deleted is not listed. One whose call an eviction took out still is.
    """
    server, session = caller.server, caller.session(session_id)
    ended = branch_infos(session, server.tokenizer)
    running = [_made(server, caller.session(branch.session_id)) for branch in branches_of(server.store, session)]
    return BranchList(data=[*ended, *running])


@branches_router.post(
    "/sessions/{session_id}/branches/{branch_id}/return",
    operation_id="acm_return_branch",
    summary="Return from a branch",
    responses=problems(400, 404, 409, 413, 415),
)
async def return_branch(
    session_id: SessionId, branch_id: BranchId, given: ReturnRequest, caller: CallerDep
) -> BranchInfo:
    """Ends a branch: its message becomes part of the parent, and its session is deleted.

    The parent's model reads it as a call of `branch` of its own with the message as its result. Both stand behind all
    that the parent holds now. The parent's client goes on sending the history that it has. The answer is 409, and
    nothing has changed, while the parent's model waits for results of tool calls. Send the message as such a result
    then. Where the sessions' file cannot be written, the branch has returned all the same, and `storage` says so.
    """
    message = read_return(given.model_dump())
    _check_no_call(caller, session_id, branch_id)
    async with caller.held(branch_id) as branch, _held_parent(caller, branch, session_id) as parent:
        check_branch_of(branch, parent)
        failure = give_back(caller.server, branch, parent, message)
        storage = storage_view(parent) or deletion_view(failure, _name_of(branch_id))
        return branch_infos(parent, caller.server.tokenizer)[-1].model_copy(update={"storage": storage})


@branches_router.delete(
    "/sessions/{session_id}/branches/{branch_id}",
    operation_id="acm_delete_branch",
    summary="Abandon a branch",
    status_code=204,
    responses=problems(400, 404, 409, 503),
)
async def delete_branch(session_id: SessionId, branch_id: BranchId, caller: CallerDep) -> None:
    """Deletes a branch with its transcript. Nothing of it is put into the parent, which stays as it is.

    The answer is 503 where the sessions' file cannot be written. The branch is gone then, but its text is still in the
    file. The server erases it with the next write that succeeds, or when you delete the branch once more.
    """
    _check_no_call(caller, session_id, branch_id)
    store = caller.server.store
    try:
        async with caller.held(branch_id) as branch:
            check_branch_of(branch, caller.session(session_id))
            with deleting(_name_of(branch_id)):
                caller.server.delete(branch)
    except NotFound:
        if not store.is_erasing(caller.tenant, branch_id):
            raise
        with deleting(_name_of(branch_id)):
            store.delete(caller.tenant, branch_id)


def _name_of(branch_id: str) -> str:
    """A branch in the words of a warning: it is a session, and is deleted as one when it has returned."""
    return f"session {branch_id!a}"


def _held_parent(caller: Caller, branch: Session, session_id: str) -> AbstractAsyncContextManager[Session]:
    """The parent, held. A session cannot be its own, whose lock would be waited for without an end."""
    if branch.session_id == session_id:
        check_branch_of(branch, branch)
    return caller.held(session_id)


def _check_no_call(caller: Caller, session_id: str, branch_id: str) -> None:
    """Raise `Conflict` for a branch of the model, which nobody else can end."""
    for branch in caller.session(session_id).state.branches:
        if branch.call_id == branch_id:
            raise Conflict(
                "branch_id",
                f"{branch_id!a} is a call of the model, {branch.state}; it is no session.",
                "A branch of the model ends when the model returns, or when the client sends a message of its own.",
            )


def _made(server: ContextServer, branch: Session) -> BranchInfo:
    """A branch that is a session."""
    own, spent = branch.state.parent, spent_by(server, branch)
    assert own is not None
    return BranchInfo(
        branch_id=branch.session_id,
        session_id=own.session_id,
        kind="session",
        state="open",
        description=own.description,
        prompt=own.prompt,
        num_calls=spent.num_calls,
        num_tokens=spent.num_tokens,
        num_messages=own.num_messages,
        message=None,
        storage=storage_view(branch),
    )
