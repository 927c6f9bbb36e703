"""The servers of `bench trace`: which run together, in what order, with which flags, and who replays which sessions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.ending import run_to_its_end
from acmserve.bench.harness.engine import EngineReply
from acmserve.bench.harness.options import partial_file
from acmserve.bench.harness.run_log import RUN
from acmserve.bench.provenance.drawn_order import draw_order
from acmserve.bench.trace import servers
from acmserve.bench.trace.kept import KeptRepetitions
from acmserve.bench.trace.load import Load, PlannedSession, ReplayRates, SessionReplay, run_load, warm_session
from acmserve.bench.trace.peer_servers import NAMES, Peer, Setting, _vllm_flags
from acmserve.bench.trace.plan import PolicyPart
from acmserve.bench.trace.servers import fit_together, plan_sittings
from acmserve.errors import AcmError
from acmserve.seams import load as load_seam
from acmserve.server.app.serve import parse_vllm_flags
from acmserve.server.vllm.seams import ARG_PARSER

SESSION = PlannedSession("one", "00000000", ())
SETTING = Setting(Path("model"), None, 512)


def test_the_order_of_servers_is_drawn_anew_and_can_be_drawn_again() -> None:
    peers = [Peer(name) for name in NAMES]
    orders = [draw_order(peers, repetition, policy) for repetition in range(5) for policy in ("cwl", "recency")]
    assert all(set(order) == set(peers) for order in orders)
    assert len({tuple(order) for order in orders}) == len(orders)
    assert draw_order(peers, 3, "cwl") == orders[6]


def test_servers_that_run_apart_take_turns_by_repetitions() -> None:
    """Each process plays every repetition once, with all its peers, in an order that can be drawn again."""
    peers = [Peer(name) for name in ("exact", "reuse", "stock", "noprefix", "llamacpp")]
    assert plan_sittings(peers, 5, together=True) == [(range(5), peers)]
    apart = plan_sittings(peers, 5, together=False)
    by_repetition = [[names_of(some) for played, some in apart if played == range(n, n + 1)] for n in range(5)]
    processes = [("exact", "reuse"), ("stock",), ("noprefix",), ("llamacpp",)]
    assert all(sorted(one) == sorted(processes) for one in by_repetition)
    assert [played.start for played, _ in apart] == sorted(played.start for played, _ in apart)
    assert len({tuple(one) for one in by_repetition}) > 1
    assert plan_sittings(peers, 5, together=False) == apart


def names_of(peers: Sequence[Peer]) -> tuple[str, ...]:
    return tuple(peer.name for peer in peers)


def test_servers_are_started_with_the_flags_that_were_asked_for() -> None:
    tuned = _vllm_flags(Peer("stock"), SETTING)
    assert "--kv-cache-memory-bytes" not in tuned
    small = _vllm_flags(Peer("stock"), replace(SETTING, pool_bytes=4096))
    assert small[small.index("--kv-cache-memory-bytes") + 1] == "4096"


@pytest.mark.parametrize("name", ["exact", "stock", "noprefix"])
@pytest.mark.parametrize(("pool_bytes", "gib"), [(0, "3"), (4096, None)])
def test_a_pool_of_bytes_is_not_overridden_by_the_environment(
    name: str, pool_bytes: int, gib: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU vLLM takes the variable before the flag, so it is not even inherited."""
    environs: list[dict[str, str]] = []

    class Process:
        pid, returncode = 0, 0

        def __init__(self, *_: Any, env: dict[str, str], **__: Any) -> None:
            environs.append(env)

        def poll(self) -> int:
            return 0

        def wait(self, timeout: float | None = None) -> int:
            return 0

    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.setattr(subprocess, "Popen", Process)
    servers.start(Peer(name), replace(SETTING, pool_bytes=pool_bytes)).end()
    assert [environ.get("VLLM_CPU_KVCACHE_SPACE") for environ in environs] == [gib]


