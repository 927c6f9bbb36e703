"""Random scripts: what agents do to their contexts, and what everybody else does meanwhile.

A script is plain data made from one seed. Running it twice does the same twice. Each session keeps a history of
paragraphs, appends to it, and edits it the way an agent does:

    append [a b c] -> [a b c d]      fold [a b c d] -> [a # d]        delete, insert, swap, replace one token,
    restore an earlier version       several edits at once (holes)    edits of edits, by going on from there
    repair some of what moves

Answers of the model are part of the history (`truth.answer` knows them beforehand). Around the sessions there are
probes, which send the very tokens of an edited context before, while and after it is served. They are requests of
nobody, of another session, of another salt, or asking for `exact`. Small alphabets make texts that repeat themselves.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Literal

from tests.support.simulator.machine import Machine
from tests.support.simulator.truth import OUTPUT_TOKENS, answer

Fidelity = Literal["exact", "reuse", "repair", "auto"]
Tokens = tuple[int, ...]

NUM_WORDS = 800
MAX_ANSWER = 20


@dataclass(frozen=True)
class Turn:
    """One request: sent at `at_step` at the earliest, and not before request `after` has ended."""

    request_id: str
    prompt: Tokens
    max_tokens: int
    session: str | None = None
    salt: str | None = None
    fidelity: Fidelity | None = None
    stop_tokens: Tokens = ()
    priority: int = 0
    at_step: int = 0
    after: str | None = None
    abort_after_steps: int | None = None
    forget: bool = False
    precompute: bool = False
    repair: dict[str, Any] | None = None
    account: str | None = None
    adapter: int | None = None
    foldable: tuple[tuple[int, int], ...] = ()
    level: str | None = None


@dataclass(frozen=True)
class Script:
    seed: int
    machine: Machine
    turns: tuple[Turn, ...]
    reset_at_steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Scale:
    """Sizes in tokens of one script."""

    max_paragraph: int
    max_prompt: int


def random_script(seed: int, *, async_scheduling: bool, runner_v2: bool, acmserve: bool) -> Script:
    """The script of `seed`, for a stock engine or one with acmserve. Requests and pool are the same in each mode.

    On runner V2 every second seed takes a step for each hole.

    *Crowded* machines prefill several requests at once in small chunks and preempt by priority, also what they have
    scheduled in the very same step.
    """
    rng = random.Random(seed)
    block_size = rng.choice((4, 4, 16))
    max_prompt_blocks = rng.choice((14, 20, 30))
    smallest = max_prompt_blocks + MAX_ANSWER // block_size + 3
    num_blocks = max(20, min(300, int(smallest * rng.choice((1, 1, 1.2, 1.2, 1.5, 3, 10)))))
    crowded = rng.random() < 0.4
    machine = Machine(
        async_scheduling=async_scheduling,
        runner_v2=runner_v2,
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_batched_tokens=rng.choice((64, 128) if crowded else (7, 16, 33, 64, 128)),
        max_num_seqs=6 if crowded else rng.choice((1, 2, 4)),
        policy="priority" if crowded or rng.random() < 0.1 else "fcfs",
        reserve_full_input=not crowded and rng.random() < 0.6,
        long_prefill_threshold=rng.choice((5, 11) if crowded else (0, 0, 11)),
        watermark=rng.choice((0.0, 0.0, 0.05)),
        connector=_settings(seed) if acmserve else None,
        has_passes=not (acmserve and runner_v2 and seed % 2),
    )
    scale = _Scale(max_paragraph=rng.choice((1, 3, 5)) * block_size, max_prompt=max_prompt_blocks * block_size)
    words = [rng.randrange(NUM_WORDS) for _ in range(3)] if rng.random() < 0.2 else list(range(NUM_WORDS))
    opening = _paragraph(rng, words, scale)
    turns: list[Turn] = []
    for index in range(rng.randint(1, 4)):
        session = _Session(rng, f"s{index}", words, scale, opening).turns(rng.randint(3, 6))
        turns += session
        if rng.random() < 0.4:
            turns += _twin(rng, session)
    reset_at_steps = tuple(rng.sample(range(150), 2)) if rng.random() < 0.1 else ()
    chosen = _with_repairs(seed, _with_redactions(seed, turns)) if acmserve else tuple(turns)
    return Script(seed, machine, chosen, reset_at_steps)


def windowed(script: Script) -> Script:
    """The same requests with one or two groups of windows beside full attention. Drawn apart, by the script's seed.

    Windows shorter than a block, and longer than most prompts. Blocks of other sizes than those of full attention. The
    pool grows by what those groups hold. Half of the session's requests name pieces that a later edit may fold.
    """
    rng = random.Random(f"windows of {script.seed}")
    size = script.machine.block_size
    window_block_size = rng.choice((size, size, 2 * size, size // 2))
    windows = (size // 2 + 1, size + 1, 2 * size, 3 * size + 3, 6 * size)
    chosen = tuple(rng.choice(windows) for _ in range(rng.choice((1, 1, 2))))
    aligned = max(size, window_block_size)
    machine = replace(
        script.machine,
        windows=chosen,
        window_block_size=window_block_size,
        retention=rng.choice((None, None, 0, 2 * aligned)),
        num_blocks=script.machine.num_blocks * (1 + len(chosen) * max(size // window_block_size, 1)),
    )
    turns = tuple(_with_pieces(rng, turn) if turn.session is not None else turn for turn in script.turns)
    return replace(script, machine=machine, turns=turns)


def windows_alone(script: Script) -> Script:
    """The same with one window in every layer, and no layer of full attention."""
    script = windowed(script)
    machine = replace(script.machine, windows=script.machine.windows[:1], has_full=False)
    return replace(script, machine=machine)


def chunked(script: Script) -> Script:
    """The same with local chunks beside full attention. vLLM wants blocks of one size there."""
    script = windowed(script)
    size = script.machine.block_size
    windows = (random.Random(f"chunks of {script.seed}").choice((2 * size, 3 * size, 6 * size)),)
    return replace(
        script, machine=replace(script.machine, chunked=True, windows=windows, window_block_size=0, retention=None)
    )


def recurrent(script: Script, *, has_convolutions: bool = False) -> Script:
    """The same with one or two groups of recurrent states beside full attention. Half of the requests name pieces.

    With `has_convolutions` one of them at least is of short convolutions.
    """
    rng = random.Random(f"states of {script.seed}")
    num_recurrent = rng.choice((1, 1, 2))
    machine = replace(
        script.machine,
        num_recurrent=num_recurrent,
        retention=rng.choice((None, None, 0, 2 * script.machine.block_size)),
        num_blocks=script.machine.num_blocks * (4 + num_recurrent) // 4,
    )
    turns = tuple(_with_pieces(rng, turn) if turn.session is not None else turn for turn in script.turns)
    machine = replace(machine, num_convolutions=rng.randint(1, num_recurrent) if has_convolutions else 0)
    return replace(script, machine=machine, turns=turns)


def _with_pieces(rng: random.Random, turn: Turn) -> Turn:
    if rng.random() < 0.5:
        return turn
    places = sorted({rng.randrange(len(turn.prompt) + 1) for _ in range(6)})
    return replace(turn, foldable=tuple(zip(places[::2], places[1::2], strict=False)))


def _with_redactions(seed: int, turns: list[Turn]) -> tuple[Turn, ...]:
    """Some session requests forget what their session was served, drawn apart as the settings are.

    Also while others of the session wait or run, and on prompts that repeat all of the old text.
    """
    rng = random.Random(f"redactions of {seed}")
    share = rng.choice((0.0, 0.1, 0.3))
    return tuple(replace(turn, forget=turn.session is not None and rng.random() < share) for turn in turns)


def _with_repairs(seed: int, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Some requests that would reuse repair, or leave the choice to the engine. They are drawn apart."""
    rng = random.Random(f"repairs of {seed}")
    share = rng.choice((0.0, 0.3, 0.5))
    return tuple(_repaired(rng, turn) if turn.fidelity == "reuse" and rng.random() < share else turn for turn in turns)


