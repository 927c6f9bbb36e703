"""The default form of `bench precompute`: rounds of the same conversation with precompute and without, in turns.

    round 0   without | with       tasks 1 to 4, pauses of seed 0
    round 1   with | without       tasks 5 to 8, pauses of seed 1
    round 2   without | with       ...

Each round is another conversation, with the same script in both. Its prompts are the same until `predict` carries out
an eviction early, and may differ from there on (`bars.py`). All on one server, and what drifts on the machine meets
both. Each conversation has a session and a salt of its own. The next one begins when nothing is computed for the last
any more. So no work of `predict` lies in the pauses of the other. What the weights would have said has to be the same
wherever both saw one prompt (`witnessed_model`).

Decision: rounds are whole. Each is kept in the file of the partial result when it ends, and `--resume` takes it from
there. A round that others disturbed is measured again, since a pair counts only if both met the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from acmserve.bench.agent.conversation import ConversationRun, check_run, run_conversation, script_id
from acmserve.bench.agent.scripted_agent import Trace
from acmserve.bench.harness.run_log import counted
from acmserve.bench.models.witness import Agreement, compare, read_witness
from acmserve.bench.precompute.chains import USER_MESSAGES, dropped_tokens
from acmserve.bench.precompute.runs import (
    EXACT,
    PREDICT,
    THOUGHTS,
    answers,
    conditions_of,
    make_run,
    pauses_of,
    read_counters,
    sleeper,
    wait_until_idle,
)
from acmserve.bench.precompute.turn_statistics import new_tokens
from acmserve.bench.provenance.code_state import ROOT
from acmserve.bench.provenance.machine_use import ProcessorTimes, is_busy, use_between
from acmserve.bench.provenance.measured import SERVER
from acmserve.bench.provenance.same_run import SAME_MACHINE, check_same_run
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import AcmError

MODES = {EXACT: "off", PREDICT: "predict"}
"""The runs of a round, and what each says of precompute."""
COLUMNS = ("seconds", "prompt_tokens", "computed_tokens", "precomputed_tokens", "evicted_tokens", "follows_pause")
MOST_NEW_TOKENS = 200
"""Behind dropped thoughts: an answer and a question. More means that the template dropped none."""
_WARM_UP_REQUESTS = 2
_ENTRIES = ("number", "order", "agreement", "use", "runs")

Say = Callable[[str], None]
Round = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What rounds are made of. `trace` has `num_rounds` times `num_tasks` tasks, or whole chains of thoughts.

    `sleep` is the client's pause.
    """

    policy: str
    trace: Trace
    num_tasks: int
    num_rounds: int
    sleep: Callable[[float], object] = time.sleep

    def part(self, number: int) -> Trace:
        """The conversation of a round."""
        num_messages = self.num_tasks * (USER_MESSAGES if self.policy == THOUGHTS else 1)
        return self.trace.with_tasks(number * num_messages, num_messages)

    def describe(self, model: str) -> dict[str, Any]:
        """What a kept round has to agree with."""
        sizes = {"num_tasks": self.num_tasks, "num_rounds": self.num_rounds}
        waited = [round(sum(pauses_of(self.part(number), number)), 3) for number in range(self.num_rounds)]
        found = {"model": model, "policy": self.policy, **sizes, "digest": self.trace.digest}
        return {**found, "conditions": conditions_of(self.policy), "pause_seconds": waited}


def measure_rounds(
    plan: RoundPlan,
    url: str,
    tokenizer: Tokenizer,
    witness: Path,
    kept: Sequence[Round],
    keep: Callable[[Sequence[Round]], None],
    say: Say,
) -> list[Round]:
    """All rounds, those of `kept` as they are. `keep` gets what there is after each."""
    found = {one["number"]: one for one in kept}
    _warm_up(plan, url, tokenizer, say)
    for number in (n for n in range(plan.num_rounds) if n not in found):
        found[number] = _play(plan, number, url, tokenizer, witness, say)
        keep([found[n] for n in sorted(found)])
    return [found[n] for n in sorted(found)]


def kept_rounds(
    report: Mapping[str, Any], about: Mapping[str, Any], machine: Mapping[str, Any], root: Path = ROOT
) -> list[Round]:
    """The rounds of an earlier report that need not be measured again.

    Raises AcmError where it is of another run or another machine, or of other code than the checkout `root` has.

    One that was ended in its first round has none.
    """
    if "rounds" not in report:
        return []
    told = dict(report.get("rounds_of") or {})
    names = [name for name in {**told, **about} if told.get(name) != about.get(name)]
    others = [f"{name} {told.get(name)}, now {about.get(name)}" for name in names]
    check_same_run(report["machine"], machine, SAME_MACHINE, SERVER, others, root)
    return [one for one in report["rounds"] if not is_busy(one) and not one["failures"]]


