"""`bench speculation-tokens` on made answers: one other token turns its gate red, and so does what would hide one."""

from __future__ import annotations

import json
import os
import signal
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.harness.benchmark import Benchmark
from acmserve.bench.harness.ending import EXIT_CODES, run_to_its_end
from acmserve.bench.harness.library_text import Library, read_library
from acmserve.bench.harness.options import partial_file, read_partial
from acmserve.bench.harness.run_log import RUN
from acmserve.bench.micro.words import WordCounter
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import sections_of
from acmserve.bench.report.page_height import check_page
from acmserve.bench.report.screen.never import NEVER
from acmserve.bench.report.sections.missed import BESIDE
from acmserve.bench.report.sections.thoughts import SPECULATION
from acmserve.bench.report.sections.thoughts import TOKENS_RESULT as RESULT
from acmserve.bench.report.sources import find_sources
from acmserve.bench.speculation.compared import NUM_CONTROLS, count_differing, play
from acmserve.bench.speculation.conversations import KINDS, TURNS, FoldedConversation, make_conversation
from acmserve.bench.speculation.exactness import num_expected
from acmserve.bench.speculation.kept import KeptConversations
from acmserve.bench.speculation.run import DRAFTED, EXACT, TimedAnswer
from acmserve.bench.speculation.verdict import (
    KINDS_TABLE,
    LEAST_COMPARED,
    REASONS_TABLE,
    WAYS_TABLE,
    as_report,
    find_failures,
    told_tokens,
)
from acmserve.errors import AcmError
from acmserve.server.speculation.speculator import MIN_PREFILL_TOKENS, OTHER_TOKEN
from tests.support.docs.pages import ROOT

NUM_ANSWER = 100
Change = Callable[[TimedAnswer], object]


@cache
def library() -> Library:
    return read_library()


@dataclass
class MadeServer:
    """Answers of a server that drafts well. `change` is done to each answer of the way `changed`."""

    changed: str = ""
    change: Change = lambda answer: None

    def ask(self, body: dict[str, Any]) -> TimedAnswer:
        way = body["session_id"].rpartition(" ")[2]
        assert body["cache_salt"] == body["session_id"]
        assert body["temperature"] == 0
        first = zlib.crc32(json.dumps(body["messages"]).encode()) % 1000
        tokens = [first + place for place in range(body["max_tokens"])]
        counts = {"prompt_tokens": 900, "kept_tokens": 100, "moved_tokens": 0, "computed_tokens": 800}
        answer = TimedAnswer(tokens, 0.1, 1.0, counts, text=f"said {first}")
        if body["acm"]["fidelity"] == "reuse":
            answer.tokens[-1] += 1
            answer.receipt |= {"moved_tokens": 700, "computed_tokens": 100}
        if body["acm"]["speculate"] and body["acm"]["fidelity"] == "exact":
            answer.speculation = {"drafted_tokens": 20, "accepted_tokens": 15, "reason": None}
        if way == self.changed and body["max_tokens"] > 1:
            self.change(answer)
        return answer


@cache
def conversation(number: int) -> FoldedConversation:
    return make_conversation(number, library(), WordCounter())


def rows_of(num: int, server: MadeServer | None = None) -> list[dict[str, Any]]:
    ask = (server or MadeServer()).ask
    return [play(ask, conversation(number), NUM_ANSWER) for number in range(num)]


def another_token(answer: TimedAnswer) -> None:
    answer.tokens[41] += 1


def test_ten_thousand_tokens_that_are_those_of_exact_are_green() -> None:
    num = LEAST_COMPARED // (TURNS * NUM_ANSWER)
    report = as_report(rows_of(3) * num, LEAST_COMPARED, NUM_ANSWER)
    assert report["gate"] == {"green": True, "failures": []}
    assert as_report(rows_of(num), LEAST_COMPARED, NUM_ANSWER)["verified_tokens"] == LEAST_COMPARED
    assert [kind["kind"] for kind in report["kinds"]] == list(KINDS)
    lines = [" ".join(line.split()) for line in told_by(WAYS_TABLE, KINDS_TABLE, REASONS_TABLE)(report)]
    assert "exact, drafted 300 30,000 0" in lines
    assert "the control: moved KV, shown as exact 300 30,000 300" in lines
    assert "superseded lines 100 of 100 10,000 0 2,000 1,500" in lines
    assert "verified 300" in lines


def test_one_token_that_differs_turns_the_gate_red() -> None:
    """The control. It is one token of one answer among all."""
    rows = rows_of(50)
    rows[17] = play(MadeServer(DRAFTED, another_token).ask, conversation(17), NUM_ANSWER)
    rows[17]["turns"][1] = rows_of(18)[17]["turns"][1]
    report = as_report(rows, LEAST_COMPARED, NUM_ANSWER)
    assert report["gate"]["failures"] == [
        "other tokens than under exact, in drafted answers: 1 of 10,000",
        "conversation 17, turn 1: other tokens than under exact: 1, from token 41 on",
    ]
    assert told_by(WAYS_TABLE)(report)[0] == "GATE RED, so nothing is reported:"
    assert "1 differ from those of `exact`" in told_tokens(report)
    other = rows[17]["turns"][0]["other_answers"]
    assert other[DRAFTED][41] == other[EXACT][41] + 1, "what differs is kept"