def _repaired(rng: random.Random, turn: Turn) -> Turn:
    start = rng.randrange(len(turn.prompt) + 1)
    repair = {
        "head_tokens": rng.choice((0, 1, 7, 2**31 - 1)),
        "tail_tokens": rng.choice((0, 0, 5)),
        "echoes": rng.random() < 0.3,
        "ranges": [[start, start + rng.randint(1, 30)]] if rng.random() < 0.5 else [],
    }
    return replace(turn, fidelity=rng.choice(("repair", "repair", "auto")), repair=repair)


def _settings(seed: int) -> dict[str, Any]:
    """`kv_connector_extra_config`, drawn apart, so that the requests do not depend on it."""
    rng = random.Random(f"settings of {seed}")
    settings: dict[str, Any] = {"min_move_tokens": rng.choice((1, 4, 4, 4, 20))}
    if rng.random() < 0.3:
        settings["default_fidelity"] = "reuse"
    if rng.random() < 0.2:
        settings |= {"max_sources_per_session": rng.choice((1, 2)), "max_sessions": rng.choice((1, 3))}
    if rng.random() < 0.2:
        settings["keep_tail"] = False
    return settings


def _twin(rng: random.Random, turns: list[Turn]) -> list[Turn]:
    """The same conversation with the same edits, a little later: by another session, salt, or the session itself."""
    session, salt = rng.choice((("twin", turns[0].salt), ("twin", "twin"), (turns[0].session, turns[0].salt)))
    delay = rng.randrange(6)
    return [
        replace(
            turn,
            request_id=f"{turn.request_id}-twin",
            session=session,
            salt=salt,
            fidelity=rng.choice((turn.fidelity, turn.fidelity, "reuse", "exact")),
            priority=rng.randrange(3),
            at_step=turn.at_step + delay,
            after=f"{turn.after}-twin" if turn.after else None,
        )
        for turn in turns
        if turn.session == turns[0].session and turn.salt == turns[0].salt
    ]