@pytest.mark.skipif(not current_platform.is_cpu(), reason="elsewhere every server computes as it does by default")
@pytest.mark.parametrize(("is_tuned", "computed"), [(True, ("float32", True)), (False, ("auto", False))])
def test_ours_and_stock_compute_in_the_same_way(is_tuned: bool, computed: tuple[str, bool]) -> None:
    """As the parser of each reads its flags: `acmserve serve` fills in what it is not told."""
    setting = replace(SETTING, is_tuned=is_tuned)
    ours, stock, defaults = (_vllm_flags(Peer(name), setting) for name in ("exact", "stock", "defaults"))
    parsers = (parse_vllm_flags, load_seam(ARG_PARSER)(FlexibleArgumentParser()).parse_args)
    found = [parse([*words, *flags]) for parse, words, flags in zip(parsers, (["m"], []), (ours, stock), strict=True)]
    assert [(one.dtype, one.enforce_eager) for one in found] == [computed] * 2
    by_default = parsers[1](defaults)
    assert (by_default.dtype, by_default.enforce_eager) == ("auto", False)


def test_sessions_are_replayed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of groups add up. 0 is all at once."""
    groups: list[int] = []

    def together(url: str, peer: Peer, sessions: Sequence[PlannedSession], *_: Any) -> Load:
        groups.append(len(sessions))
        return Load(tuple(SessionReplay(session) for session in sessions), 2.0)

    monkeypatch.setattr("acmserve.bench.trace.load._run_together", together)
    rates = ReplayRates(scale=0.0, max_tokens=1, num_together=2)
    load = run_load("http://x", Peer("stock"), [SESSION] * 5, rates)
    assert (groups, len(load.replays), load.seconds) == ([2, 2, 1], 5, 6.0)
    groups.clear()
    run_load("http://x", Peer("stock"), [SESSION] * 5, replace(rates, num_together=0))
    assert groups == [5]


class Started:
    """A server that nobody started."""

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_ready(self) -> str:
        return "http://x"


@pytest.mark.parametrize(("together", "num_starts"), [(True, 1), (False, 3)])
def test_a_server_is_warmed_up_behind_each_start_and_in_front_of_each_opening(
    together: bool, num_starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that runs apart is started anew for each repetition, and would be measured cold. A URL was started before."""
    found: list[tuple[str, str]] = []

    def load(url: str, peer: Peer, sessions: Sequence[PlannedSession], *_: Any) -> Load:
        found.append(("counted", peer.name))
        return Load(tuple(SessionReplay(session) for session in sessions), 2.0)

    def warm(url: str, peer: Peer) -> Load:
        found.append(("warm", peer.name))
        return Load((), 0.0)

    monkeypatch.setattr(servers, "start", lambda peer, setting: Started())
    monkeypatch.setattr(servers, "first_model", lambda url: "m")
    monkeypatch.setattr(servers, "run_load", load)
    monkeypatch.setattr(servers, "warm_up", warm)
    monkeypatch.setattr(servers, "ask_witnesses", lambda *_, **__: ())
    peers = [Peer(name) for name in ("exact", "reuse", "stock", "http://x")]
    kept, rates = KeptRepetitions({}), ReplayRates(0, 1)
    part = PolicyPart("cwl", ((SESSION,),) * 3)
    servers.run_parts(peers, [part], SETTING, rates, lambda line: None, together=together, kept=kept)
    for peer in peers[:3]:
        own = [what for what, name in found if name == peer.name]
        assert own == ["warm", "counted"] * 3 if not together else ["warm", "counted", "counted", "counted"]
        assert own.count("warm") == num_starts
    assert ("warm", "http://x") not in found


def test_a_warm_up_appends_and_edits_a_text_of_its_own() -> None:
    session = warm_session()
    opening, append, edit = (prompt.messages for prompt in session.prompts)
    assert append[: len(opening)] == opening
    assert [one == other for one, other in zip(append, edit, strict=True)] == [True, False, True, True, True, True]
    assert [prompt.is_edited for prompt in session.prompts] == [False, False, True]
    num_words = sum(len(one["content"].split()) for one in append)
    assert 150 < num_words < 300, "it takes some seconds at most"


def test_a_server_that_cannot_be_warmed_up_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Load((SessionReplay(SESSION, failure="HTTP 500"),), 0.0)
    monkeypatch.setattr(servers, "start", lambda peer, setting: Started())
    monkeypatch.setattr(servers, "warm_up", lambda *_: failed)
    part, kept = PolicyPart("cwl", ((SESSION,),)), KeptRepetitions({})
    with pytest.raises(AcmError, match="warming up, one: HTTP 500"):
        servers.run_parts(
            *([Peer("stock")], [part], SETTING, ReplayRates(0, 1), lambda line: None), together=True, kept=kept
        )


