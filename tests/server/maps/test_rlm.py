"""PEEK on its own agent: 32 questions about one text, each in a session of its own, with one map for all of them.

    recursive language model --> request --> Maps --> served prompt --> scripted wits --> code or FINAL(...)
           ^------- output of the Python session, as a message of the user -------'
    finished query --> Distiller, Cartographer --> the map of the next session

The wits see the served prompt and nothing else, so what they know of the text comes from the map or from their code.
Loop, Python session, maps and updates are the real ones. No engine runs: a token is a word, and kept is what one of the
last prompts of the same way begins with.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest

from acmserve.bench.eval.completion import Completion
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.eval.rlm.loop import answer_in_session
from acmserve.bench.eval.rlm.python_session import PythonSession
from acmserve.bench.map.corpus import LABELS, USERS, CorpusQuestion, make_corpus, make_questions
from acmserve.bench.map.oracle import Known, ToolUse
from acmserve.context.maps.map import MAX_EVOLVE_STEPS
from acmserve.context.maps.prompts import MapQuestion
from acmserve.context.session.history import adopt, append_answer
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Session
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.observations import ObservationRule
from acmserve.context.transcript.template_rules import TAKES_ALL
from acmserve.server.maps.maps import Maps
from acmserve.server.maps.turn import placed
from acmserve.server.models.map_model import MapAnswer
from acmserve.server.options.map_options import MapOptions, UpdateOptions
from tests.server.maps.test_maps import make_maps, says

CORPUS = make_corpus()
TEXT = "".join(f"=== {name} ===\n" + "".join(f"{line}\n" for line in lines) for name, lines in CORPUS.files.items())
NUM_QUESTIONS, M = 32, 4
_SPLIT = (
    "import re\n"
    "parts = re.split(r'^=== (.+) ===\\n', context, flags=re.MULTILINE)[1:]\n"
    "files = {name: text.splitlines() for name, text in zip(parts[::2], parts[1::2])}\n"
)
_COUNT = (
    "    print(sum(bool(re.search(pattern, line)) for name, lines in files.items() if name.startswith('records')"
    " for line in lines), 'lines match', pattern)"
)


def questions() -> list[CorpusQuestion]:
    """Those of the benchmark, and as many about a label in the letters of a user."""
    more = [
        CorpusQuestion(f"How many letters of {user} are about {label}?", "count", "label", (label,), user)
        for user, label in zip(USERS, [*LABELS] * 3, strict=False)
    ]
    return [*make_questions(), *more][:NUM_QUESTIONS]


def code_of(use: ToolUse) -> str:
    """What the agent of the benchmark asks tools for, as code."""
    if use.name == "list_files":
        return _SPLIT + "for name, lines in files.items(): print(f'{name}: {len(lines)} lines')"
    if use.name == "read_lines":
        asked = use.arguments
        return f"{_SPLIT}print('\\n'.join(files[{asked['file']!r}][{asked['first'] - 1} : {asked['last']}]))"
    return f"{_SPLIT}for pattern in {use.arguments['patterns']!r}:\n{_COUNT}"


@dataclass
class Keeper:
    """Distiller and Cartographer: what the agent of the last answer knows. Counts what it reads and writes."""

    lines: Sequence[str] = ()
    asked: list[MapQuestion] = field(default_factory=list)
    num_read: int = 0
    num_written: int = 0

    def num_answer_tokens(self, options: UpdateOptions) -> int:
        return 1000

    async def ask(self, question: MapQuestion, options: UpdateOptions) -> MapAnswer:
        self.asked.append(question)
        said = self.lines[question.name == "cartographer"]
        answer = MapAnswer(said, len(question.prompt.split()), len(said.split()))
        self.num_read += answer.num_read
        self.num_written += answer.num_written
        return answer


@dataclass
class Way:
    """All questions in one way. `evolve_steps` None: there is no map. `rule` says what counts as an observation."""

    evolve_steps: int | None = None
    rule: ObservationRule | None = None
    keeper: Keeper = field(default_factory=Keeper)
    completions: list[Completion] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    learned_after: list[int] = field(default_factory=list)
    _prompts: list[list[str]] = field(default_factory=list)

    def run(self, asked: Sequence[CorpusQuestion]) -> Way:
        maps = make_maps(self.keeper)
        for number, question in enumerate(asked):
            self.answers.append(self._answer(maps, f"session-{number}", question))
            self.learned_after.append(len(self.distilled))
        return self

    @property
    def distilled(self) -> list[str]:
        """What the map was given to learn from."""
        return [question.prompt for question in self.keeper.asked if question.name == "distiller"]

    def cost(self, *, with_updates: bool = True) -> float:
        """In prices of a million tokens. Everything that updates read is computed."""
        prices, keeper = PriceRatios(), self.keeper
        updates = prices.cost_of(keeper.num_read, 0, keeper.num_written) if with_updates else 0.0
        return prices.cost(self.completions) + updates

    def _answer(self, maps: Maps, name: str, question: CorpusQuestion) -> str:
        session, known = Session("", name, SessionState(observation_rule=self.rule)), Known()
        call: ToolUse | None = None

        def ask(messages: list[Message], is_last: bool) -> str:
            nonlocal call
            return asyncio.run(serve(messages))

        async def serve(messages: list[Message]) -> str:
            nonlocal call
            session.state = adopt(session.state, messages).state
            turn = None
            if self.evolve_steps is not None:
                wanted = MapOptions("corpus", evolve_steps=self.evolve_steps)
                turn = maps.begin(session, wanted, session.state)
            shown = placed(turn, render(session.state), session.state, TAKES_ALL)
            prompt = [str(message["content"]) for message in shown]
            if call is None:
                known.read_map("\n".join(prompt))
            else:
                known.read_result(call, str(messages[-1]["content"]).removeprefix("REPL output:\n"))
            step = known.step(question)
            call = step if isinstance(step, ToolUse) else None
            said = f"FINAL({step})" if call is None else f"I look.\n```repl\n{code_of(call)}\n```"
            self._count(prompt, said)
            self.keeper.lines = known.update(question)
            session.state = append_answer(session.state, says(said))
            maps.finished(turn, session)
            while maps.updates.num_pending(("", "corpus")):
                await asyncio.sleep(0)
            return said

        with PythonSession(TEXT, lambda prompts: [""] * len(prompts)) as python:
            return answer_in_session(ask, question.text, len(TEXT), python)

    def _count(self, prompt: list[str], said: str) -> None:
        words = "\n".join(prompt).split()
        kept = max((_num_same(words, other) for other in self._prompts[-8:]), default=0)
        self._prompts.append(words)
        self.completions.append(Completion(kept, 0, len(words) - kept, len(said.split())))


def _num_same(words: list[str], other: list[str]) -> int:
    pairs = zip(words, other, strict=False)
    return next((n for n, (one, two) in enumerate(pairs) if one != two), min(len(words), len(other)))


@cache
def without_map() -> Way:
    return Way().run(questions())


@cache
def with_map() -> Way:
    return Way(M).run(questions())


def test_a_map_spares_what_was_found_out_before_and_pays_for_its_updates() -> None:
    truths = [CORPUS.truth(question) for question in questions()]
    alone, mapped = without_map(), with_map()
    assert alone.answers == mapped.answers == truths
    assert len(truths) == NUM_QUESTIONS
    assert len(mapped.completions) < 0.6 * len(alone.completions)
    assert alone.keeper.num_read == 0
    assert mapped.keeper.num_read > 0
    # The updates are dear beside so few questions, and still the whole is cheaper.
    assert mapped.cost(with_updates=False) < mapped.cost() < alone.cost()


def test_a_map_learns_when_a_question_is_answered_and_not_before() -> None:
    mapped = with_map()
    assert mapped.learned_after == [1, 2, 3, *[M] * (NUM_QUESTIONS - 3)]
    assert all(re.search(r"^FINAL\(", query, re.MULTILINE) for query in mapped.distilled)
    assert mapped.distilled[0].count("REPL output:\n") > 2
    assert [query.count("The variable `context` has") for query in mapped.distilled] == [1] * M


def test_where_every_output_is_a_question_the_map_is_used_up_by_the_first() -> None:
    """The control: without observations each iteration teaches the map, before anything is answered."""
    [first, *_] = questions()
    way = Way(M, ObservationRule("off")).run([first])
    assert way.learned_after == [M]
    assert not any(re.search(r"^FINAL\(", query, re.MULTILINE) for query in way.distilled)


@pytest.mark.parametrize("steps", [6, MAX_EVOLVE_STEPS])
def test_the_map_learns_from_as_many_questions_as_it_is_told(steps: int) -> None:
    asked = questions()[:8]
    way = Way(steps).run(asked)
    assert way.learned_after[-1] == min(steps, len(asked))
    assert way.answers == [CORPUS.truth(question) for question in asked]