def _paragraph(rng: random.Random, words: list[int], scale: _Scale) -> Tokens:
    return tuple(rng.choice(words) for _ in range(rng.randint(1, scale.max_paragraph)))


def _flat(paragraphs: list[Tokens]) -> Tokens:
    return tuple(token for paragraph in paragraphs for token in paragraph)


class _Session:
    """Writes the turns of one session, and the probes around it."""

    def __init__(self, rng: random.Random, name: str, words: list[int], scale: _Scale, opening: Tokens) -> None:
        self._rng = rng
        self._name = name
        self._words = words
        self._scale = scale
        self._salt = rng.choice((None, None, "salt"))
        self._history = [opening]
        num_tokens = rng.uniform(0.2, 0.9) * scale.max_prompt
        while len(_flat(self._history)) < num_tokens:
            self._history.append(self._new_paragraph())
        self._earlier: list[list[Tokens]] = []
        self._num_requests = 0

    def turns(self, num_turns: int) -> list[Turn]:
        turns: list[Turn] = []
        previous: Turn | None = None
        at_step = self._rng.randrange(10)
        for _ in range(num_turns):
            turn = self._turn(at_step, previous)
            turns.append(turn)
            if self._rng.random() < 0.5:
                turns.append(self._probe(turn, previous))
            self._earlier.append(list(self._history))
            self._history.append(self._answer(turn))
            for _ in range(self._rng.choice((0, 1, 1, 2, 3))):
                self._edit()
            if self._rng.random() < 0.85:
                self._history.append(self._new_paragraph())
            previous = turn if self._rng.random() < 0.8 else None
            at_step += self._rng.randrange(8)
        return turns

    def _turn(self, at_step: int, previous: Turn | None) -> Turn:
        rng = self._rng
        self._fit()
        self._num_requests += 1
        return Turn(
            request_id=f"{self._name}-{self._num_requests}",
            prompt=_flat(self._history),
            max_tokens=rng.choice((1, 1, 2, 5, 10, MAX_ANSWER)),
            session=self._name,
            salt=self._salt,
            fidelity=rng.choice(("reuse", "reuse", "reuse", "exact", None)),
            stop_tokens=tuple(rng.sample(OUTPUT_TOKENS, 1)),
            priority=rng.randrange(3),
            at_step=at_step,
            after=previous.request_id if previous else None,
            abort_after_steps=rng.randrange(12) if rng.random() < 0.12 else None,
        )

    def _probe(self, turn: Turn, previous: Turn | None) -> Turn:
        """The very tokens of `turn`, mostly sent by somebody who must not get one moved slot."""
        rng = self._rng
        senders: tuple[tuple[str | None, str | None, Fidelity | None], ...] = (
            (None, turn.salt, None),
            ("other", turn.salt, "reuse"),
            (turn.session, "other", "reuse"),
            (turn.session, turn.salt, "exact"),
            (turn.session, turn.salt, "reuse"),
        )
        session, salt, fidelity = rng.choice(senders)
        return Turn(
            request_id=f"{turn.request_id}-probe",
            prompt=turn.prompt,
            max_tokens=rng.choice((1, 3, 12)),
            session=session,
            salt=salt,
            fidelity=fidelity,
            priority=rng.randrange(3),
            at_step=turn.at_step + rng.randrange(4),
            after=rng.choice((turn.request_id, turn.after)),
        )

    def _answer(self, turn: Turn) -> Tokens:
        tokens = answer(turn.prompt, turn.max_tokens)
        for index, token in enumerate(tokens):
            if token in turn.stop_tokens:
                return tokens[: index + 1]
        return tokens

    def _new_paragraph(self) -> Tokens:
        return _paragraph(self._rng, self._words, self._scale)

    def _fit(self) -> None:
        while len(_flat(self._history)) > self._scale.max_prompt:
            del self._history[self._rng.randrange(len(self._history))]
        if not self._history:
            self._history.append(self._new_paragraph()[: self._scale.max_prompt])

    def _edit(self) -> None:
        rng, history = self._rng, self._history
        kind = rng.choice(("fold", "fold", "delete", "insert", "swap", "replace", "restore", "truncate"))
        index = rng.randrange(len(history))
        if kind == "restore" and self._earlier:
            self._history = list(rng.choice(self._earlier)) + history[len(history) - rng.randrange(2) :]
        elif kind == "fold":
            end = min(len(history), index + rng.randint(1, 2))
            history[index:end] = [tuple(rng.choice(self._words) for _ in range(rng.randint(1, 3)))]
        elif kind == "delete" and len(history) > 1:
            del history[index]
        elif kind == "insert":
            history.insert(index, self._new_paragraph())
        elif kind == "swap":
            other = rng.randrange(len(history))
            history[index], history[other] = history[other], history[index]
        elif kind == "replace" and history[index]:
            at = rng.randrange(len(history[index]))
            word = rng.choice(self._words)
            history[index] = (*history[index][:at], word, *history[index][at + 1 :])
        elif kind == "truncate" and len(history) > 1:
            history[-1] = history[-1][: rng.randrange(len(history[-1]) + 1)]
