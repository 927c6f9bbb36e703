"""Sessions of *fold or fail* on a server: one request a turn, the tool loop, the record, and what it earned.

    task --> turn, turn, ..., question --> record of the rollout --> reward by Equation 4, calls, folds

The model is told of the two tools of `folding_suite.json`, and nothing of when to use them. No call is required.
Without a script the served model decides by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from acmserve.bench.learner.decisions import Decisions, right_decisions, session_script
from acmserve.training.fold_or_fail import FoldOrFail
from acmserve.training.record import read_rollout
from acmserve.training.reward import RewardLimits, violation

SUITE = "folding"
SUITE_FILE = Path(__file__).with_name("folding_suite.json")
MAX_ANSWER_TOKENS = 96
_SECONDS = 900.0
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class PlayedSession:
    """`folds` has the places of the documents behind which a fold succeeded, `needed` those where one is right.

    A call is valid where it changed or named something, and no format error. `record` are the lines of the rollout.
    """

    seed: int
    needs_fold: bool
    num_documents: int
    reward: float
    violation: str | None
    is_right: bool
    num_calls: int
    num_valid: int
    num_format_errors: int
    folds: tuple[int, ...]
    needed: tuple[int, ...]
    longest: int
    limit: int
    record: str

    @property
    def num_right_decisions(self) -> int:
        """Documents that were folded where that is right, or left where that is."""
        return self.num_documents - len(set(self.folds) ^ set(self.needed))

    def as_dict(self) -> dict[str, Any]:
        """All but the record."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "record"}


def session_line(session: PlayedSession) -> str:
    """A session as a line of JSON, with its record."""
    return json.dumps(asdict(session))


def read_session(line: str) -> PlayedSession:
    """What `session_line` wrote."""
    value = json.loads(line)
    return PlayedSession(**value | {name: tuple(value[name]) for name in ("folds", "needed")})


class SessionPlayer:
    """Plays sessions on the server of one model."""

    def __init__(self, url: str, model: str) -> None:
        self._http, self._model = httpx.Client(base_url=url, timeout=_SECONDS), model

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def count_prompt(self) -> int:
        """Tokens of the tools and the template, with a short message."""
        answer = self._ask("empty", [{"role": "user", "content": "Hello."}], {"max_tokens": 1})
        return int(answer["acm"]["steps"][0]["receipt"]["prompt_tokens"])

    def play_all(
        self, run: str, tasks: Sequence[FoldOrFail], policy: Callable[[FoldOrFail], Decisions] | None = None
    ) -> list[PlayedSession]:
        """A session for each task, several at once. `policy` scripts them."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(lambda task: self.play(run, task, policy and policy(task)), tasks))

    def play(self, run: str, task: FoldOrFail, decisions: Decisions | None = None) -> PlayedSession:
        """Show one document after the other, then ask."""
        session, messages = f"{run}-{task.seed}", []
        script = session_script(task, decisions) if decisions is not None else None
        operations: list[tuple[int, Mapping[str, Any]]] = []
        num_errors = 0
        for place, turn in enumerate(task.turns):
            messages.append({"role": "user", "content": turn})
            said = {"script_id": f"{session}-{place}", "script": script[place]} if script is not None else None
            answer = self._ask(session, messages, {"vllm_xargs": said} if said else {})
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""})
            operations += [(place, one) for step in answer["acm"]["steps"] for one in step["operations"]]
            num_errors += len(answer["acm"].get("format_errors", ()))
        text = messages[-1]["content"]
        record = self._http.get(f"/v1/acm/sessions/{session}/rollout").raise_for_status().text
        self._http.delete(f"/v1/acm/sessions/{session}").raise_for_status()
        rollout = read_rollout(record.splitlines())
        valid = [(place, one) for place, one in operations if not one["is_error"]]
        return PlayedSession(
            task.seed,
            task.needs_fold,
            len(task.documents),
            task.reward(rollout, text),
            violation(rollout, RewardLimits(max_tokens=task.max_tokens)),
            task.is_right(text),
            len(operations) + num_errors,
            len(valid),
            num_errors,
            tuple(sorted({place for place, one in valid if one["tool"] == "fold_fragment"})),
            tuple(place for place, folds in enumerate(right_decisions(task)) if folds),
            rollout.longest_sequence,
            task.max_tokens,
            record,
        )

    def _ask(self, session: str, messages: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> dict[str, Any]:
        body = {
            "model": self._model,
            "session_id": session,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": MAX_ANSWER_TOKENS,
            "acm": {"tools": SUITE, "rollout": True},
        }
        answer = self._http.post("/v1/chat/completions", json=body | dict(more))
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"HTTP {answer.status_code}: {answer.text[:500]}")
        told: dict[str, Any] = answer.json()
        return told
