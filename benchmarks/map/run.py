"""Runs the questions of `bench map` through the server in one way and reads what they cost. The gates of the benchmark.

    question --> request --> call --> result --> request --> ... --> answer --> the map learns --> next question

One conversation for all questions. As chat clients do, it keeps the questions and the answers and drops the tool
traffic of a question that is answered. So what was found out is gone, unless a map keeps it. Every run has a cache
salt of its own and runs alone. So what the server counts beyond its receipts are the updates of its map.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from acmserve.bench.agent.conversation import check_receipt
from acmserve.bench.agent.scripted_server import scripted_request
from acmserve.bench.harness.run_log import RUN, counted
from acmserve.bench.map.corpus import TOOLS, Corpus, CorpusQuestion, score, with_asides
from acmserve.bench.map.oracle import Known, ToolUse, answer_text, read_answer
from acmserve.errors import AcmError

BUDGET, EVOLVE_STEPS = 1024, 4
CONTEXT = "letters"
SYSTEM = (
    "You help with the yearly report of a mountain railway. The letters of its passengers are a corpus that you see "
    "through tools only. Count, do not guess. Put the result at the end, behind 'Answer:'."
)
# The template's tokens around a message, and the parts of blocks that are not in the cache's index.
ROUGHLY = 64
_MAX_COMPLETION = 900
_MAX_STEPS = 12
_SECONDS = 120.0
_METRIC = re.compile(r"^vllm:(prompt|generation)_tokens_total\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class AnsweredQuestion:
    """One question: the receipts of its requests, what was answered, and the map that it read (-1: none)."""

    receipts: list[dict[str, Any]] = field(default_factory=list)
    answer: str = ""
    version: int = -1
    map_tokens: int = 0

    def total(self, count: str) -> int:
        """A count summed up over the requests."""
        return sum(int(receipt[count]) for receipt in self.receipts)


@dataclass(slots=True)
class MapRun:
    """One way to ask, and what came of it. `placement` None: no map.

    `update_tokens` are those that the updates of the map read and wrote. `num_written` are the agent's own tokens.
    """

    name: str
    title: str
    fidelity: str
    placement: str | None = None
    is_default: bool = True
    asked: list[AnsweredQuestion] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    map_text: str = ""
    update_tokens: tuple[int, int] = (0, 0)
    num_written: int = 0

    def scores(self, corpus: Corpus, questions: Sequence[CorpusQuestion]) -> list[float]:
        """What each answer is worth."""
        return [score(one.answer, corpus.truth(question)) for one, question in zip(self.asked, questions, strict=False)]


def make_runs() -> list[MapRun]:
    """One run for each way, before any of them has begun."""
    return [
        MapRun("none-exact", "no map, exact", "exact"),
        MapRun("none-reuse", "no map, moves", "reuse"),
        MapRun("exact", "map, exact (tail)", "exact", "tail"),
        MapRun("reuse", "map, moves (head)", "reuse", "head"),
        MapRun("exact-head", "map, exact, head", "exact", "head", is_default=False),
        MapRun("reuse-tail", "map, moves, tail", "reuse", "tail", is_default=False),
    ]


class MapClient:
    """The agent of one run: asks the questions and carries out the calls."""

    def __init__(self, url: str, run: MapRun, corpus: Corpus) -> None:
        self._url, self._run, self._corpus = url, run, corpus
        self._headers = {"X-Cache-Salt": run.name}
        self._num_requests = 0
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        self.usage = [0, 0]

    def ask(self, message: str, question: CorpusQuestion) -> AnsweredQuestion:
        """One question to its answer. Raises AcmError when the model said something else than the script."""
        known, asked = Known(), AnsweredQuestion()
        known.read_map(self.map_text())
        self._messages.append({"role": "user", "content": message})
        traffic: list[dict[str, Any]] = []
        for _ in range(_MAX_STEPS):
            step = known.step(question)
            line = step.line if isinstance(step, ToolUse) else answer_text(question, step)
            answer = self._post([*self._messages, *traffic], line, known.update(question))
            asked.receipts.append(answer["acm"]["receipt"])
            read = answer["acm"].get("map")
            if (None if read is None else read["placement"]) != self._run.placement:
                raise AcmError(f"{self._run.title}: the map was placed as {read}")
            if read is not None:
                asked.version, asked.map_tokens = read["version"], read["tokens"]
            said = {k: v for k, v in answer["choices"][0]["message"].items() if k in ("role", "content", "tool_calls")}
            calls = said.get("tool_calls") or []
            if not isinstance(step, ToolUse):
                asked.answer = read_answer(said["content"])
                self._messages.append({"role": "assistant", "content": said["content"]})
                return asked
            if len(calls) != 1 or json.loads(calls[0]["function"]["arguments"]) != step.arguments:
                raise AcmError(f"{self._run.title}: {question.text} was answered with {said}")
            result = self._corpus.call(step.name, step.arguments)
            known.read_result(step, result)
            traffic += [said, {"role": "tool", "tool_call_id": calls[0]["id"], "content": result}]
        raise AcmError(f"{self._run.title}: {question.text} took more than {_MAX_STEPS} steps")

    def map_text(self) -> str:
        """The map as the next question reads it, once no update is under way. "" without one."""
        if self._run.placement is None:
            return ""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            found = httpx.get(f"{self._url}/v1/acm/maps/{CONTEXT}", headers=self._headers, timeout=_SECONDS)
            if found.status_code == 404:
                return ""
            view = found.raise_for_status().json()
            if not view["num_pending"]:
                return str(view["text"])
            time.sleep(0.02)
        raise AcmError(f"{self._run.title}: the map was not updated within {_SECONDS:.0f} seconds")

    def check_history(self) -> list[str]:
        """What went wrong in the updates."""
        answer = httpx.get(f"{self._url}/v1/acm/maps/{CONTEXT}/history", headers=self._headers, timeout=_SECONDS)
        history = answer.raise_for_status().json()["data"]
        wrong = [f"{self._run.title}: update: {change['error']}" for change in history if change["error"]]
        refused = [note["refused"] for change in history for note in change["operations"] if note["refused"]]
        wrong += [f"{self._run.title}: an operation was refused: {reason}" for reason in refused]
        if len(history) != EVOLVE_STEPS:
            wrong.append(f"{self._run.title}: {len(history)} updates")
        return wrong

    def _post(self, messages: list[dict[str, Any]], line: str, learned: list[str]) -> Any:
        name = f"{self._run.name}-{self._num_requests}"
        self._num_requests += 1
        acm: dict[str, Any] = {"fidelity": self._run.fidelity}
        if self._run.placement is not None:
            acm["map"] = {
                "external_context_id": CONTEXT,
                "budget": BUDGET,
                "evolve_steps": EVOLVE_STEPS,
                "update": {"vllm_xargs": {"script_id": f"{name}-update", "script": learned}},
            } | ({} if self._run.is_default else {"placement": self._run.placement})
        fields = {"messages": messages, "tools": TOOLS, "acm": acm}
        body = scripted_request(name, [line], _MAX_COMPLETION, self._run.name, **fields)
        answer = httpx.post(f"{self._url}/v1/chat/completions", json=body, timeout=_SECONDS)
        if answer.status_code != 200:
            raise AcmError(f"{self._run.title}: HTTP {answer.status_code}: {answer.text[:500]}")
        found = answer.json()
        RUN.answered(None, found.get("acm", {}).get("receipt"), run=self._run.title)
        self.usage[0] += found["usage"]["prompt_tokens"]
        self.usage[1] += found["usage"]["completion_tokens"]
        return found


def run_questions(
    url: str, corpus: Corpus, questions: Sequence[CorpusQuestion], run: MapRun, progress: Callable[[str], None]
) -> None:
    """All questions in one conversation, with the map that the run wants."""
    client = MapClient(url, run, corpus)
    before = _server_tokens(url)
    try:
        for number, (message, question) in enumerate(zip(with_asides(questions), questions, strict=True), start=1):
            progress(counted(number, len(questions), f"{run.title}: {question.text}"))
            run.asked.append(client.ask(message, question))
        run.map_text = client.map_text()
        run.failures += client.check_history() if run.placement is not None else []
    except AcmError as error:
        run.failures.append(str(error))
    after = _server_tokens(url)
    read, wrote = (now - then - own for now, then, own in zip(after, before, client.usage, strict=True))
    run.update_tokens, run.num_written = (read, wrote), client.usage[1]


def check_map_run(run: MapRun, corpus: Corpus, questions: Sequence[CorpusQuestion]) -> list[str]:
    """Why the numbers of a run may not be reported. Empty when they may."""
    title, failures = run.title, list(run.failures)
    if len(run.asked) != len(questions):
        return [*failures, f"{title}: {len(run.asked)} of {len(questions)} questions"]
    worth = run.scores(corpus, questions)
    failures += [f"{title}: {questions[n].text} {run.asked[n].answer!r}" for n, one in enumerate(worth) if one < 1]
    if run.placement is None and any(run.update_tokens):
        failures.append(f"{title}: the server counts {run.update_tokens} tokens that are in no receipt")
    first, version = 0, -1
    for number, asked in enumerate(run.asked):
        where = f"{title}, question {number}"
        before, slot = first, BUDGET if asked.version != version and run.placement == "head" else 0
        first, version = int(asked.receipts[0]["prompt_tokens"]), asked.version
        for receipt in asked.receipts:
            failures += check_receipt(receipt, where)
            most = receipt["prompt_tokens"] - before + slot + ROUGHLY
            is_whole = slot and run.fidelity == "exact"
            if receipt["computed_tokens"] > most and not is_whole:
                failures.append(f"{where}: computed {receipt['computed_tokens']}, expected {most}")
            before, slot = int(receipt["prompt_tokens"]), 0
    return failures


def check_together(runs: Sequence[MapRun]) -> list[str]:
    """Whether the runs do one work: with a map or without, the agent takes the same steps whatever the fidelity."""
    failures = []
    for with_map in (False, True):
        mine = [run for run in runs if (run.placement is not None) == with_map]
        steps = {tuple(len(one.receipts) for one in run.asked) for run in mine}
        if len(steps) > 1:
            failures.append(f"the agent took other steps in another run: {steps}")
        if len({run.map_text for run in mine}) > 1:
            failures.append("the maps differ between the runs")
    return failures


def _server_tokens(url: str) -> tuple[int, int]:
    """Tokens of all prompts and of all answers that the server has counted so far, sessions or not."""
    found = dict.fromkeys(("prompt", "generation"), 0)
    for name, value in _METRIC.findall(httpx.get(f"{url}/metrics", timeout=_SECONDS).raise_for_status().text):
        found[name] += int(float(value))
    return found["prompt"], found["generation"]
