"""Which servers run when: all at once where memory allows, and then they take turns. Else one after the other.

    together   for each repetition and policy:     exact  reuse  stock  noprefix      (idle servers sleep)
    apart      for each repetition:                exact and reuse | stock | noprefix      (each is started anew)

Only one server answers at a time in both cases, and taking turns spreads what else the machine does over all of them.
Whose turn it is first is drawn anew for each repetition, and for each policy where servers run together. A report says
which of the two it was. A server that was just started is warmed up first. So one that is started anew for each
repetition stands as one that goes on. Behind its last repetition a server answers for the gate once more
(`witness.py`). At vLLM's own defaults stock does so twice (`half_precision.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import httpx
import psutil

from acmserve.bench.harness.engine import EngineReply
from acmserve.bench.harness.run_log import counted
from acmserve.bench.provenance.drawn_order import draw_order
from acmserve.bench.trace.kept import KeptRepetitions, Key
from acmserve.bench.trace.load import Load, ReplayRates, run_load, warm_up
from acmserve.bench.trace.peer_servers import SERVED_NAME, STOCK, Peer, Setting, start
from acmserve.bench.trace.plan import PolicyPart
from acmserve.bench.trace.score import ReplayCell
from acmserve.bench.trace.witness import ask_witnesses
from acmserve.errors import AcmError

# Weights in float32, the libraries and buffers of one server. The KV cache comes on top.
_GIB_BESIDE_KV = 3


def fit_together(peers: Sequence[Peer], kv_gib: int, available_gib: float | None = None) -> bool:
    """Whether the servers that have to be started fit into the memory that is free now."""
    free = psutil.virtual_memory().available / 2**30 if available_gib is None else available_gib
    num_started = len({peer.process for peer in peers if not peer.is_url})
    return num_started < 2 or num_started * (kv_gib + _GIB_BESIDE_KV) <= free


def run_parts(
    peers: Sequence[Peer],
    parts: Sequence[PolicyPart],
    setting: Setting,
    rates: ReplayRates,
    say: Callable[[str], None],
    *,
    together: bool,
    kept: KeptRepetitions,
) -> list[ReplayCell]:
    """Replay every part on every server, and keep each repetition that is whole. What `kept` has is not replayed.

    Raises AcmError where a server does not start, or has no answer for the gate. Raises it, too, where a session
    fails on a server that was started here: no row could be reported any more. A URL is asked on.
    """
    num = len(parts[0].repetitions)
    before = {number: found for number, found in kept.loads(parts).items() if number < num - 1}
    loads: dict[int, dict[Key, Load]] = {number: {} for number in range(num)} | before
    num_loads, number = num * len(parts) * len(peers), len(before) * len(parts) * len(peers)
    witnesses: dict[Key, tuple[EngineReply, ...]] = {}
    fresh: dict[Key, tuple[EngineReply, ...]] = {}
    for repetitions, some in plan_sittings(peers, num, together=together):
        left = [repetition for repetition in repetitions if repetition not in before]
        if not left:
            continue
        with ExitStack() as stack:
            urls = _start_all(some, setting, stack, say)
            for repetition, part in itertools.product(left, parts):
                for peer in draw_order(some, repetition, part.policy):
                    url, model = urls[peer.process]
                    number += 1
                    what = f"{part.policy}, repetition {repetition + 1}: {peer.title}"
                    say(counted(number, num_loads, what))
                    sessions = part.repetitions[repetition]
                    load = run_load(url, peer, sessions, replace(rates, repetition=repetition), model)
                    _check_sessions(peer, load, what)
                    loads[repetition][peer.name, part.policy] = load
                    if repetition == num - 1 and not any(replay.failure for replay in load.replays):
                        witnesses[peer.name, part.policy] = ask_witnesses(url, peer, model, sessions)
                        if peer.name == STOCK and not setting.is_tuned:
                            again = ask_witnesses(url, peer, model, sessions, is_fresh=True)
                            fresh[peer.name, part.policy] = again
                if len(loads[repetition]) == len(parts) * len(peers):
                    kept.keep(repetition, loads[repetition], is_last=repetition == num - 1)
    return [
        ReplayCell(
            *(peer, part.policy, tuple(loads[repetition][key] for repetition in range(num))),
            *(witnesses.get(key, ()), fresh.get(key, ())),
        )
        for part in parts
        for peer in peers
        for key in [(peer.name, part.policy)]
    ]


def _check_sessions(peer: Peer, load: Load, what: str) -> None:
    for replay in load.replays:
        if replay.failure and not peer.is_url:
            raise AcmError(f"{what}, {replay.session.name}: {replay.failure}")


def plan_sittings(peers: Sequence[Peer], num_repetitions: int, *, together: bool) -> list[tuple[range, list[Peer]]]:
    """Which repetitions are played while which servers run, in this order. Pure.

    Servers that run apart take turns by repetitions, in an order that is drawn for each.
    """
    if together:
        return [(range(num_repetitions), list(peers))]
    processes = list(dict.fromkeys(peer.process for peer in peers))
    return [
        (range(repetition, repetition + 1), [peer for peer in peers if peer.process == process])
        for repetition in range(num_repetitions)
        for process in draw_order(processes, repetition, "servers")
    ]


def _start_all(
    peers: Sequence[Peer], setting: Setting, stack: ExitStack, say: Callable[[str], None]
) -> dict[str, tuple[str, str]]:
    """URL and model's name by process. Everything that was started ends with the stack."""
    say(f"starting {', '.join(peer.title for peer in peers)} (about a minute)")
    urls = {peer.process: (peer.name, first_model(peer.name)) for peer in peers if peer.is_url}
    own = {peer.process: peer for peer in peers if not peer.is_url}
    started = {process: stack.enter_context(start(peer, setting)) for process, peer in own.items()}
    ready = {process: server.wait_ready() for process, server in started.items()}
    for peer in peers:
        if not peer.is_url:
            _check_sessions(peer, warm_up(ready[peer.process], peer), "warming up")
    return urls | {process: (url, SERVED_NAME) for process, url in ready.items()}


def first_model(url: str) -> str:
    """The name of the first model that a running server lists. Raises AcmError where it cannot be asked."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        listed = httpx.get(f"{base}/v1/models", timeout=30, trust_env=False).raise_for_status().json()
        return str(listed["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise AcmError(f"--against {url}: its /v1/models cannot be read ({error})") from error
