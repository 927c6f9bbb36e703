"""One sample by an agent that looks at its context through a Python session: without a map, and with one.

    rlm       each request has the whole history, as every client sends it
    rlm-map   the same in a session: outputs are observations, and the answer in FINAL(...) ends the query

So a map learns once a question, whatever the number of iterations. What code asks a model belongs to no session, and
is answered as shortly as the question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.bench.eval.play import Play
from acmserve.bench.eval.rlm.loop import NUM_ITERATIONS, answer_in_session
from acmserve.bench.eval.rlm.python_session import PythonSession
from acmserve.bench.eval.sandbox.limits import RunLimits
from acmserve.context.transcript.message import Message


def play_rlm(play: Play, acm: Mapping[str, Any] | None = None) -> str:
    """The answer to the sample's question."""

    def ask(messages: list[Message], is_last: bool) -> str:
        told = None if acm is None else {**acm, **({"query_finished": True} if is_last else {})}
        return play.ask(messages, told, max_tokens=play.step_tokens)

    def query(prompts: Sequence[str]) -> list[str]:
        return [play.ask([{"role": "user", "content": prompt}]) for prompt in prompts]

    sample, most = play.sample, play.limits.steps or NUM_ITERATIONS
    with PythonSession(sample.context, query, RunLimits().showing(play.limits.printed)) as session:
        return answer_in_session(ask, sample.question, len(sample.context), session, most)


def play_rlm_with_map(play: Play, ablation: str = "") -> str:
    """The same with the map that all questions about one context share."""
    with play.learning(), play.one_session():
        return play_rlm(play, play.acm_with_map(ablation))
