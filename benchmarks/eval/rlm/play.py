"""One sample by an agent that looks at its context through a Python session: alone, with a map, behind other questions.

    rlm          each request has the whole history, as every client sends it
    rlm-map      the same in a session: outputs are observations, and FINAL(...) that the loop takes ends the query
    rlm-rag      as `rlm`, with the passages that fit the question best beside it
    rlm-memagent as `rlm`, with a memory of the text beside it, which MemAgent wrote for the question
    rlm-shared   one conversation and one Python session for all questions about a context

So a map learns once a question, whatever the model writes meanwhile. The very last request ends its query outright,
because its answer counts as it stands. What code asks a model belongs to no session, and is answered as shortly as the
question.

Decision: the PEEK paper finds passages by a model of embeddings. Here it is BM25, as in `rag`, so no other server is
needed. A question that the server refuses leaves nothing in a shared conversation: the next one may still fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from acmserve.bench.eval.baselines.memagent import memory_of
from acmserve.bench.eval.baselines.retrieval import retrieve
from acmserve.bench.eval.play import Play
from acmserve.bench.eval.rlm.loop import NUM_ITERATIONS, OUTPUT, answer_in_session
from acmserve.bench.eval.rlm.python_session import PythonSession
from acmserve.bench.eval.sandbox.limits import RunLimits
from acmserve.bench.eval.target import RefusedSample
from acmserve.context.transcript.message import Message

_ENDS = {"observations": [OUTPUT], "query_finished": "final"}
"""What ends a question: FINAL(...), and neither prose nor what the loop says to an answer that it refuses."""
PASSAGES = "{question}\n\nParts of the text that may fit the question, the most fitting first:\n\n{passages}"

MEMORY = "{question}\n\nA memory of the text, which was written while its parts were read in order:\n\n{memory}"


class SharedChat:
    """A conversation that goes on from question to question. `play` is that of the question which is asked now."""

    def __init__(self, play: Play) -> None:
        limits = _limits(play)
        limits = replace(limits, cpu_seconds=limits.cpu_seconds * play.strand.num_samples)
        self.play = play
        self.session = PythonSession(play.sample.context, self.query, limits)
        self.messages: list[Message] = []

    def answer(self) -> str:
        """The answer to the question of the play."""
        play, num_before, num_chars = self.play, len(self.messages), len(self.play.sample.context)

        def ask(messages: list[Message], is_last: bool) -> str:
            return play.ask(messages, max_tokens=play.step_tokens)

        try:
            return answer_in_session(ask, play.sample.question, num_chars, self.session, _steps(play), self.messages)
        except RefusedSample:
            del self.messages[num_before:]
            raise

    def query(self, prompts: Sequence[str]) -> list[str]:
        """What code asks a model. What the server refuses is told to the code, whose variables stay."""
        try:
            return _query(self.play, prompts)
        except RefusedSample as refused:
            return [f"Error: {refused}"] * len(prompts)


def play_rlm(play: Play, acm: Mapping[str, Any] | None = None, question: str = "") -> str:
    """The answer to the sample's question, or to one that says more."""

    def ask(messages: list[Message], is_last: bool) -> str:
        told = None if acm is None else {**acm, **_ENDS, **({"query_finished": True} if is_last else {})}
        return play.ask(messages, told, max_tokens=play.step_tokens)

    sample = play.sample
    with PythonSession(sample.context, partial(_query, play), _limits(play)) as session:
        return answer_in_session(ask, question or sample.question, len(sample.context), session, _steps(play))


def play_rlm_with_map(play: Play, ablation: str = "", *, is_labelled: bool = False) -> str:
    """The same with the map that all questions about one context share."""
    with play.learning(), play.one_session():
        return play_rlm(play, play.acm_with_map(ablation, is_labelled=is_labelled))


def play_rlm_with_passages(play: Play) -> str:
    """The same with passages, found for the question."""
    sample = play.sample
    passages = "\n\n".join(retrieve(sample.context, sample.question, play.limits))
    return play_rlm(play, question=PASSAGES.format(question=sample.question, passages=passages))


def play_rlm_with_memory(play: Play) -> str:
    """The same with a memory of the text: the PEEK paper's agent with compaction."""
    return play_rlm(play, question=MEMORY.format(question=play.sample.question, memory=memory_of(play)))


def play_rlm_shared(play: Play) -> str:
    """The same behind all that was said and done for the questions before."""
    state = play.strand
    if state.held is None:
        state.held = SharedChat(play)
        state.enter_context(state.held.session)
    chat: SharedChat = state.held
    chat.play = play
    return chat.answer()


def _query(play: Play, prompts: Sequence[str]) -> list[str]:
    return [play.ask([{"role": "user", "content": prompt}]) for prompt in prompts]


def _limits(play: Play) -> RunLimits:
    return RunLimits().showing(play.limits.printed)


def _steps(play: Play) -> int:
    return play.limits.steps or NUM_ITERATIONS
