"""The branches in a session's transcript, as routes show them. Reads only."""

from __future__ import annotations

from acmserve.context.session.branches.branch import Branch
from acmserve.context.session.branches.branching import Spent, spent_in
from acmserve.context.storage.session import Session
from acmserve.context.transcript.message import texts
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens
from acmserve.server.http.strict_json import clean_json
from acmserve.server.routes.schemas.branches import BranchInfo


def branch_infos(session: Session, tokenizer: Tokenizer) -> list[BranchInfo]:
    """Every branch that the session's model opened or that returned to it, in the order of the conversation."""
    spent = spent_in(session.state, lambda text: count_tokens(tokenizer, text))
    return [_info(session, branch, spent) for branch in session.state.branches]


def _info(session: Session, branch: Branch, spent: Spent) -> BranchInfo:
    """`spent` is what the branch that is open took so far."""
    result = "".join(text for _, text in texts(session.state.entries[branch.result_entry].message))
    return BranchInfo(
        branch_id=clean_json(branch.call_id),
        session_id=session.session_id,
        kind="call" if branch.is_call else "session",
        state=branch.state,
        description=branch.description,
        prompt=branch.prompt,
        num_calls=spent.num_calls if branch.is_open else branch.num_calls,
        num_tokens=spent.num_tokens if branch.is_open else branch.num_tokens,
        num_messages=None,
        message=None if branch.is_open else clean_json(result.replace("\x00", "")),
    )
