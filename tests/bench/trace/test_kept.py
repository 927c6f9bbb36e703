"""A run that is ended keeps whole repetitions, and the same command goes on behind them. Without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.ending import run_to_its_end
from acmserve.bench.harness.options import partial_file, read_partial
from acmserve.bench.harness.run_log import RUN
from acmserve.bench.provenance.machine_use import is_busy
from acmserve.bench.trace import kept as kept_module
from acmserve.bench.trace import servers
from acmserve.bench.trace.kept import KeptRepetitions
from acmserve.bench.trace.load import AnsweredTurn, Load, PlannedSession, ReplayRates, SessionReplay
from acmserve.bench.trace.main import BENCHMARK, main
from acmserve.bench.trace.peer_servers import Cached, Peer, Setting
from acmserve.bench.trace.plan import PolicyPart
from acmserve.bench.trace.prompts import Prompt
from acmserve.bench.trace.score import ReplayCell
from acmserve.errors import AcmError
from tests.bench.trace.test_servers import Started

NUM = 3
PROMPT = Prompt((), (), is_edited=True, is_forced=False, pause=0.0)
PEERS = [Peer("exact"), Peer("stock")]
PARTS = [
    PolicyPart(policy, tuple((PlannedSession("one", f"{policy}{number}", (PROMPT,) * 2),) for number in range(NUM)))
    for policy in ("cwl", "recency")
]
ABOUT = {"digest": "d", "against": ("exact", "stock")}
QUIET = {"seconds": 9.0, "own_share": 0.9, "other_share": 0.0, "stolen_share": 0.0}
Played = list[tuple[int, str, str]]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    """What was replayed: repetition, policy, server. Times tell which it was, so that none is taken for another."""
    found: Played = []

    def load(url: str, peer: Peer, sessions: Sequence[PlannedSession], *_: Any) -> Load:
        policy, number = sessions[0].tag[:-1], int(sessions[0].tag[-1])
        found.append((number, policy, peer.name))
        RUN.answered(0.5, None)
        answer = (1, 2) if peer.name == "exact" else "text"
        turn = AnsweredTurn(1, number + len(policy) / 7, 5, answer, Cached(3, None, 2, "why"), 1 / 3)
        return Load((SessionReplay(sessions[0], [turn]),), number + 1 / 3)

    monkeypatch.setattr(servers, "start", lambda peer, setting: Started())
    monkeypatch.setattr(servers, "run_load", load)
    monkeypatch.setattr(servers, "warm_up", lambda *_: Load((), 0.0))
    monkeypatch.setattr(servers, "ask_witnesses", lambda *_, **__: ())
    monkeypatch.setattr(kept_module, "use_between", lambda *_: dict(QUIET))
    yield found
    RUN.begin()


def run(kept: KeptRepetitions, *, together: bool = True) -> list[ReplayCell]:
    rates = ReplayRates(scale=0, max_tokens=1)
    return servers.run_parts(
        PEERS, PARTS, Setting(Path("m"), None, 512), rates, lambda line: None, together=together, kept=kept
    )


def resumed(file: Path, about: Any = ABOUT) -> KeptRepetitions:
    kept = KeptRepetitions(about, partial_file(file))
    kept.resume(read_partial(partial_file(file)))
    return kept


def ended_after(num_loads: int, file: Path, played: Played, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """A run, or one that goes on, that a signal ends in front of a replay."""
    replay = servers.run_load

    def load(*arguments: Any) -> Load:
        if len(played) == num_loads:
            raise KeyboardInterrupt
        return replay(*arguments)

    def measure(_: Sequence[str]) -> int:
        run(resumed(file) if more.get("goes_on") else KeptRepetitions(ABOUT, partial_file(file)))
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(servers, "run_load", load)
        assert run_to_its_end(Benchmark("trace", "", measure), ["--json", str(file)]) == 130


@pytest.mark.parametrize("together", [True, False])
def test_the_same_command_goes_on_behind_whole_repetitions(
    together: bool, played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trace.json"
    ended_after(6, file, played, monkeypatch)
    part = json.loads(partial_file(file).read_text(encoding="utf-8"))
    assert (part["ended_by"], len(part["answers"])) == ("SIGINT", 6), "the end is told, and all answers"
    assert [one["number"] for one in part["whole_repetitions"]] == [0], "half a repetition is none"
    played.clear()
    kept = resumed(file)
    cells = run(kept, together=together)
    assert sorted({number for number, _, _ in played}) == [1, 2]
    assert len(played) == 2 * len(PARTS) * len(PEERS)
    assert cells == run(KeptRepetitions(ABOUT), together=together), "as if nobody had ended it"
    use = kept.use()
    assert use is not None
    assert use["seconds"] >= QUIET["seconds"], "of all repetitions"
    assert KeptRepetitions(ABOUT).use() is None


@pytest.mark.parametrize("num_busy", [0, 1])
def test_one_repetition_that_others_disturbed_makes_the_run_busy(
    num_busy: int, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one, too, which no file keeps. The average of all is quiet, and each is told by itself."""
    uses = [QUIET] * (NUM - num_busy) + [QUIET | {"other_share": 0.2}] * num_busy
    left = iter(uses)
    monkeypatch.setattr(kept_module, "use_between", lambda *_: next(left))
    monkeypatch.setattr(type(RUN), "use", lambda _: QUIET)
    kept = KeptRepetitions(ABOUT)
    run(kept)
    use = kept.use()
    assert use is not None
    assert use["by_repetition"] == uses
    assert use["other_share"] == 0.0
    assert is_busy({"use": use}) is bool(num_busy)


