"""Rolls out a served model on tasks that need folds: records and rewards, ready for `acmserve export`.

    acmserve serve smollm2 --port 8000
    python fold_or_fail_rollouts.py http://localhost:8000 smollm2 rollouts --tasks 4 --samples 4
    acmserve export rollouts/*-*.jsonl --rewards rollouts/rewards.jsonl --output train.jsonl

A group is all samples of one task. A session ends early where its context is full, and then has the wrong answer.
"""

from __future__ import annotations

import argparse
import json
import uuid
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx

from acmserve.training.fold_or_fail import FoldOrFail, make_task
from acmserve.training.record import read_rollout

CALLS_AND_MARKERS = 400


class Server:
    """A server of one model, as far as rollouts need it."""

    def __init__(self, url: str, model: str, timeout: float = 600) -> None:
        self._http, self._model = httpx.Client(base_url=url, timeout=timeout), model

    def count_tokens(self, text: str) -> int:
        """How many tokens a text has."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return int(self._http.post("/tokenize", json=body).raise_for_status().json()["count"])

    def answer(self, session: str, messages: Sequence[dict[str, Any]], **options: Any) -> dict[str, Any] | None:
        """What the model says after its own tool calls. None where the context is full."""
        acm = {"tools": "sculptor", "preset": "unified", "rollout": True}
        body = {"model": self._model, "session_id": session, "messages": messages, "acm": acm, "logprobs": True}
        answer = self._http.post("/v1/chat/completions", json=body | {"temperature": 1.0, "top_p": 1.0} | options)
        if answer.status_code == httpx.codes.BAD_REQUEST and len(messages) > 1:
            return None
        told: dict[str, Any] = answer.raise_for_status().json()
        return told

    def record(self, session: str) -> str:
        """What the session recorded."""
        return self._http.get(f"/v1/acm/sessions/{session}/rollout").raise_for_status().text


def play(server: Server, session: str, task: FoldOrFail, max_tokens: int) -> str:
    """Read one document after the other, then answer. The last text, "" where it never came to that."""
    messages: list[dict[str, Any]] = []
    for turn in task.turns:
        messages.append({"role": "user", "content": turn})
        answer = server.answer(session, messages, max_tokens=max_tokens)
        if answer is None:
            return ""
        text = answer["choices"][0]["message"]["content"] or ""
        messages.append({"role": "assistant", "content": text})
    return text


def roll_out(server: Server, tasks: Sequence[FoldOrFail], num_samples: int, max_tokens: int, folder: Path) -> float:
    """Write a record for each sample of each task, and one file of rewards. The mean reward."""
    folder.mkdir(parents=True, exist_ok=True)
    run, lines = uuid.uuid4().hex[:8], []
    for task in tasks:
        for sample in range(num_samples):
            session = f"{run}-{task.seed}-{sample}"
            text = play(server, session, task, max_tokens)
            record = server.record(session)
            (folder / f"{session}.jsonl").write_text(record, encoding="utf-8")
            reward = task.reward(read_rollout(record.splitlines()), text)
            lines.append({"session_id": session, "reward": reward, "group": f"{run}-{task.seed}"})
    with (folder / "rewards.jsonl").open("a", encoding="utf-8") as rewards:
        rewards.writelines(json.dumps(line) + "\n" for line in lines)
    return fmean(float(str(line["reward"])) for line in lines)


def make_tasks(server: Server, seeds: Sequence[int], **sizes: Any) -> list[FoldOrFail]:
    """Tasks whose limit leaves room for the tools and the system prompt of this server."""
    empty = server.answer(f"empty-{uuid.uuid4().hex[:8]}", [{"role": "user", "content": "Hello."}], max_tokens=1)
    assert empty is not None
    overhead = empty["acm"]["steps"][0]["receipt"]["prompt_tokens"] + CALLS_AND_MARKERS
    return [make_task(seed, cache(server.count_tokens), overhead=overhead, **sizes) for seed in seeds]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", help="its address")
    parser.add_argument("model", help="the name of the served model")
    parser.add_argument("output", type=Path, help="the folder of the records")
    parser.add_argument("--tasks", type=int, default=4, metavar="N")
    parser.add_argument("--samples", type=int, default=4, metavar="N", help="of each task")
    parser.add_argument("--seed", type=int, default=0, help="of the first task")
    parser.add_argument("--document-tokens", type=int, default=1000, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="of a completion")
    parsed = parser.parse_args()
    served = Server(parsed.server, parsed.model)
    seeds = range(parsed.seed, parsed.seed + parsed.tasks)
    made = make_tasks(served, seeds, document_tokens=parsed.document_tokens)
    print("mean reward:", roll_out(served, made, parsed.samples, parsed.max_tokens, parsed.output))
