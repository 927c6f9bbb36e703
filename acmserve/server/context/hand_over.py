"""A session that goes on in another server: its whole state as one object, and back. Only its KV stays behind.

    export   agent-7 and all that goes with it, each held   --> {"version": 1, "model": .., "sessions": [..]}
    import   model, versions, contents, ids, room --all fine--> the sessions are made, or those of the ids exchanged
                                                  --else------> a typed error, and nothing was changed

Decision: what is not in memory of the other server is computed there, so losing a replica loses KV and nothing else. A
redacted text is in no export: the transcript no longer has it, and digests keep it out of what clients resend. Where
something was redacted, the next request has the engines forget, for they may know the session from before.

An import becomes the session of whoever brings it. It knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from time import time
from typing import Any

from acmserve.context.session.branches.parent import mark_of
from acmserve.context.storage.codecs.session_copy import SampledOutput, SessionCopy, copy_from, copy_value
from acmserve.context.storage.refusals import taken
from acmserve.context.storage.session import Key, Session, SessionUse
from acmserve.errors import Conflict, InvalidRequest, NotFound, StorageFailed
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.served.sampled_outputs import MAX_OUTPUTS, TokenizedOutput
from acmserve.server.sessions.family import family_of
from acmserve.validation import echo

EXPORT_VERSION = 1
MAX_IMPORTED_TOKENS = 2**20
"""Of the answers of all sessions of an import. A text counts for its characters, too, and each answer a little."""
_CHARS_PER_TOKEN, _LEAST_TOKENS = 4, 64
_FIELD = "sessions"


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What an import will make, in order, the session itself first. `replaced` are the sessions that go for it.

    `outputs` are the answers of each session that its next prompt needs in their sampled tokens.
    """

    copies: tuple[SessionCopy, ...]
    replaced: tuple[Key, ...]
    outputs: tuple[tuple[TokenizedOutput, ...], ...]


@asynccontextmanager
async def held_family(server: ContextServer, tenant: str, session_id: str) -> AsyncIterator[list[Session]]:
    """A session with all that goes with it, each for the caller alone. Raises `NotFound`, and `Conflict`.

    A branch that returns holds itself, and waits for its parent. So each is waited for here in front of what it goes
    with.
    """
    session = server.store.get(tenant, session_id)
    _check_alone(session)
    family = family_of(server.store, session)
    async with AsyncExitStack() as stack:
        for each in reversed(family):
            await stack.enter_async_context(server.sessions.locked(each))
        if not all(map(server.store.holds, family)) or family_of(server.store, session) != family:
            raise Conflict("session_id", f"{session_id!a} got or lost a branch meanwhile.", "Send the request again.")
        yield family


def export_session(server: ContextServer, family: Sequence[Session]) -> dict[str, Any]:
    """The export of a session that is held with its family."""
    copies = [_copy_of(server, session) for session in family]
    return {
        "object": "acm.session_export",
        "version": EXPORT_VERSION,
        "session_id": family[0].session_id,
        "exported_at": time(),
        "model": server.identity.as_dict(),
        _FIELD: [copy_value(copy) for copy in copies],
    }


def read_export(server: ContextServer, given: Mapping[str, Any], session_id: str) -> tuple[SessionCopy, ...]:
    """The copies of an export whose fields have the right types. Raises `InvalidRequest` or `Conflict`, by field."""
    if given["version"] != EXPORT_VERSION:
        raise InvalidRequest(
            "version",
            f"is {given['version']}, this acmserve reads {EXPORT_VERSION}.",
            "Import it into a server of the acmserve that exported it.",
        )
    server.identity.check_same(given["model"], "model")
    copies = tuple(copy_from(value, f"{_FIELD}[{index}]") for index, value in enumerate(given[_FIELD]))
    if copies[0].session_id != session_id:
        raise InvalidRequest(
            f"{_FIELD}[0].session_id",
            f"is {echo(copies[0].session_id)}, the path names {echo(session_id)}.",
            "A session keeps its id. Import it under that one.",
        )
    _check_family(copies)
    for index, copy in enumerate(copies):
        _check_outputs(server, copy, f"{_FIELD}[{index}].outputs")
    return copies


async def tokenize_outputs(
    server: ContextServer, copies: Sequence[SessionCopy]
) -> tuple[tuple[TokenizedOutput, ...], ...]:
    """The answers of each session as its memory takes them, in a thread: nobody else waits for a tokenizer."""
    return await asyncio.to_thread(lambda: tuple(_tokenized(server, copy) for copy in _newest_outputs(copies)))


def _tokenized(server: ContextServer, outputs: Sequence[SampledOutput]) -> tuple[TokenizedOutput, ...]:
    found = (server.served.tokenize_output(text, token_ids) for text, token_ids in outputs)
    return tuple(output for output in found if output is not None)


