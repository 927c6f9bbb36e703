"""Which servers run when: all at once where memory allows, and then they take turns; else one after the other.

    together   for each repetition, policy and concurrency:   exact  reuse  stock  noprefix      (idle servers sleep)
    apart      exact and reuse: everything | stock: everything | noprefix: everything

Only one server answers at a time in both cases. Taking turns spreads what else the machine does over all of them, which
one after the other cannot; a report says which of the two it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from acmserve.bench.harness.peer_servers import SERVED_NAME, Peer, Setting, start
from acmserve.bench.trace.load import Load, Pace, Session, run_load
from acmserve.bench.trace.score import Cell
from acmserve.errors import AcmError

# Weights in float32, the libraries and buffers of one server; the KV cache comes on top.
_GIB_BESIDE_KV = 3


@dataclass(frozen=True, slots=True)
class Part:
    """One policy at one concurrency: the sessions of each repetition."""

    policy: str
    concurrency: int
    repetitions: tuple[tuple[Session, ...], ...]


def fit_together(peers: Sequence[Peer], kv_gib: int, available_gib: float) -> bool:
    """Whether the servers that have to be started fit into the memory that is free now."""
    num_started = len({peer.process for peer in peers if not peer.is_url})
    return num_started < 2 or num_started * (kv_gib + _GIB_BESIDE_KV) <= available_gib


def available_gib() -> float:
    """Memory that is free for new processes; without /proc/meminfo none, so that servers run one after the other."""
    info = Path("/proc/meminfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((int(line.split()[1]) / 2**20 for line in lines if line.startswith("MemAvailable:")), 0.0)


def run_parts(
    peers: Sequence[Peer],
    parts: Sequence[Part],
    setting: Setting,
    pace: Pace,
    say: Callable[[str], None],
    *,
    together: bool,
) -> list[Cell]:
    """Replay every part on every server."""
    processes = list(dict.fromkeys(peer.process for peer in peers))
    groups = [processes] if together else [[process] for process in processes]
    loads: dict[tuple[str, int], list[Load]] = {(peer.name, n): [] for peer in peers for n in range(len(parts))}
    for group in groups:
        some = [peer for peer in peers if peer.process in group]
        with ExitStack() as stack:
            urls = _start_all(some, setting, stack, say)
            for repetition in range(max(len(part.repetitions) for part in parts)):
                for number, part in enumerate(parts):
                    for peer in _in_turn(some, repetition):
                        url, model = urls[peer.process]
                        told = f"{part.policy}, {part.concurrency} at a time, repetition {repetition + 1}: {peer.title}"
                        say(told)
                        sessions = part.repetitions[repetition]
                        loads[peer.name, number].append(run_load(url, peer, sessions, part.concurrency, pace, model))
    return [
        Cell(peer, part.policy, part.concurrency, tuple(loads[peer.name, number]))
        for number, part in enumerate(parts)
        for peer in peers
    ]


def _in_turn(peers: Sequence[Peer], repetition: int) -> list[Peer]:
    """Another one begins in each repetition."""
    first = repetition % len(peers)
    return [*peers[first:], *peers[:first]]


def _start_all(
    peers: Sequence[Peer], setting: Setting, stack: ExitStack, say: Callable[[str], None]
) -> dict[str, tuple[str, str]]:
    """URL and model's name by process; everything that was started ends with the stack."""
    say(f"starting {', '.join(peer.title for peer in peers)} (about a minute)")
    urls: dict[str, tuple[str, str]] = {}
    started = {}
    for peer in peers:
        if peer.is_url:
            urls[peer.process] = (peer.name, first_model(peer.name))
        elif peer.process not in started:
            started[peer.process] = stack.enter_context(start(peer, setting))
    for process, server in started.items():
        urls[process] = (server.wait_ready(), SERVED_NAME)
    return urls


def first_model(url: str) -> str:
    """The name of the first model that a running server lists. Raises AcmError where it cannot be asked."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        listed = httpx.get(f"{base}/v1/models", timeout=30, trust_env=False).raise_for_status().json()
        return str(listed["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise AcmError(f"--against {url}: its /v1/models cannot be read ({error})") from error
