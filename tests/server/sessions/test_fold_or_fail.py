"""From the served tool loop to training samples: who folds is rewarded, who keeps all is not. Tokens count once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from acmserve.cli import main
from acmserve.training.fold_or_fail import FoldOrFail, make_task
from acmserve.training.record import read_rollout
from tests.support import http
from tests.support.docs.pages import ROOT
from tests.support.server.scripted_server import MODEL
from tests.support.server.scripts import ask, new_session, tool_call

SCRIPT = ROOT / "docs/guides/fold_or_fail_rollouts.py"
RECORDED = {"rollout": True}
CALLS_AND_MARKERS = 400


def count(server: str, text: str) -> int:
    body = {"model": MODEL, "prompt": text, "add_special_tokens": False}
    return int(http.post(f"{server}/tokenize", json=body).raise_for_status().json()["count"])


def decode(server: str, token_ids: list[int]) -> str:
    body = {"model": MODEL, "tokens": token_ids}
    return str(http.post(f"{server}/detokenize", json=body).raise_for_status().json()["prompt"])


def play(client: OpenAI, session: str, task: FoldOrFail, *, folds: bool) -> str:
    """Read document after document, fold the one before or not, and answer. The last text."""
    messages: list[dict[str, Any]] = []
    fragment = None
    for turn, document in zip(task.turns, (*task.documents, None), strict=True):
        messages.append({"role": "user", "content": turn})
        script = [tool_call("fold_fragment", fragment_id=fragment)] if fragment and document else []
        if folds and document:
            start, end = " ".join(document.split()[:6]), "Say ok"
            script.append(tool_call("fragment_context", start_marker=start, end_marker=end, num_fragments=1))
        last = "ok" if document is not None else f"It is {task.answer}."
        answer = ask(client, session, messages, [*script, last], acm=RECORDED, logprobs=True)
        assert [one["is_error"] for one in answer.operations] == [False] * len(script), answer.operations
        fragment = answer.fragment_ids[0] if folds and document else None
        messages.append(answer.message)
    return str(messages[-1]["content"])


@pytest.fixture
def task(scripted_client: OpenAI, scripted_server: str) -> FoldOrFail:
    empty = ask(scripted_client, new_session(), [{"role": "user", "content": "Hello."}], ["ok"])
    overhead = empty.receipts[0]["prompt_tokens"] + CALLS_AND_MARKERS
    sizes: dict[str, Any] = {"num_documents": 3, "document_tokens": 1000, "fitting": 2.4, "overhead": overhead}
    return make_task(7, lambda text: count(scripted_server, text), **sizes)


def test_the_script_of_the_guide_rolls_out_any_model(scripted_server: str, tmp_path: Path) -> None:
    """This one has random weights and no script, so it earns nothing. Its rollouts are complete all the same."""
    command = [sys.executable, str(SCRIPT), scripted_server, MODEL, "rollouts", "--tasks", "1", "--samples", "2"]
    sizes = ["--document-tokens", "200", "--max-tokens", "8"]
    done = subprocess.run([*command, *sizes], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rewards = tmp_path / "rollouts/rewards.jsonl"
    judged = list(rows_of(rewards))
    records = [str(tmp_path / f"rollouts/{one['session_id']}.jsonl") for one in judged]
    output = tmp_path / "train.jsonl"
    assert main(["export", *records, "--rewards", str(rewards), "--output", str(output)]) == 0
    rows = list(rows_of(output))
    assert {row["session_id"] for row in rows} == {one["session_id"] for one in judged}
    assert len({row["group"] for row in rows}) == 1
    assert len(judged) == 2


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in path.read_text("utf-8").splitlines())


def test_folding_earns_the_reward_and_trains_each_token_once(
    task: FoldOrFail, scripted_client: OpenAI, scripted_server: str, tmp_path: Path
) -> None:
    folding, keeping = new_session(), new_session()
    judged = []
    for session, folds in ((folding, True), (keeping, False)):
        text = play(scripted_client, session, task, folds=folds)
        judged.append({"session_id": session, "correct": task.is_right(text), "group": "task-7"})
    assert [one["correct"] for one in judged] == [True, True]
    rewards, output = tmp_path / "rewards.jsonl", tmp_path / "train.jsonl"
    rewards.write_text("\n".join(map(json.dumps, judged)), encoding="utf-8")
    records = [f"{scripted_server}/v1/acm/sessions/{session}/rollout" for session in (folding, keeping)]
    flags = ["--rewards", str(rewards), "--max-tokens", str(task.max_tokens), "--output", str(output)]
    assert main(["export", *records, *flags]) == 0
    rows = list(rows_of(output))
    earned = {row["session_id"]: (row["reward"], row["advantage"]) for row in rows}
    assert earned == {folding: (1.0, pytest.approx(0.5**0.5)), keeping: (-1.0, pytest.approx(-(0.5**0.5)))}
    for session, num_samples in ((folding, 3), (keeping, 1)):
        rollout = read_rollout(http.get(f"{scripted_server}/v1/acm/sessions/{session}/rollout").text.splitlines())
        mine = [row for row in rows if row["session_id"] == session]
        assert len(mine) == num_samples
        trained = [token for row in mine for token, one in zip(row["input_ids"], row["loss_mask"], strict=True) if one]
        sampled = [token for one in rollout.completions.values() for token in one.token_ids.tolist()]
        assert trained == sampled
        told = decode(scripted_server, trained)
        assert told.count(f"It is {task.answer}.") == 1
        assert told.count("fold_fragment") == (2 if session == folding else 0)
