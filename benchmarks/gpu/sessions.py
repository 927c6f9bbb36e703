"""Sessions side by side on two engines, each asking again when it has its answer. A third of the turns fold. One stage.

    opening   a context of random tokens, read and not counted
    turn      the last prompt and new tokens. In every third turn a fold first: three eighths of what is behind an
              eighth are taken out, and a marker stands there

Both engines are sent the same prompts, and which goes first is drawn for each repetition. What the answers come to is
told by `bench trace`: rates beside stock with paired intervals, waiting, goodput, receipts, and its gate.

In 16 bits the batch of a token changes its last digits. So stock is held against itself once: that many of its answers
differ with nothing of acmserve in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acmserve.bench.gpu.engine_pair import EnginePair
from acmserve.bench.gpu.served_model import ServedModel
from acmserve.bench.harness.engine import Ask, EngineReply, PlayedSessions
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.provenance.drawn_order import draw_order
from acmserve.bench.scale.cells import MARKER_TOKENS, REMOVED_EIGHTHS
from acmserve.bench.trace.load import AnsweredTurn, Load, PlannedSession, SessionReplay
from acmserve.bench.trace.peer_servers import EXACT, OURS, REUSE, STOCK, Cached, Peer
from acmserve.bench.trace.prompts import Prompt
from acmserve.bench.trace.score import ReplayCell
from acmserve.bench.trace.table import as_report

NUM_TURNS, FOLD_EVERY, NEW_TOKENS, ANSWER_TOKENS = 6, 3, 64, 32
GROWTH = NUM_TURNS * (NEW_TOKENS + MARKER_TOKENS) + ANSWER_TOKENS
"""Tokens by which a session may become longer than its opening."""
PEERS = (Peer(REUSE), Peer(EXACT), Peer(STOCK))
Cases = Sequence[tuple[int, int]]


def measure_sessions(pair: EnginePair, cases: Cases, num_repetitions: int) -> dict[str, Any]:
    """JSON-ready. `cases` are numbers of sessions, each with the length of their contexts."""
    loads: dict[tuple[str, str], list[Load]] = {}
    same: list[bool] = []
    steps = [(repetition, case) for repetition in range(num_repetitions) for case in cases]
    for step, (repetition, (number, context)) in enumerate(steps, start=1):
        name = name_of(number, context)
        progress(counted(step, len(steps), f"{pair.kv_type} KV, {name}, repetition {repetition + 1}"))
        sessions = plan_sessions(pair.model, number, context, repetition)
        for peer in draw_order(PEERS, repetition, name):
            loads.setdefault((peer.name, name), []).append(play(pair, peer, sessions))
        if repetition == 0:
            again = play(pair, Peer(STOCK), sessions, "again ")
            same += [one == other for one, other in zip(_answers(loads[STOCK, name][0]), _answers(again), strict=True)]
    cells = [
        ReplayCell(peer, name_of(*case), tuple(loads[peer.name, name_of(*case)])) for case in cases for peer in PEERS
    ]
    told = {"answer_tokens": ANSWER_TOKENS, "stock_beside_itself": {"compared": len(same), "other": same.count(False)}}
    return as_report(cells, is_timed=True, is_float32=pair.is_float32) | told


def _answers(load: Load) -> list[tuple[int, ...] | str]:
    return [turn.answer for replay in load.replays for turn in replay.turns]


def name_of(number: int, context: int) -> str:
    """For people, and for the rows of the report."""
    return f"{number} session{'' if number == 1 else 's'} of {context:,} tokens"


def plan_sessions(model: ServedModel, number: int, context: int, repetition: int) -> list[PlannedSession]:
    """Sessions with contexts of their own, other ones in each repetition. Pure."""
    keys = [f"{number}-{context}-{repetition}-{place}" for place in range(number)]
    return [PlannedSession(key, "", _plan_prompts(model, context, key)) for key in keys]


def _plan_prompts(model: ServedModel, context: int, key: str) -> tuple[Prompt, ...]:
    fresh = model.draw_tokens(context + NUM_TURNS * (NEW_TOKENS + MARKER_TOKENS), key)
    tokens, fresh = fresh[:context], fresh[context:]
    prompts = [Prompt((), tokens, is_edited=False, is_forced=False, pause=0.0)]
    for turn in range(1, NUM_TURNS + 1):
        if is_edited := turn % FOLD_EVERY == FOLD_EVERY - 1:
            front = len(tokens) // 8
            hole = (len(tokens) - front) * REMOVED_EIGHTHS // 8
            tokens = tokens[:front] + fresh[:MARKER_TOKENS] + tokens[front + hole :]
        tokens += fresh[MARKER_TOKENS : MARKER_TOKENS + NEW_TOKENS]
        fresh = fresh[MARKER_TOKENS + NEW_TOKENS :]
        prompts.append(Prompt((), tokens, is_edited, is_forced=False, pause=0.0, num_answered=ANSWER_TOKENS))
    return tuple(prompts)


def play(pair: EnginePair, peer: Peer, sessions: Sequence[PlannedSession], salt: str = "") -> Load:
    """Read all openings, then play the turns. The clock begins behind the openings. Another `salt` finds no KV."""
    engine = pair.ours if peer.name in OURS else pair.stock
    asks = [[_ask(peer, session, prompt, salt) for prompt in session.prompts] for session in sessions]
    engine.play([script[:1] for script in asks])
    return as_load(peer, sessions, engine.play([script[1:] for script in asks]))


def _ask(peer: Peer, session: PlannedSession, prompt: Prompt, salt: str) -> Ask:
    """A salt of its own for each session and peer, so that none finds what another one left."""
    salt = f"{salt}{peer.name} {session.name}"
    told: dict[str, Any] = {"session_id": salt, "fidelity": peer.name} if peer.name in OURS else {}
    return Ask(prompt.tokens, salt, max_tokens=max(1, prompt.num_answered), ignore_eos=True, **told)


def as_load(peer: Peer, sessions: Sequence[PlannedSession], played: PlayedSessions) -> Load:
    """In the words of `bench trace`. Pure."""
    replays = []
    for session, replies, seconds in zip(sessions, played.replies, played.turn_seconds, strict=True):
        answered = zip(replies, session.prompts[1:], seconds, strict=True)
        turns = [_as_turn(peer, number, *one) for number, one in enumerate(answered, start=1)]
        replays.append(SessionReplay(session, turns))
    return Load(tuple(replays), played.seconds)


def _as_turn(peer: Peer, number: int, reply: EngineReply, prompt: Prompt, seconds: float) -> AnsweredTurn:
    told = _cached(peer, reply, prompt)
    return AnsweredTurn(number, reply.first_token_s, len(prompt.tokens), reply.token_ids, told, seconds)


def _cached(peer: Peer, reply: EngineReply, prompt: Prompt) -> Cached:
    """What the receipt tells, or vLLM's own count for a plain request."""
    if reply.receipt is not None:
        kept, moved, computed = (reply.receipt[f"{name}_tokens"] for name in ("kept", "moved", "computed"))
        return Cached(kept, moved, computed, reply.receipt.get("fallback_reason") or "")
    if peer.name in OURS:
        return Cached(None, None, None)
    return Cached(reply.cached_tokens, 0, len(prompt.tokens) - reply.cached_tokens)
