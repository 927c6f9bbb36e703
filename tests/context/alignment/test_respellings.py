"""The fuzzer of respellings: random sessions whose client resends them in the words of other clients.

Edits on unchanged text survive, each one that is lost is told, and no redacted word comes back. `make respell` runs it
longer. The first version's comparison by position has to fail it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from acmserve.context.session.history import Adoption, adopt
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message
from tests.support.context.agent_session import AgentSession, answer, edit_session, make_session
from tests.support.context.positional import adopt_by_position
from tests.support.context.respellings import RESPELLINGS, Respelling, respell
from tests.support.context.survival import Survival, judge
from tests.support.context.valid_chat import orphans

FACTOR = int(os.environ.get("ACMSERVE_RESPELL_FACTOR", "1"))
NUM_ALONE, NUM_TOGETHER = 12 * FACTOR, 120 * FACTOR
MIN_SHARE = 0.99

Adopt = Callable[[SessionState, Sequence[Message]], Adoption]


def run(seed: int, kinds: tuple[Respelling, ...], taken_in: Adopt = adopt) -> Survival:
    made = make_session(seed)
    history = respell(made.sent, kinds, random.Random(seed), seed)
    sent = [message for _, message in history]
    adoption = taken_in(made.state, sent)
    if taken_in is adopt:
        check(adoption, sent)
    return judge(made, history, adoption)


def run_on(seed: int, num_rounds: int = 4) -> Survival:
    """A session that goes on: in each round it is resent in other words, answered, and edited again."""
    rng = random.Random(seed)
    made, found = make_session(seed), Survival()
    for number in range(num_rounds):
        history = respell(made.sent, tuple(rng.sample(RESPELLINGS, rng.randint(1, 3))), rng, seed * 7 + number)
        sent = [message for _, message in history]
        adoption = adopt(made.state, sent)
        check(adoption, sent)
        found.add(judge(made, history, adoption))
        made = AgentSession(adoption.state, sent, made.secrets)
        if sent[-1]["role"] != "assistant":
            answer(made, {"role": "assistant", "content": f"word9{seed:04}{number:02} " * 30})
        edit_session(made, rng)
    return found


def check(adoption: Adoption, sent: list[Message]) -> None:
    """What holds of every history that is taken in."""
    state = adoption.state
    state.check_integrity()
    again = adopt(state, sent)
    assert again.state == state
    assert again.dropped == ()
    assert again.num_known == len(sent)
    rendered = render(state)
    assert set(orphans(rendered)) <= set(orphans(sent))
    for role in ("user", "system"):
        assert sum(m["role"] == role for m in rendered) == sum(m["role"] == role for m in sent)


def accept(found: Survival) -> None:
    assert found.could.total() > 20
    assert found.share >= MIN_SHARE, (found.could, found.kept, found.lost[:9])
    assert found.silent == []
    assert found.back == set()


@pytest.mark.parametrize("kind", RESPELLINGS, ids=lambda kind: kind.__name__)
def test_each_respelling_alone(kind: Respelling) -> None:
    found = Survival()
    for seed in range(NUM_ALONE):
        found.add(run(seed, (kind,)))
    accept(found)


def test_respellings_together() -> None:
    found = Survival()
    for seed in range(1000, 1000 + NUM_TOGETHER):
        rng = random.Random(seed)
        found.add(run(seed, tuple(rng.sample(RESPELLINGS, rng.randint(2, 5)))))
    accept(found)


def test_a_session_that_goes_on_in_other_words() -> None:
    found = Survival()
    for seed in range(5000, 5000 + NUM_TOGETHER // 4):
        found.add(run_on(seed))
    accept(found)


@pytest.mark.parametrize("kind", RESPELLINGS, ids=lambda kind: kind.__name__)
def test_a_comparison_by_position_fails(kind: Respelling) -> None:
    """The control: what was before this loses edits, in silence, for every respelling."""
    found = Survival()
    for seed in range(NUM_ALONE):
        found.add(run(seed, (kind,), adopt_by_position))
    with pytest.raises(AssertionError):
        accept(found)


def tell_nothing(state: SessionState, messages: Sequence[Message]) -> Adoption:
    return replace(adopt(state, messages), dropped=())


def forget_secrets(state: SessionState, messages: Sequence[Message]) -> Adoption:
    return adopt(replace(state, redacted=()), messages)


def found_by(taken_in: Adopt) -> Survival:
    found = Survival()
    for seed in range(1000, 1000 + NUM_TOGETHER):
        rng = random.Random(seed)
        found.add(run(seed, tuple(rng.sample(RESPELLINGS, rng.randint(2, 5))), taken_in))
    return found


def test_a_loss_that_is_not_told_is_found() -> None:
    """The control of `silent`: everything survives as it does, and nothing is said."""
    found = found_by(tell_nothing)
    assert found.share >= MIN_SHARE
    assert found.silent != []


def test_a_redacted_text_that_comes_back_is_found() -> None:
    """The control of `back`: a session that does not know what was redacted."""
    assert found_by(forget_secrets).back != set()