def unverified(answer: TimedAnswer) -> None:
    answer.speculation = {"drafted_tokens": 20, "accepted_tokens": 0, "reason": OTHER_TOKEN}


def unverified_and_other(answer: TimedAnswer) -> None:
    unverified(answer)
    another_token(answer)


def shorter(answer: TimedAnswer) -> None:
    del answer.tokens[-1]


def moved(answer: TimedAnswer) -> None:
    answer.receipt |= {"moved_tokens": 700, "computed_tokens": 100}


def unmoved(answer: TimedAnswer) -> None:
    answer.receipt |= {"moved_tokens": 0, "computed_tokens": 800}


def lost(answer: TimedAnswer) -> None:
    answer.receipt |= {"kept_tokens": 101}


def as_exact(answer: TimedAnswer) -> None:
    answer.tokens[-1] -= 1


def drafted(drafted_tokens: int, accepted_tokens: int) -> Change:
    told = {"drafted_tokens": drafted_tokens, "accepted_tokens": accepted_tokens}
    return lambda answer: answer.speculation.update(told)


def test_drafts_of_answers_that_do_not_count_say_nothing() -> None:
    """Long ones, all rejected, stand beside answers whose verified drafts have a token each."""
    counting = [play(MadeServer(DRAFTED, drafted(1, 1)).ask, conversation(number), NUM_ANSWER) for number in range(3)]
    rejected = [play(MadeServer(DRAFTED, unverified).ask, conversation(number), NUM_ANSWER) for number in range(3, 9)]
    assert sum(turn["drafted_tokens"] for row in rejected for turn in row["turns"]) > 600 / 20
    assert find_failures([*counting, *rejected], 600) == [
        "6 tokens were drafted for 600 of answers: nothing is said of drafts"
    ]


@pytest.mark.parametrize(
    ("way", "change", "says"),
    [
        (DRAFTED, unverified, "0 tokens have a verified draft, 600 are asked for"),
        (DRAFTED, unverified_and_other, "other tokens than under exact, in drafted answers: 6 of 600"),
        (DRAFTED, shorter, "other tokens than under exact, in drafted answers: 6 of 600"),
        (EXACT, shorter, "turn 1: exact gave 99 of 100 tokens"),
        (DRAFTED, moved, "turn 1: drafted moved KV"),
        (EXACT, moved, "turn 1: exact moved KV"),
        (DRAFTED, lost, "the receipt does not add up"),
        (DRAFTED, drafted(5, 3), "30 tokens were drafted for 600 of answers"),
        (DRAFTED, drafted(20, 0), "no drafted token was accepted"),
        ("reuse", as_exact, "the control: moved KV, shown as exact, gives no other token"),
        ("reuse", unmoved, "the control: moved KV, shown as exact, gives no other token"),
    ],
)
def test_whatever_would_hide_a_difference_turns_the_gate_red(way: str, change: Change, says: str) -> None:
    assert find_failures(rows_of(3), 600) == []
    failures = find_failures(rows_of(3, MadeServer(way, change)), 600)
    assert any(says in failure for failure in failures), failures


def test_tokens_without_a_verified_draft_do_not_count_and_the_run_goes_on() -> None:
    """It ends where half of the drafts were verified, at the latest."""
    rows = [*rows_of(3), *rows_of(4, MadeServer(DRAFTED, unverified))[3:]]
    assert find_failures(rows, 600) == []
    assert find_failures(rows, 700) == ["600 tokens have a verified draft, 700 are asked for"]
    reasons = as_report(rows, 600, NUM_ANSWER)["reasons"]
    assert reasons == [{"reason": "verified", "num_answers": 6}, {"reason": OTHER_TOKEN, "num_answers": 2}]
    assert num_expected([], LEAST_COMPARED, NUM_ANSWER) == 50
    assert num_expected(rows, 600, NUM_ANSWER) == 4, "enough"
    assert num_expected(rows, LEAST_COMPARED, NUM_ANSWER) == 67, "three of four were verified"
    assert num_expected(rows[3:] * 100, LEAST_COMPARED, NUM_ANSWER) == 100, "none was, and that is told"


def test_tokens_behind_a_rejection_are_told_apart_and_a_run_goes_on_for_accepted_ones() -> None:
    """They are plain decode: an answer whose first drafted token is rejected has none of a draft."""
    plain, whole = (MadeServer(DRAFTED, drafted(20, accepted)) for accepted in (1, 20))
    report = as_report([*rows_of(2, plain), *rows_of(1, whole)], 600, NUM_ANSWER)
    assert told_tokens(report) == (
        "Of 600 tokens of drafted and verified answers 0 differ from those of `exact`. "
        "44 of them were accepted drafts, and 396 followed a rejection."
    )
    assert num_expected(rows_of(3, plain), 600, NUM_ANSWER) == 6, "twice as many as would be enough at best"
    assert num_expected(rows_of(3, whole), 600, NUM_ANSWER) == 3