def test_a_run_that_goes_on_and_is_ended_once_more_loses_nothing(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trace.json"
    ended_after(5, file, played, monkeypatch)
    played.clear()
    ended_after(1, file, played, monkeypatch, goes_on=True)
    assert sorted(resumed(file).loads(PARTS)) == [0]
    played.clear()
    ended_after(5, file, played, monkeypatch, goes_on=True)
    assert sorted(resumed(file).loads(PARTS)) == [0, 1]


def test_the_last_repetition_is_replayed_for_the_gate(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers are asked once more behind it."""
    asked: list[str] = []
    file = tmp_path / "trace.json"
    ended_after(11, file, played, monkeypatch)

    def ask(url: str, peer: Peer, *_: Any, **__: Any) -> tuple[()]:
        asked.append(peer.name)
        return ()

    monkeypatch.setattr(servers, "ask_witnesses", ask)
    played.clear()
    run(resumed(file))
    assert {number for number, _, _ in played} == {NUM - 1}
    assert sorted(asked) == ["exact", "exact", "stock", "stock"]


def test_other_settings_code_or_machine_are_not_gone_on_with(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trace.json"
    with pytest.raises(AcmError, match="--resume: there is no"):
        read_partial(partial_file(file))
    ended_after(5, file, played, monkeypatch)
    with pytest.raises(AcmError, match=r"digest d, now e\. Begin anew without --resume"):
        resumed(file, ABOUT | {"digest": "e"})
    part = read_partial(partial_file(file))
    for name, value, told in (
        ("commit", "c", "other code: c"),
        ("cores", 99, "cores 99"),
        ("versions", {}, "versions"),
    ):
        with pytest.raises(AcmError, match=told):
            KeptRepetitions(ABOUT).resume(part | {"machine": part["machine"] | {name: value}})
    busy = [one | {"use": QUIET | {"other_share": 0.4}} for one in part["whole_repetitions"]]
    kept = KeptRepetitions(ABOUT)
    kept.resume(part | {"whole_repetitions": busy})
    assert kept.loads(PARTS) == {}, "what others disturbed is replayed again"
    (one,) = part["whole_repetitions"]
    for odd in ({"machine": 3}, {"repetitions_of": None}, {"whole_repetitions": [3]}, {"whole_repetitions": [{}]}):
        with pytest.raises(AcmError, match=r"trace\.partial\.json cannot be gone on with: .+\. Begin anew without"):
            KeptRepetitions(ABOUT, partial_file(file)).resume(part | odd)
    lacking = KeptRepetitions(ABOUT, partial_file(file))
    lacking.resume(part | {"whole_repetitions": [one | {"loads": [{"server": "exact", "policy": "cwl"}]}]})
    with pytest.raises(AcmError, match="'replays'"):
        lacking.loads(PARTS)
    kept.resume({"partial": True, "answers": []})
    assert kept.loads(PARTS) == {}, "it was ended in its first repetition"


@pytest.mark.parametrize(("other_share", "code", "is_kept"), [(0.0, 0, False), (0.4, 0, True), (0.4, 1, False)])
def test_repetitions_are_kept_where_the_result_is_of_a_busy_machine(
    other_share: float, code: int, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a result is refused, and the next run with `--resume` measures the busy repetitions alone."""
    file = tmp_path / "trace.json"

    def run(*_: object) -> int:
        file.write_text(json.dumps({"use": QUIET | {"other_share": other_share}}), encoding="utf-8")
        partial_file(file).write_text("{}", encoding="utf-8")
        return code

    monkeypatch.setattr("acmserve.bench.trace.main.run_benchmark", run)
    assert main(["--json", str(file)]) == code
    assert partial_file(file).is_file() is is_kept


def test_what_is_repeated_can_be_gone_on_with() -> None:
    """Where nothing is timed there is one repetition, and nothing to keep."""
    assert all((run.resume_flags == ("--resume",)) is run.is_timed for run in BENCHMARK.runs)
