"""Eight clients at once, who leave in the middle of answers, while the disk is full: no chat fails, and none is wrong.

A short storm in the suite. `make soak` has one with 440 clients who leave.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.support import http
from tests.support.server.faults import full_disk
from tests.support.server.scripted_server import MODEL
from tests.support.soak.report import MINUTES, SEED, SoakReport
from tests.support.soak.storm import Storm, metric

NUM_TURNS = 2
NUM_LEAVE = 440 if MINUTES else 10
FINISHED = "vllm:request_success_total"


def test_a_storm_leaves_no_request_no_block_and_no_wrong_answer(
    scripted_server: str, scripted_folder: Path, soak_report: SoakReport
) -> None:
    storm = Storm(scripted_server, MODEL, SEED)
    num_finished = -metric(scripted_server, FINISHED)
    while soak_report.goes_on(storm.found.counts["disconnects"], NUM_LEAVE):
        storm.wave(NUM_TURNS)
        with full_disk(int((scripted_folder / "server.pid").read_text())):
            storm.wave(NUM_TURNS)
        storm.wave(NUM_TURNS)
        storm.check()
    soak_report.add("storm over HTTP", storm.found)
    assert storm.found.mismatches == []
    assert storm.found.counts["answers not saved"] > 0
    num_finished += metric(scripted_server, FINISHED)
    counts = storm.found.counts
    assert num_finished < counts["answers"] + counts["checked"] + counts["disconnects"], "nobody left in mid-stream"


def test_a_wrong_answer_is_a_mismatch(scripted_server: str) -> None:
    storm = Storm(scripted_server, MODEL, SEED + 1)
    deadline = time.monotonic() + http.SECONDS
    while not any(client.answered for client in storm.clients):
        assert time.monotonic() < deadline, storm.found
        storm.wave(1)
    messages, answer = next(client.answered[0] for client in storm.clients if client.answered)
    messages[0]["content"] += " and more"
    storm.check()
    assert len(storm.found.mismatches) == 1
    assert len(answer) > 0