def test_a_way_goes_on_behind_the_answer_of_exact_and_shares_no_session() -> None:
    bodies: list[dict[str, Any]] = []

    def ask(body: dict[str, Any]) -> TimedAnswer:
        bodies.append(body)
        return MadeServer().ask(body)

    play(ask, conversation(NUM_CONTROLS), NUM_ANSWER)
    assert len(bodies) == 2 * (TURNS + 1), "the control is played in the first ones alone"
    assert len({body["session_id"] for body in bodies}) == 2
    asked = [body for body in bodies if body["max_tokens"] == NUM_ANSWER]
    turns = [[body["messages"] for body in asked if len(body["messages"]) == length] for length in (5, 7)]
    assert all(one == other for one, other in turns)
    assert {body["acm"]["speculate"] for body in asked} == {True, False}
    assert turns[1][0][5]["content"].startswith("said ")


def num_words(messages: Sequence[Any]) -> int:
    return sum(len(message["content"].split()) for message in messages)


def test_each_turn_folds_one_more_document_and_leaves_enough_behind_it() -> None:
    texts = set()
    for number in range(40):
        one = conversation(number)
        asked, again = one.asked([]), one.asked(["It says much."])
        for document in one.documents:
            assert num_words([{"content": document}]) >= 250
        assert one.documents[0] not in json.dumps(asked[0])
        assert (asked[2], again[2]["content"]) == (one.read[2], one.markers[1])
        assert asked[4] == again[4] == one.read[4], "the last one stays"
        assert num_words(again[4:]) > MIN_PREFILL_TOKENS
        texts |= set(one.documents)
        assert one == make_conversation(number, library(), WordCounter())
    assert len(texts) == 120
    assert count_differing([1, 2, 3], [1, 3]) == 2


@pytest.fixture
def begun() -> Iterator[None]:
    RUN.begin()
    yield
    RUN.begin()


@pytest.mark.usefixtures("begun")
def test_a_run_that_is_ended_leaves_its_conversations_and_goes_on(tmp_path: Path) -> None:
    """By SIGTERM in the middle of the third one."""
    file = tmp_path / f"{RESULT}.json"

    def run(arguments: Sequence[str]) -> int:
        kept = KeptConversations(NUM_ANSWER, partial_file(file))
        for row in rows_of(2):
            kept.keep(row)
        RUN.answered(0.1, None)
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("a signal ends it")

    assert run_to_its_end(Benchmark(RESULT, "", run), ["--json", str(file)]) == EXIT_CODES["SIGTERM"]
    left = read_partial(partial_file(file))
    assert (left["partial"], left["ended_by"]) == (True, "SIGTERM")
    again = KeptConversations(NUM_ANSWER, partial_file(file))
    assert again.use() == {}
    again.resume(left)
    assert again.rows == rows_of(2)
    assert again.use()["use"]["seconds"] >= left["use_so_far"]["seconds"]
    with pytest.raises(AcmError, match="answers of 100 tokens, now 50"):
        KeptConversations(50, partial_file(file)).resume(left)


def test_it_stands_on_the_page_once_it_was_recorded(tmp_path: Path) -> None:
    sections = [one for one in SPECULATION if one.files == (RESULT,)]
    assert sections_of(sections, tmp_path, read_ledger(tmp_path)) == []
    report = as_report(rows_of(50), LEAST_COMPARED, NUM_ANSWER)
    (tmp_path / f"{RESULT}.json").write_text(json.dumps(report), encoding="utf-8")
    shown = "\n".join(sections_of(sections, tmp_path, read_ledger(tmp_path)))
    assert (
        "Of 10,000 tokens of drafted and verified answers 0 differ from those of `exact`. 1,500 of them were" in shown
    )
    assert "were accepted drafts, and 8,500 followed a rejection." in shown
    assert "The bar is 10,000 tokens, of which 1,000 are accepted drafts." in shown
    assert "| `exact`, drafted | 100 | 10,000 | 0 |" in shown
    assert "Answers have 100 tokens each, all greedy." in shown
    check_page(shown, [report])


def test_fewer_tokens_are_told_as_a_missed_bar_and_none_as_never_measured() -> None:
    (bar,) = (one for one in BESIDE if one.files == (RESULT,))
    few, enough = (as_report(rows_of(num), 600, NUM_ANSWER) for num in (49, 50))
    assert bar.told({RESULT: few}) == "9,800 tokens of drafted answers were compared, and 10,000 were to be."
    assert bar.told({RESULT: enough}) == ""
    plain = as_report(rows_of(50, MadeServer(DRAFTED, drafted(20, 9))), 600, NUM_ANSWER)
    assert bar.told({RESULT: plain}) == "900 accepted tokens of drafts were compared, and 1,000 were to be."
    sentence = dict(NEVER)[RESULT]
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    assert (sentence in page) is not (ROOT / f"benchmarks/results/{RESULT}.json").is_file()
    assert find_sources()[RESULT].command == "acmserve bench speculation-tokens"
