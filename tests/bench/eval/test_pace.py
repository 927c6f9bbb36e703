"""How a run goes: round by round, side by side, until its time is up, and how long the rest takes."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from threading import Barrier, Event, Lock, main_thread
from typing import Any

import pytest

from acmserve.bench.eval.main import parser, samples_of
from acmserve.bench.eval.run import EvalPlan, make_plan, play_all
from acmserve.bench.eval.schedule.journal import Journal
from acmserve.bench.eval.schedule.pace import EvalPace, EvalProgress
from acmserve.bench.eval.schedule.strand import plan_strands
from acmserve.bench.eval.target import Target
from acmserve.bench.eval.tasks.task import EvalSample
from acmserve.bench.eval.ways import find_way
from acmserve.errors import Unavailable
from tests.support.server.fake_openai import Answer, ToyModel, openai_server, says

TASKS = ("--tasks", "babilong,oolong,frames", "--samples", "3", "--set", "oolong.tokens=200")
WAYS = ("baseline", "reads", "rag")


def samples(*arguments: str) -> list[EvalSample]:
    return samples_of(parser().parse_args(["http://nowhere", *(arguments or TASKS)]))


def said(body: Any) -> Answer:
    return says("none", {"prompt_tokens": 9, "completion_tokens": 1})


def plan_for(url: str, *names: str) -> tuple[EvalPlan, Target]:
    target = Target.find(url, None, None, {})
    return make_plan(target, samples(), names or WAYS, 0.5), target


def test_a_round_has_one_context_of_each_setting_in_every_way() -> None:
    made = samples()
    strands = plan_strands(made, [find_way(name) for name in ("baseline", "map", "shared")])
    assert [strand.round for strand in strands] == [0] * 6 + [1] * 6 + [2] * 6
    for number in range(3):
        # The longest first, then the first settings of all tasks, then the second.
        assert [
            (strand.way.name, strand.samples[0].setting, len(strand.samples)) for strand in strands[6 * number :][:6]
        ] == [
            ("baseline", "tokens200", 4),
            ("map", "tokens200", 4),
            ("shared", "tokens200", 4),
            ("baseline", "tokens1000", 1),
            ("baseline", "articles2-tokens1000", 1),
            ("baseline", "articles3-tokens1000", 1),
        ]
    played = [sample for strand in strands for sample in strand.samples]
    assert len(played) == len(made) + 2 * 12


def test_what_the_server_learned_from_is_played_as_a_whole() -> None:
    made = [sample for sample in samples() if sample.group]
    (map_strand,), (shared,) = (plan_strands(made[:4], [find_way(name)]) for name in ("map", "shared"))
    for strand, num_left in ((map_strand, 4), (shared, 3)):
        keys = [(one.task, one.name, strand.way.name) for one in made[:4]]
        assert strand.left({}) == made[:4]
        assert strand.left(dict.fromkeys(keys[:1])) == made[4 - num_left : 4]
        assert strand.left(dict.fromkeys(keys)) == []


def test_two_samples_are_asked_at_the_same_time_and_what_follows_waits_for_a_place(tmp_path: Path) -> None:
    met = Barrier(2)
    lock, asked = Lock(), [0]

    def both(body: Any) -> Answer:
        with lock:
            asked[0] += 1
            is_first = asked[0] <= 2
        if is_first:
            met.wait(timeout=60)
        return said(body)

    with openai_server(ToyModel(both)) as url:
        plan, target = plan_for(url)
        records = play_all(plan, target, Journal(tmp_path / "j", plan.digest), lambda line: None, EvalPace(2))
        target.close()
    assert not met.broken
    assert [(one["task"], one["sample"], one["way"]) for one in records] == plan.pairs()
    assert len({(one["task"], one["sample"], one["way"]) for one in records}) == len(records) == 21 * 3


def test_a_round_begins_before_the_last_answer_of_the_one_before(tmp_path: Path) -> None:
    """Two contexts of one setting, in one way: nothing is left to play beside the first."""
    met = Barrier(2)

    def both(body: Any) -> Answer:
        met.wait(timeout=60)
        return said(body)

    made = samples("--tasks", "frames", "--samples", "2", "--set", "frames.articles=2")
    with openai_server(ToyModel(both)) as url:
        target = Target.find(url, None, None, {})
        plan = make_plan(target, made, ("baseline",), 0.5)
        records = play_all(plan, target, Journal(tmp_path / "j", plan.digest), lambda line: None, EvalPace(2))
        target.close()
    assert len(records) == 2


def test_a_run_whose_time_is_up_has_all_cells_and_goes_on_to_the_same_records(tmp_path: Path) -> None:
    clock, lines = [0.0], []

    def ticking(body: Any) -> Answer:
        clock[0] += 1
        return said(body)

    with openai_server(ToyModel(ticking)) as url:
        plan, target = plan_for(url)
        journal = Journal(tmp_path / "j", plan.digest)
        part = play_all(plan, target, journal, lines.append, EvalPace(1, 30.0, lambda: clock[0]))
        cells = Counter((one["task"], one["way"]) for one in part)
        assert len(part) == 30
        assert cells.keys() == {(task, way) for task, _, way in plan.pairs()}
        assert {one["sample"].split("/")[1] for one in part} == {"0", "1"}
        again = play_all(plan, target, Journal(tmp_path / "j", plan.digest), lines.append)
        whole = play_all(plan, target, Journal(tmp_path / "whole", plan.digest), lines.append)
        target.close()
    assert clock[0] == 2 * 63
    for one in (*again, *whole):
        del one["seconds"]
    assert again == whole
    assert "30 of 63 are in the journal" in lines


def test_where_one_fails_the_others_begin_nothing_more(tmp_path: Path) -> None:
    toy = ToyModel(said, most=5)
    with openai_server(toy) as url:
        plan, target = plan_for(url)
        journal = Journal(tmp_path / "j", plan.digest)
        with pytest.raises(Unavailable, match="the model is gone"):
            play_all(plan, target, journal, lambda line: None, EvalPace(3))
        target.close()
    assert 5 <= len(journal.records) == len(toy.bodies) <= 7


def test_a_signal_waits_for_no_answer(tmp_path: Path) -> None:
    """A server that was told to end may answer nobody any more. A run that waited would have these records."""
    both, released = Barrier(2), Event()

    def silent(body: Any) -> Answer:
        if both.wait(timeout=60) == 0:
            signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
        released.wait(timeout=60)
        return said(body)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with openai_server(ToyModel(silent)) as url:
            plan, target = plan_for(url)
            journal = Journal(tmp_path / "j", plan.digest)
            try:
                with pytest.raises(KeyboardInterrupt):
                    play_all(plan, target, journal, lambda line: None, EvalPace(2))
                assert journal.records == {}
            finally:
                released.set()
    finally:
        signal.signal(signal.SIGINT, before)
    target.close()


def test_the_rest_is_told_by_what_each_way_takes() -> None:
    clock, lines = [0.0], []
    pace = EvalPace(1, None, lambda: clock[0])
    progress = EvalProgress(6, {"cheap": 2, "dear": 2}, pace, lines.append)

    def record(way: str, seconds: float) -> dict[str, Any]:
        return {"task": "t", "sample": "a/0", "way": way, "score": 0.5, "seconds": seconds, "error": ""}

    progress.known([record("cheap", 1.0), record("dear", 9.0)])
    clock[0] = 2.0
    progress.played(record("cheap", 1.0))
    assert progress.seconds_left() == pytest.approx(2 * (1 + 18))
    assert lines == ["3 of 6: t a/0, cheap: score 0.50, 1.0 s; about 38 s left"]
    progress.pace = EvalPace(1, 12.0, lambda: clock[0])
    assert progress.seconds_left() == 10


def test_sittings_are_kept_beside_the_records(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", "run")
    journal.tell(1, {"machine": {"commit": "a"}})
    journal.add({"task": "t", "sample": "s", "way": "w", "score": 1.0})
    journal.tell(1, {"machine": {"commit": "a"}, "use": {"seconds": 5}})
    journal.tell(2, {"machine": {"commit": "b"}})
    again = Journal(tmp_path / "j", "run")
    assert list(again.records) == [("t", "s", "w")]
    assert again.sittings == {
        1: {"machine": {"commit": "a"}, "use": {"seconds": 5}},
        2: {"machine": {"commit": "b"}},
    }
