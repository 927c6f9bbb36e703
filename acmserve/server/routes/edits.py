"""The route for a person or a policy: several edits of a session as one plan."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from acmserve.context.edits.cost import effect_steps
from acmserve.context.storage.session import Session
from acmserve.context.tools.batch import Edit, EditKind
from acmserve.errors import Conflict
from acmserve.server.context.server import ContextServer
from acmserve.server.http.errors import problems
from acmserve.server.http.route_class import AcmRoute
from acmserve.server.options.loop_options import check_outside_loop
from acmserve.server.routes.dependencies import CallerDep, SessionId
from acmserve.server.routes.schemas.sessions import EditAnswer, EditRequest, EditsAnswer, EditsRequest, NextTurn
from acmserve.server.routes.views.context import count_context
from acmserve.server.routes.views.storage import storage_view
from acmserve.server.sessions.family import branches_of
from acmserve.server.sessions.slices import in_slices

edits_router = APIRouter(route_class=AcmRoute, tags=["acm: edits"])


@edits_router.post(
    "/sessions/{session_id}/edits",
    operation_id="acm_edit_session",
    summary="Edit a session",
    responses=problems(400, 404, 409, 413, 415, 503),
)
async def edit_session(session_id: SessionId, wanted: EditsRequest, caller: CallerDep) -> EditsAnswer:
    """Carries out edits in this order, all or none. Each sees the result of the one before.

    An edit names a fragment, or a range of messages, which becomes a fragment of its own. All edits of one request are
    one plan: text behind them moves, or is recomputed, once. `next_turn` estimates what that costs. The receipt of the
    next chat request says what it did cost. A `redact` erases the text for good. What follows it is computed anew.
    Where `storage` is not null, the server's file still has the session as it was, with the text that was redacted.
    """
    check_outside_loop(wanted.commit)
    server = caller.server
    async with caller.held(session_id) as session:
        before = session.state
        batch = batch_of(wanted.edits)
        _check_no_copies(server, session, batch)
        outcome = await server.editor.edit(session, batch, wanted.fidelity)
        server.precompute.note_edit(session)
        storage = storage_view(session)
    fidelity = wanted.fidelity or server.default_fidelity
    cost = (await in_slices(effect_steps(before, outcome.state, fidelity, server.tokenizer))).cost
    return EditsAnswer(
        edits=[
            EditAnswer(
                op=done.kind.value,
                fragment_id=done.fragment.fragment_id,
                state=done.fragment.visibility.value,
                tokens_before=done.num_tokens_before,
                tokens_after=done.num_tokens_after,
            )
            for done in outcome.done
        ],
        tokens_before=await in_slices(count_context(before, server.tokenizer)),
        tokens_after=await in_slices(count_context(outcome.state, server.tokenizer)),
        next_turn=NextTurn(recomputed_tokens=cost.num_computed, moved_tokens=cost.num_moved),
        storage=storage,
    )


def _check_no_copies(server: ContextServer, session: Session, batch: Sequence[Edit]) -> None:
    """Raise `Conflict` for a redaction of text of which branches hold copies."""
    branches = branches_of(server.store, session) if any(edit.kind is EditKind.REDACT for edit in batch) else ()
    if branches:
        raise Conflict(
            "edits",
            f"cannot redact while branches hold copies of the text: {', '.join(b.session_id for b in branches[:5])}.",
            "Let them return, or delete them first.",
        )


def batch_of(edits: Sequence[EditRequest]) -> list[Edit]:
    """Edits as the context layer takes them."""
    return [
        Edit(
            EditKind(wanted.op),
            wanted.fragment_id,
            None if wanted.messages is None else (wanted.messages.start, wanted.messages.end),
            wanted.focus,
        )
        for wanted in edits
    ]