def _newest_outputs(copies: Sequence[SessionCopy]) -> list[Sequence[SampledOutput]]:
    """Of each session its newest answers, as many as it remembers, and `MAX_IMPORTED_TOKENS` in sum.

    The first sessions come first. Of an answer that is left out, the next prompt has the tokenizer's own tokens.
    """
    num_left = MAX_IMPORTED_TOKENS
    found: list[Sequence[SampledOutput]] = []
    for copy in copies:
        first = len(copy.outputs)
        while first > max(0, len(copy.outputs) - MAX_OUTPUTS):
            text, token_ids = copy.outputs[first - 1]
            num_counted = max(_LEAST_TOKENS, len(token_ids), len(text) // _CHARS_PER_TOKEN)
            if num_counted > num_left:
                break
            num_left, first = num_left - num_counted, first - 1
        found.append(copy.outputs[first:])
    return found


def plan_import(
    server: ContextServer,
    tenant: str,
    copies: tuple[SessionCopy, ...],
    outputs: tuple[tuple[TokenizedOutput, ...], ...],
    replaced: Sequence[Session],
) -> ImportPlan:
    """What to do for an import. `replaced` are held by the caller. Raises `Conflict`: an id is taken, or no room."""
    plan = ImportPlan(copies, tuple(session.key for session in replaced), outputs)
    for copy in copies:
        key = (tenant, copy.session_id)
        server.store.names.check(*key)
        if key not in plan.replaced and server.store.has(*key):
            raise taken(copy.session_id) if copy is not copies[0] else _exists(copy.session_id)
    most = server.store.limits.max_sessions
    if len(copies) > most:
        remedy = "Start the server with a larger --max-sessions."
        raise Conflict(_FIELD, f"has {len(copies)} sessions, this server holds {most}.", remedy)
    server.store.check_room(
        Session(tenant, copies[0].session_id), sum(copy.num_bytes for copy in copies), plan.replaced
    )
    return plan


def apply_import(server: ContextServer, tenant: str, plan: ImportPlan) -> Session:
    """Make the sessions of a plan, in one go: nothing else runs between its check and its end."""
    for key in plan.replaced:
        # The store has noted that its file may still hold the text, and tries again with its next write.
        with suppress(NotFound, StorageFailed):
            server.delete(server.store.get(*key))
    made: list[Session] = []
    uses: list[SessionUse] = []
    for copy, outputs in zip(plan.copies, plan.outputs, strict=True):
        made.append(server.store.create(tenant, copy.session_id))
        uses.append(server.store.use(made[-1]))
        _fill(server, made[-1], copy, outputs)
    del uses
    return made[0]


def _fill(server: ContextServer, session: Session, copy: SessionCopy, outputs: Sequence[TokenizedOutput]) -> None:
    """Make a new session what a copy says."""
    session.suite, session.created_at = copy.suite, min(copy.created_at, session.created_at)
    server.store.save(session, copy.state)
    server.store.record(session, copy.turns)
    if copy.state.redacted:
        server.sessions.forget(session)
    for output in outputs:
        server.served.of(*session.key).keep_output(output)


def _check_alone(session: Session) -> None:
    """Raise `Conflict` for a session that goes with another one."""
    parent, thread = session.state.parent, session.state.thread
    owner = thread.family if thread is not None else None if parent is None else parent.session_id
    if owner not in (None, session.session_id):
        raise Conflict(
            "session_id",
            f"{session.session_id!a} belongs to session {owner!a}, and cannot be handed over alone.",
            "Export that session: its branches and side threads go with it.",
        )


def _copy_of(server: ContextServer, session: Session) -> SessionCopy:
    outputs = tuple(server.served.outputs(*session.key))
    return SessionCopy(session.session_id, session.suite, session.created_at, session.state, session.turns, outputs)


def _check_family(copies: Sequence[SessionCopy]) -> None:
    """Raise `InvalidRequest` where a session of an export does not go with its first one.

    A side thread goes with that, and a branch with that or with a side thread.
    """
    main = copies[0]
    if len({copy.session_id for copy in copies}) < len(copies):
        raise InvalidRequest(_FIELD, "names a session twice.", "Export the session again.")
    marks = {copy.session_id: mark_of(copy.state.digest_key) for copy in copies if copy.state.parent is None}
    for index, copy in enumerate(copies):
        parent, thread = copy.state.parent, copy.state.thread
        is_branch = parent is not None and marks.get(parent.session_id) == parent.mark
        is_thread = parent is None and thread is not None and thread.family == main.session_id
        is_main = parent is None and (thread is None or is_thread)
        if not (is_main if index == 0 else is_branch or is_thread):
            raise InvalidRequest(
                f"{_FIELD}[{index}]",
                f"is {echo(copy.session_id)}, which does not belong to {echo(main.session_id)}.",
                "Export the session again.",
            )


def _check_outputs(server: ContextServer, copy: SessionCopy, where: str) -> None:
    """Raise `InvalidRequest` for a token that the model does not have: an engine would end with it."""
    size = server.identity.vocab_size
    for index, (_, token_ids) in enumerate(copy.outputs):
        bad = next((token for token in token_ids if not 0 <= token < size), None)
        if bad is not None:
            raise InvalidRequest(
                f"{where}[{index}].token_ids", f"has {bad}, the model has {size:,} tokens.", "Export the session again."
            )


def _exists(session_id: str) -> Conflict:
    return Conflict(
        "session_id",
        f"{session_id!a} exists already.",
        "Send replace=true to exchange it for the imported one, or delete it first.",
    )