def check_entries(rounds: Sequence[Round]) -> None:
    """Raises LookupError where a kept round has not all that `_play` told of it."""
    for one in rounds:
        if missing := [name for name in _ENTRIES if name not in one]:
            raise LookupError(f"a round without {', '.join(missing)}")


def _warm_up(plan: RoundPlan, url: str, tokenizer: Tokenizer, say: Say) -> None:
    """A few turns that are not counted: the first ones of a server are slow."""
    part = plan.part(0)
    first = Trace(part.requests[:_WARM_UP_REQUESTS], part.descriptions)
    run = make_run(f"warm-up {plan.num_rounds}", plan.policy, "exact", "predict")
    run_conversation(url, first, run, tokenizer, say)
    wait_until_idle(url, run.name)


def _play(plan: RoundPlan, number: int, url: str, tokenizer: Tokenizer, witness: Path, say: Say) -> Round:
    """Both modes of one round, JSON-ready. `failures` say why it has no number."""
    part, began = plan.part(number), ProcessorTimes.now()
    order = list(MODES) if number % 2 == 0 else list(MODES)[::-1]
    runs: dict[str, ConversationRun] = {}
    for index, name in enumerate(order):
        say(counted(len(MODES) * number + index + 1, len(MODES) * plan.num_rounds, f"round {number}, {name}"))
        run = runs[name] = make_run(f"{name}, round {number}", plan.policy, "exact", MODES[name])
        before = read_counters(url)
        pause = sleeper(pauses_of(part, number), plan.sleep)
        run_conversation(url, part, run, tokenizer, say, pause=pause, keep_prompts=True)
        wait_until_idle(url, run.name)
        run.counters = {key: value - before[key] for key, value in read_counters(url).items()}
        if plan.policy == THOUGHTS:
            run.failures += note_dropped(run, part, tokenizer)
    failures = [failure for run in runs.values() for failure in check_run(run, part)]
    agreed = None if failures else agreement_of(runs[PREDICT], runs[EXACT], part, witness)
    if agreed is not None and agreed.num_different > agreed.num_ties:
        failures.append(f"round {number}: {agreed.num_different - agreed.num_ties} tokens are not those of `off`")
    return {
        "number": number,
        "order": order,
        "failures": failures,
        "agreement": None if agreed is None else asdict(agreed),
        "use": use_between(began, ProcessorTimes.now()),
        "runs": {} if failures else {name: as_run(run, part, number) for name, run in runs.items()},
    }


def as_run(run: ConversationRun, part: Trace, number: int) -> dict[str, Any]:
    """The turns of one conversation by columns. A later step of a loop has no pause."""
    columns = run.columns()
    pauses = iter(pauses_of(part, number))
    waited = [round(next(pauses), 3) if turn.follows_pause else 0.0 for turn in run.turns]
    turns = {name: columns[name] for name in COLUMNS} | {"pause_seconds": waited}
    return {"counters": run.counters, "turns": turns}


def note_dropped(run: ConversationRun, part: Trace, tokenizer: Tokenizer) -> list[str]:
    """Note in each turn what the template dropped in front of it. What was not as it has to be."""
    failures = []
    for turn, num_dropped in zip(run.turns, dropped_tokens(part, tokenizer), strict=False):
        turn.evicted += num_dropped
    columns = run.columns()
    for number in range(1, len(run.turns)):
        num_new = new_tokens(columns, number)
        if run.turns[number].evicted and not 0 < num_new <= MOST_NEW_TOKENS:
            failures.append(f"{run.name}, turn {number}: {num_new} new tokens, so the template dropped no thoughts")
    return failures


def agreement_of(ours: ConversationRun, theirs: ConversationRun, part: Trace, witness: Path) -> Agreement:
    """Of the answers whose prompts are known and the same in both. Raises AcmError where none is."""
    said = read_witness(witness)
    one, other = [], []
    for (request, step, _), a, b in zip(answers(part), ours.turns, theirs.turns, strict=True):
        if a.prompt_messages is not None and without_ids(a.prompt_messages) == without_ids(b.prompt_messages):
            one.append(said[script_id(ours.name, request), step])
            other.append(said[script_id(theirs.name, request), step])
    if not one:
        raise AcmError(f"{ours.name} and {theirs.name} have no prompt in common")
    return compare(one, other)


def without_ids(messages: Sequence[Message] | None) -> list[dict[str, Any]]:
    """Messages as the template shows them: the ids of calls are drawn anew in each conversation, and not shown."""
    found = []
    for message in messages or ():
        shown = {name: value for name, value in message.items() if name != "tool_call_id"}
        if calls := message.get("tool_calls"):
            shown["tool_calls"] = [call["function"] for call in calls]
        found.append(shown)
    return found