@pytest.mark.parametrize(("is_tuned", "num_fresh"), [(True, 0), (False, 1)])
def test_stock_is_asked_twice_at_its_own_defaults(
    is_tuned: bool, num_fresh: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All behind the last repetition. In float32 stock is the same as itself."""
    asked: list[tuple[str, int, bool]] = []

    def ask(url: str, peer: Peer, model: str, sessions: Sequence[PlannedSession], *, is_fresh: bool = False) -> Any:
        asked.append((peer.name, len(sessions), is_fresh))
        return (EngineReply(0.0, 0, (5,), "", None, ({5: -0.5},)),)

    def load(url: str, peer: Peer, sessions: Sequence[PlannedSession], *_: Any) -> Load:
        return Load(tuple(SessionReplay(session) for session in sessions), 2.0)

    monkeypatch.setattr(servers, "start", lambda peer, setting: Started())
    monkeypatch.setattr(servers, "run_load", load)
    monkeypatch.setattr(servers, "warm_up", lambda *_: Load((), 0.0))
    monkeypatch.setattr(servers, "ask_witnesses", ask)
    setting = replace(Setting(Path("model"), None, 512), is_tuned=is_tuned)
    part = PolicyPart("cwl", ((SESSION,) * 3,) * 2)
    peers = [Peer(name) for name in ("exact", "reuse", "stock")]
    cells = servers.run_parts(
        *(peers, [part], setting, ReplayRates(scale=0, max_tokens=1), lambda line: None),
        together=True,
        kept=KeptRepetitions({}),
    )
    assert {cell.peer.name: len(cell.fresh) for cell in cells} == {"exact": 0, "reuse": 0, "stock": num_fresh}
    assert all(len(cell.witnesses) == 1 for cell in cells)
    assert sorted(asked) == sorted([(peer.name, 3, False) for peer in peers] + [("stock", 3, True)] * num_fresh)


@pytest.mark.parametrize(("name", "num_played"), [("stock", 1), ("http://x", 3)])
def test_a_failed_session_of_a_started_server_ends_the_run_at_once(
    name: str, num_played: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was measured until then is kept, as after every error. A URL is somebody else's, and is asked on."""
    num_loads = 0

    def load(url: str, peer: Peer, sessions: Sequence[PlannedSession], *_: Any) -> Load:
        nonlocal num_loads
        num_loads += 1
        RUN.answered(0.5, None)
        return Load((SessionReplay(SESSION, failure="HTTP 500: out of memory"),), 2.0)

    def run(_: Sequence[str]) -> int:
        part = PolicyPart("cwl", ((SESSION,),) * 3)
        rates, kept = ReplayRates(0, 1), KeptRepetitions({})
        servers.run_parts([Peer(name)], [part], SETTING, rates, lambda line: None, together=True, kept=kept)
        return 0

    monkeypatch.setattr(servers, "start", lambda peer, setting: Started())
    monkeypatch.setattr(servers, "first_model", lambda url: "m")
    monkeypatch.setattr(servers, "run_load", load)
    monkeypatch.setattr(servers, "warm_up", lambda *_: Load((), 0.0))
    file = tmp_path / "trace.json"
    if name == "stock":
        with pytest.raises(AcmError, match="cwl, repetition 1: vLLM, prefix caching, one: HTTP 500: out of memory"):
            run_to_its_end(Benchmark("trace", "", run), ["--json", str(file)])
        assert len(json.loads(partial_file(file).read_text(encoding="utf-8"))["answers"]) == 1
    else:
        run_to_its_end(Benchmark("trace", "", run), ["--json", str(file)])
        assert not partial_file(file).exists()
    assert num_loads == num_played


def test_servers_run_together_where_memory_allows() -> None:
    peers = [Peer(name) for name in ("exact", "reuse", "stock", "noprefix")]
    assert fit_together(peers, 3, 18.0)
    assert not fit_together(peers, 3, 17.9)
    assert fit_together(peers[:2], 3, 1.0)
    assert fit_together([Peer("http://x"), Peer("http://y")], 3, 0.0)
