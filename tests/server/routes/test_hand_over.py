"""A session that is handed over is the same session, to the byte, and a refused import leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from acmserve.context.session.branches.fork import fork_thread
from acmserve.context.session.branches.thread import Thread
from acmserve.context.session.turns.turn import SessionTurn, TurnEnd, TurnOrigin
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.server.context.server import ContextServer
from acmserve.server.models.model_identity import ModelIdentity
from tests.support.fuzzing import FACTOR
from tests.support.routes.held_session import until_they_wait
from tests.support.server.acm_app import HISTORY, SESSIONS, Words, lines, make_app, make_client, make_server

SECRET = "the password is swordfish"
MESSAGES: list[dict[str, Any]] = [
    *HISTORY,
    {"role": "assistant", "content": f"I was told that {SECRET}, and \0 nothing else."},
    {"role": "user", "content": lines(40, "gamma")},
]
EDITS = [{"op": "fold", "messages": {"start": 1, "end": 2}}, {"op": "redact", "messages": {"start": 4, "end": 5}}]
ROUTE = TurnOrigin("/v1/chat/completions")
TURN = SessionTurn(1.5, ROUTE, "r", None, 9, 1, None, None, 0.5, TurnEnd.ANSWERED)
SAMPLED = 7
IDENTITY = ModelIdentity(("m", "alias"), "tok", "tpl", "Llama", 2**32)


def words() -> Words:
    """With one token more than it chooses: an answer may be sampled in it."""
    tokenizer = Words()
    tokenizer._words[SAMPLED] = "Read it."
    return tokenizer


def server_of(**settings: Any) -> ContextServer:
    server = make_server(tokenizer=words(), **settings)
    server.identity = IDENTITY
    return server


def worked(**headers: str) -> tuple[ContextServer, TestClient]:
    """A session `s` that was folded, redacted, bounded, branched, recorded and sampled, with two side threads."""
    server = server_of()
    client = make_client(server, **headers)
    assert client.post(SESSIONS, json={"session_id": "s", "messages": MESSAGES}).status_code == 201
    assert client.post(f"{SESSIONS}/s/edits", json={"edits": EDITS}).status_code == 200
    assert client.put(f"{SESSIONS}/s/budget", json={"max_tokens": 5000, "policy": "recency"}).status_code == 200
    branch = client.post(f"{SESSIONS}/s/branches", json={"description": "look", "prompt": "Look around."})
    assert branch.status_code == 201
    session = server.store.get(*next(head.key for head in heads(server) if head.session_id == "s"))
    for name in ("s~title", "s~task"):
        side = server.store.create(session.tenant, name)
        server.store.save(side, fork_thread(session.state, Thread("s", name[2:], "s", is_fork=True)))
    server.store.record(session, session.turns.taken(TURN))
    server.served.of(*session.key).remember_output("Read it.", [SAMPLED])
    return server, client


def heads(server: ContextServer) -> list[Any]:
    return [head for tenant in {key[0] for key in server.store._sessions} for head in server.store.list(tenant)]


def exported(client: TestClient, session_id: str = "s") -> dict[str, Any]:
    answer = client.get(f"{SESSIONS}/{session_id}/export")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def imported(client: TestClient, export: dict[str, Any], session_id: str = "s", **params: str) -> httpx.Response:
    return client.post(f"{SESSIONS}/{session_id}/import", json=export, params=params)


def shown(client: TestClient) -> list[Any]:
    """All that routes say of the session. When it was used last is no part of it, and neither is KV."""
    paths = ("context", "budget", "turns", "totals", "episodes", "branches")
    found = [client.get(f"{SESSIONS}/s/{path}").json() for path in paths]
    for message in found[0]["messages"]:
        del message["kv"]
    info = client.get(f"{SESSIONS}/s").json()
    info["threads"] = sorted(thread["session_id"] for thread in info["threads"])
    return [*found, info | {"used_at": 0}]


def test_a_session_goes_on_elsewhere_as_it_was(tmp_path: Path) -> None:
    """Also from the file of the other server, and back: the second export is the first one."""
    server, client = worked()
    export = exported(client)
    before = json.dumps(export)
    folder = tmp_path / "data"
    other = server_of(archive=Archive(folder))
    there = make_client(other)
    answer = imported(there, export)
    assert answer.status_code == 201, answer.text
    assert answer.json()["num_fragments"] == 2
    assert shown(there) == shown(client)
    assert other.served.of("", "s").splice(words().encode("Read it."), 9) == [SAMPLED]
    (branch,) = there.get(f"{SESSIONS}/s/branches").json()["data"]
    assert there.get(f"{SESSIONS}/s").json()["threads"][1]["session_id"] in ("s~task", "s~title")
    for held in (server, other):
        held.store.check_integrity()
    other.store.close()
    kept = SessionStore(archive=Archive(folder))
    again = make_server(tokenizer=words())
    again.identity, again.store = IDENTITY, kept
    assert {**exported(client), "exported_at": 0} == {**json.loads(before), "exported_at": 0}, (
        "the export changes nothing"
    )
    assert kept.get("", "s").state == server.store.get("", "s").state
    assert kept.get("", branch["branch_id"]).state == server.store.get("", branch["branch_id"]).state
    kept.close()


class Watched(Words):
    """Says who tokenizes the answers of an import, and how much of them is tokenized."""

    def __init__(self) -> None:
        super().__init__()
        self._words[SAMPLED] = " so"
        self.is_on_loop: list[bool] = []
        self.num_tokens = self.num_inside = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = super().encode(text, add_special_tokens)
        self._note(text, ids)
        return ids

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        text = super().decode(token_ids, skip_special_tokens)
        self._note(text, token_ids)
        return text

    def _note(self, text: str, token_ids: list[int]) -> None:
        if " so" not in text:
            return
        if text.startswith(" so"):
            self.num_tokens += len(token_ids)
        else:
            self.num_inside += len(token_ids) - 2
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.is_on_loop.append(False)
        else:
            self.is_on_loop.append(True)


def test_imported_answers_are_bounded_in_sum_and_hold_nobody_up() -> None:
    """A body of 64 MiB may bring millions of tokens. Those that a session needs are its newest."""
    _, client = worked()
    export = exported(client)
    lengths = [8000 + number for number in range(250)]
    answers = [{"text": " so" * length, "token_ids": [SAMPLED] * length} for length in lengths]
    export["sessions"][0]["outputs"] = answers
    export["sessions"][1]["outputs"] = answers[:1]
    tokenizer = Watched()
    other = make_server(tokenizer=tokenizer)
    other.identity = IDENTITY
    assert imported(make_client(other), export).status_code == 201
    assert tokenizer.is_on_loop
    assert not any(tokenizer.is_on_loop), "every other request would wait"
    assert 2**20 < tokenizer.num_tokens <= 2 * 2**20, "each answer once in its own tokens, once in the tokenizer's"
    assert tokenizer.num_inside == tokenizer.num_tokens, "and both once more between other tokens"
    kept = [len(token_ids) for _, token_ids in other.served.outputs("", "s")]
    assert kept == lengths[-len(kept) :] != []
    assert sum(kept) <= 2**20 < sum(kept) + lengths[-len(kept) - 1]
    other.served.check_integrity()


def test_a_redacted_text_stays_behind() -> None:
    """The control: what was only folded is there. A client that resends the text is still not let through."""
    server, client = worked()
    export = exported(client)
    assert "swordfish" not in json.dumps(export)
    assert "alpha 7 says" in json.dumps(export)
    other = server_of()
    assert imported(make_client(other), export).status_code == 201
    session = other.store.get("", "s")
    assert session.state.redacted == server.store.get("", "s").state.redacted != ()
    assert other.sessions.must_forget(session), "an engine that knew the session from before"


def test_an_import_that_no_file_can_hold_leaves_the_session_that_is_there(tmp_path: Path) -> None:
    """It was deleted for the new one, and then the file refused that."""
    _, client = worked()
    other = server_of(archive=Archive(tmp_path))
    there = make_client(other)
    assert there.post(SESSIONS, json={"session_id": "s", "messages": HISTORY}).status_code == 201
    before = shown(there)
    for name in ("num_ids", "num_turns"):
        for number in (2**63, 2**63 - 1):
            export = without(exported(client), on_state(lambda s, name=name, number=number: s.update({name: number})))
            assert imported(there, export, replace="true").status_code == 400
            assert shown(there) == before
    export = without(exported(client), on_state(lambda state: state["entries"][3].update(turn=2**63 - 1)))
    answer = imported(there, export, replace="true")
    assert answer.status_code == 400, "the turn behind it is one that no column holds"
    assert "has 'turn' 9223372036854775807" in answer.json()["error"]["message"]
    assert shown(there) == before
    body = json.dumps(exported(client)).replace('"created_at": ', '"created_at": 1e999, "was": ', 1)
    body = body.replace('"was": ', '"suite": "sculptor", "was": ', 1)
    url = f"{SESSIONS}/s/import?replace=true"
    answer = there.post(url, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert "created_at" in answer.text
    assert shown(there) == before
    other.store.check_integrity()


def without(export: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(export))
    change(copy)
    return copy


def on_state(change: Callable[[Any], object], key: str = "state") -> Callable[[dict[str, Any]], None]:
    def apply(export: dict[str, Any]) -> None:
        state = json.loads(export["sessions"][0][key])
        change(state)
        export["sessions"][0][key] = json.dumps(state)

    return apply


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], int, str, str]] = {
    "version": (lambda e: e.update(version=2), 400, "version", "is 2, this acmserve reads 1"),
    "name": (lambda e: e["model"].update(name="other"), 409, "model.name", "'other' in the export, and 'm' here"),
    "tokenizer": (lambda e: e["model"].update(tokenizer="t2"), 409, "model.tokenizer", "'t2'"),
    "template": (lambda e: e["model"].update(chat_template="t2"), 409, "model.chat_template", "'t2'"),
    "architecture": (lambda e: e["model"].update(architecture="Qwen"), 409, "model.architecture", "'Qwen'"),
    "state version": (on_state(lambda s: s.update(version=99)), 400, "sessions[0].state", "has version '99'"),
    "policy": (
        on_state(lambda s: s["limits"][0]["budget"].update(policy="shop:Policy")),
        409, "sessions[0].state", "--eviction-policy shop:Policy",
    ),
    "no JSON": (lambda e: e["sessions"][0].update(state="{"), 400, "sessions[0].state", "is damaged"),
    "deep": (lambda e: e["sessions"][0].update(state="[" * 100_000), 400, "sessions[0].state", "is damaged"),
    "ids": (on_state(lambda s: s.update(num_ids=2**70)), 400, "sessions[0].state", "num_ids is an integer of 71 bits"),
    "number of turns": (on_state(lambda s: s.update(num_turns=2**63)), 400, "sessions[0].state", "num_turns is"),
    "turn of a message": (
        on_state(lambda s: s["entries"][2].update(turn=2**53 + 1)),
        400, "sessions[0].state", "has 'turn' 90071992547409",
    ),
    "bytes": (
        on_state(lambda s: s["hits"].append(["s" * 2**21, 1, None, 0, 1])),
        400, "sessions[0].state", "bytes of omissions",
    ),
    "tokens of a turn": (
        on_state(lambda t: t[1].update(prompt_tokens=2**63), "turns"),
        400, "sessions[0].turns", "prompt_tokens of a turn is an integer of 64 bits",
    ),
    "time of a turn": (
        on_state(lambda t: t[1].update(created_at=float("inf")), "turns"),
        400, "sessions[0].turns", "created_at of a turn is inf, no finite number",
    ),
    "tokens of a branch": (
        on_state(lambda s: s["limits"][0].update(thread={"root": "s", "name": "", "parent": "s", "is_fork": 2**70})),
        400, "sessions[0].state", "is damaged",
    ),
    "span": (on_state(lambda s: s["fragments"][-1].update(pieces=[[0, 5, 0, 1]])), 400, "sessions[0].state", "damaged"),
    "message": (
        on_state(lambda s: s["entries"][2]["message"].update(role=5)),
        400, "sessions[0].state", "holds a Message that is damaged: role",
    ),
    "receipt": (
        on_state(lambda t: t[1].update(receipt={"prompt_tokens": "many"}), "turns"),
        400, "sessions[0].turns", "holds a TurnView that is damaged: receipt",
    ),
    "turns": (on_state(lambda t: t[1].update(index=5), "turns"), 400, "sessions[0].turns", "is damaged"),
    "token": (
        lambda e: e["sessions"][0]["outputs"][0].update(token_ids=[2**32]),
        400, "sessions[0].outputs[0].token_ids", "the model has",
    ),
    "another id": (lambda e: e["sessions"][0].update(session_id="t"), 400, "sessions[0].session_id", "the path names"),
    "twice": (lambda e: e["sessions"].append(e["sessions"][0]), 400, "sessions", "twice"),
    "a stranger": (
        lambda e: e["sessions"][1].update(state=e["sessions"][0]["state"]),
        400, "sessions[1]", "does not belong to 's'",
    ),
    "a branch alone": (lambda e: e["sessions"].pop(0), 400, "sessions[0].session_id", "the path names"),
    "a field": (lambda e: e.update(tenant="b"), 400, "tenant", "tenant"),
}  # fmt: skip


def test_a_refused_import_names_what_is_wrong_and_changes_nothing() -> None:
    """Also where it would exchange a session that is there."""
    _, client = worked()
    export = exported(client)
    other = server_of()
    there = make_client(other)
    assert there.post(SESSIONS, json={"session_id": "s", "messages": HISTORY}).status_code == 201
    before = (shown(there), heads(other))
    for name, (change, status, field, said) in REFUSED.items():
        answer = imported(there, without(export, change), replace="true")
        assert (name, answer.status_code) == (name, status), answer.text
        error = answer.json()["error"]
        assert (name, error["param"]) == (name, field)
        assert said in error["message"], error
        assert error["remedy"]
    assert imported(there, export).status_code == 409
    assert (shown(there)[:-1], heads(other)[0].created_at) == (before[0][:-1], before[1][0].created_at)
    other.store.check_integrity()


def test_there_has_to_be_room() -> None:
    _, client = worked()
    export = exported(client)
    for limits, field in (({"max_bytes": 12_000}, "session_id"), ({"max_sessions": 1}, "sessions")):
        other = server_of(**limits)
        there = make_client(other)
        assert there.post(SESSIONS, json={"session_id": "old"}).status_code == 201
        answer = imported(there, export)
        assert (answer.status_code, answer.json()["error"]["param"]) == (409, field), (limits, answer.text)
        assert [head.session_id for head in heads(other)] == ["old"]


def test_an_exchanged_session_leaves_nothing() -> None:
    _, client = worked()
    export = exported(client)
    other = server_of()
    there = make_client(other)
    assert there.post(SESSIONS, json={"session_id": "s", "messages": HISTORY}).status_code == 201
    old = there.post(f"{SESSIONS}/s/branches", json={"description": "old", "prompt": "Old."}).json()["branch_id"]
    assert imported(there, export, replace="true").status_code == 201
    assert shown(there) == shown(client)
    assert there.get(f"{SESSIONS}/{old}").status_code == 404
    assert other.sessions.must_forget(other.store.get("", "s"))
    assert imported(there, export, replace="true").status_code == 201, "and once more, its own branch included"
    other.store.check_integrity()


def test_tenants_hand_over_their_own() -> None:
    server, client = worked(**{"X-Cache-Salt": "mine"})
    export = exported(client)
    stranger = make_client(server, **{"X-Cache-Salt": "theirs"})
    assert stranger.get(f"{SESSIONS}/s/export").status_code == 404
    before = shown(client)
    assert imported(stranger, export).status_code == 201, "a session of its own, under the same id"
    assert stranger.delete(f"{SESSIONS}/s").status_code == 204
    assert imported(stranger, export, replace="true").status_code == 201
    assert shown(client) == before
    assert exported(client)["sessions"] == export["sessions"]


def test_a_branch_goes_with_its_session() -> None:
    _, client = worked()
    branch = client.get(f"{SESSIONS}/s/branches").json()["data"][0]["branch_id"]
    for name in (branch, "s~task"):
        answer = client.get(f"{SESSIONS}/{name}/export")
        assert answer.status_code == 409
        assert "belongs to session 's'" in answer.json()["error"]["message"]
    assert client.get(f"{SESSIONS}/none/export").status_code == 404


def with_a_branch_of_a_side() -> tuple[ContextServer, TestClient, str]:
    """As `worked`, and a side thread has a branch."""
    server, client = worked()
    made = client.post(f"{SESSIONS}/s~task/branches", json={"description": "dig", "prompt": "Dig deeper."})
    assert made.status_code == 201
    return server, client, made.json()["branch_id"]


def test_a_branch_of_a_side_thread_goes_along() -> None:
    """It was left out, and could not be exported in any other way."""
    server, client, branch = with_a_branch_of_a_side()
    export = exported(client)
    names = [each["session_id"] for each in export["sessions"]]
    assert (names[0], names[-1], len(names)) == ("s", branch, 5)
    other = server_of()
    there = make_client(other)
    assert imported(there, export).status_code == 201
    assert shown(there) == shown(client)
    assert other.store.get("", branch).state == server.store.get("", branch).state
    assert exported(there)["sessions"] == export["sessions"]
    alone = client.get(f"{SESSIONS}/{branch}/export")
    assert (alone.status_code, "belongs to session 's'," in alone.text) == (409, True)
    told = there.post(f"{SESSIONS}/s~task/branches/{branch}/return", json={"message": "Deep enough."})
    assert told.status_code == 200, told.text
    assert there.get(f"{SESSIONS}/{branch}").status_code == 404
    other.store.check_integrity()


def test_a_branch_of_a_side_thread_goes_where_its_session_is_exchanged_or_deleted() -> None:
    """It stayed, and still showed the text."""
    for end in ("import", "delete"):
        server, client, branch = with_a_branch_of_a_side()
        export = exported(client)
        if end == "import":
            export["sessions"] = export["sessions"][:1]
            assert imported(client, export, replace="true").status_code == 201
        else:
            assert client.delete(f"{SESSIONS}/s").status_code == 204
        assert client.get(f"{SESSIONS}/{branch}/context").status_code == 404
        assert [head.session_id for head in heads(server)] == (["s"] if end == "import" else [])


@pytest.mark.parametrize(("name", "value"), [("session_id", "s~none"), ("mark", "0" * 16)])
def test_an_import_with_a_branch_of_a_stranger_is_refused(name: str, value: str) -> None:
    """Also where the stranger has the id of the side thread."""
    _, client, branch = with_a_branch_of_a_side()
    export = exported(client)
    state = json.loads(export["sessions"][-1]["state"])
    state["limits"][0]["parent"][name] = value
    export["sessions"][-1]["state"] = json.dumps(state)
    answer = imported(make_client(server_of()), export)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "sessions[4]"
    assert f"is {branch!r}, which does not belong to 's'" in answer.json()["error"]["message"]


def test_an_export_and_a_branch_that_returns_do_not_wait_for_each_other() -> None:
    """The branch holds itself, and waits for the side thread that the export is to hold, too."""
    server, _, branch = with_a_branch_of_a_side()
    side = server.store.get("", "s~task")

    async def run() -> list[int]:
        transport = httpx.ASGITransport(app=make_app(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://acm") as client:
            async with server.sessions.locked(side):
                export = asyncio.create_task(client.get(f"{SESSIONS}/s/export"))
                await until_they_wait(server, 1, "s~task")
                url = f"{SESSIONS}/s~task/branches/{branch}/return"
                back = asyncio.create_task(client.post(url, json={"message": "Deep enough."}))
                await until_they_wait(server, 2, "s~task", branch)
            answers = await asyncio.wait_for(asyncio.gather(export, back), 300)
            return [answer.status_code for answer in answers]

    assert asyncio.run(run()) == [200, 200]


def test_an_export_waits_for_a_running_turn() -> None:
    server, _ = worked()
    session = server.store.get("", "s")

    async def run() -> dict[str, Any]:
        transport = httpx.ASGITransport(app=make_app(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://acm") as client:
            async with server.sessions.locked(session):
                asked = asyncio.create_task(client.get(f"{SESSIONS}/s/export"))
                await until_they_wait(server, 1)
                assert not asked.done()
                server.store.save(session, replace(session.state, num_turns=41))
            answer: dict[str, Any] = (await asked).json()
            return answer

    assert json.loads(asyncio.run(run())["sessions"][0]["state"])["num_turns"] == 41


def mutated(value: Any, chance: random.Random) -> Any:
    """A value with one thing in it exchanged for something else."""
    strange = chance.choice([None, -1, 7, 2**62, 2**70, "", "x", [], {}, [0], {"a": 1}, True, 0.5])
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        return {**value, key: mutated(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        index = chance.randrange(len(value))
        return [*value[:index], mutated(value[index], chance), *value[index + 1 :]]
    return strange


def test_no_damage_breaks_a_server() -> None:
    """What is not refused can be shown, edited, exported and deleted like any other. `make fuzz` tries more."""
    _, client = worked()
    export, chance = exported(client), random.Random(7)
    num_taken = 0
    for number in range(100 * FACTOR):
        key = "turns" if number % 5 == 0 else "state"
        damaged = json.loads(json.dumps(export))
        damaged["sessions"][0][key] = json.dumps(mutated(json.loads(damaged["sessions"][0][key]), chance))
        other = server_of()
        there = make_client(other)
        answer = imported(there, damaged)
        assert answer.status_code in (201, 400, 409), answer.text
        if answer.status_code == 201:
            num_taken += 1
            shown(there)
            there.post(f"{SESSIONS}/s/edits", json={"edits": [{"op": "fold", "messages": {"start": 3, "end": 4}}]})
            exported(there)
            other.store.check_integrity()
    assert 3 < num_taken < 90 * FACTOR
