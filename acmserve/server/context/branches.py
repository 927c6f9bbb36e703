"""Branches that are sessions of their own: made, and given back to their parent.

    POST .../branches             parent's state --fork--> a session with a lock of its own. Clients chat with it
    POST .../branches/{id}/return its message --place_result--> parent's state. The session is deleted

Siblings run at the same time. In the engine a branch goes by the name of its parent (`engine_key`). It may use the
parent's moved KV, and may copy its partial last block. Requests of one name may run concurrently there, each with the
plan that it arrived with. A sibling that replaces a source costs the other at most the tokens of one block.

The caller holds the locks of the sessions that are passed. A parent that is gone is distinguished from a later session
of the same id by its mark (`context.session.branches.parent`). A thread that took the id over has that mark, too, and
another name in the engine.
"""

from __future__ import annotations

from acmserve.context.alignment.redacted_index import RedactedIndex
from acmserve.context.session.branches.branching import Spent, count_spent
from acmserve.context.session.branches.fork import fork, num_complete, place_result
from acmserve.context.session.branches.parent import mark_of
from acmserve.context.session.carrying.redactions import cut_text
from acmserve.context.session.rollout.record import Initiator
from acmserve.context.session.turns.turn import TurnEdit
from acmserve.context.storage.session import Session
from acmserve.context.transcript.tokenizer import count_tokens
from acmserve.errors import Conflict, NotFound, StorageFailed
from acmserve.server.context.server import ContextServer
from acmserve.server.sessions.family import has_own_name
from acmserve.server.sessions.sessions import engine_key


def make_branch(server: ContextServer, parent: Session, description: str, prompt: str) -> Session:
    """A new session that begins as `parent` is. Raises `Conflict` where it cannot branch or both would not fit."""
    _check_not_inside(parent)
    limits = server.store.limits
    if limits.max_sessions < 2 or 2 * parent.num_bytes > limits.max_bytes:
        raise Conflict(
            "session_id",
            f"a branch of {parent.session_id!a} and its {parent.num_bytes:,} bytes would push it out.",
            "Start the server with larger limits (--max-sessions, --max-session-mib).",
        )
    branch = server.store.create(parent.tenant)
    try:
        branch.suite = parent.suite
        server.store.save(branch, fork(parent.state, parent.session_id, description, prompt))
    except BaseException:
        # Raised again as it is. Nobody knows the id of this session.
        server.store.discard(branch)
        raise
    server.served.share(parent.key, branch.key)
    return branch


def check_branch_of(branch: Session, parent: Session) -> None:
    """Raise `NotFound` where a session is no branch of the other."""
    own, wanted = branch.state.parent, (parent.session_id, mark_of(parent.state.digest_key))
    is_named = has_own_name(parent) or engine_key(branch) == engine_key(parent)
    if own is None or (own.session_id, own.mark) != wanted or not is_named:
        raise NotFound(
            "branch_id",
            f"{branch.session_id!a} is no branch of {parent.session_id!a}.",
            "GET .../branches lists those there are.",
        )


def give_back(server: ContextServer, branch: Session, parent: Session, message: str) -> StorageFailed | None:
    """Put what a branch returns into its parent, and delete it. Raises `Conflict`. Nothing was changed then.

    What was redacted in the branch is cut out of it, and what was in the parent. Returns why the file may still hold
    the branch, which is gone all the same. None where it does not.
    """
    own = branch.state.parent
    assert own is not None
    _check_not_inside(parent)
    if num_complete(parent.state) < len(parent.state.entries):
        raise Conflict(
            "session_id",
            f"the model of {parent.session_id!a} waits for results of its tool calls.",
            "Send the message as the result of such a call with the session's next request, and delete the branch.",
        )
    message = cut_text(message, RedactedIndex(branch.state.redacted, branch.state.digest_key))
    state = place_result(parent.state, branch.session_id, own, message, spent_by(server, branch))
    server.store.save(parent, state)
    saved = -count_tokens(server.tokenizer, message)
    server.sessions.turns.note(parent, [TurnEdit("return", (), saved, Initiator.CALLER.value)])
    try:
        server.delete(branch)
    except StorageFailed as failure:
        return failure
    return None


def spent_by(server: ContextServer, branch: Session) -> Spent:
    """What a branch took so far, without what it had from its parent."""
    own = branch.state.parent
    entries = branch.state.entries[0 if own is None else own.num_entries :]
    return count_spent(entries, lambda text: count_tokens(server.tokenizer, text))


def _check_not_inside(session: Session) -> None:
    """A branch has no branches: neither a session that is one, nor one in which the model has opened one."""
    if session.state.parent is not None:
        raise Conflict(
            "session_id", f"{session.session_id!a} is a branch; it has no branches of its own.", "Branch its parent."
        )
    if session.state.branch is not None:
        raise Conflict(
            "session_id",
            f"the model of {session.session_id!a} is in a branch: {session.state.branch.description!a}.",
            "Let it return first: go on with the session's own requests.",
        )
