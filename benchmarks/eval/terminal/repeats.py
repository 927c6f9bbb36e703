"""Commands of an agent in a shell that repeat an earlier one: does the prompt show its output, or was it taken out?

    Next task ...   `cat a` -> [output]    `ls` -> [output]   `cat a`       a repeat, the output is still shown
    Next task ...   `cat a` -> [.......]   `ls` -> [output]   `cat a`       a re-exploration

A repeat has the text of an earlier command of the conversation, but for white space around it. The agent was told what
that one gave, which it is not of a command beside FINAL(...). It is a re-exploration where no such output is whole in
the prompt that is answered.

Decision: each task has a folder of its own, in which `ls` says other things. A command that this task has given before
counts by its outputs in this task alone. One that earlier tasks alone have given is counted, and told as `elsewhere`.

Files may change between two commands, also by the agent's own. Whoever reads a file again to see a change, or runs a
test once more, repeats. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from acmserve.bench.eval.rlm.loop import code_blocks, final_answer
from acmserve.context.transcript.message import Message


@dataclass(frozen=True, slots=True)
class RepeatedCommand:
    """`outputs` are the messages with what it gave before. `is_elsewhere`: in folders of earlier tasks alone."""

    outputs: frozenset[int]
    is_elsewhere: bool


def commands_of(answer: str) -> list[str]:
    """What an answer wants to be run."""
    return code_blocks(answer, ("bash", "sh"))


def find_repeats(prompt: Sequence[Message], task_start: int, answer: str) -> list[RepeatedCommand]:
    """The commands of the answer that repeat one of the prompt. The task begins with the message `task_start`."""
    outputs = _outputs(prompt)
    found: list[RepeatedCommand] = []
    for command in commands_of(answer):
        told = outputs.get(command.strip(), ())
        own = [entry for entry in told if entry > task_start]
        if told:
            found.append(RepeatedCommand(frozenset(own or told), not own))
    return found


def count_repeats(num_commands: int, repeats: Sequence[RepeatedCommand], removed: Collection[int]) -> dict[str, int]:
    """JSON-ready counts for one answer. `removed` are messages that its prompt does not show whole."""
    gone = [one for one in repeats if one.outputs <= set(removed)]
    shown = [one for one in repeats if one not in gone]
    return {
        "num_commands": num_commands,
        "num_repeats_shown": len(shown),
        "num_shown_elsewhere": sum(one.is_elsewhere for one in shown),
        "num_reexplored": len(gone),
        "num_reexplored_elsewhere": sum(one.is_elsewhere for one in gone),
    }


def add_counts(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The sum of one or more."""
    return {name: sum(one[name] for one in counts) for name in counts[0]}


def _outputs(prompt: Sequence[Message]) -> Mapping[str, list[int]]:
    """The messages with what each command gave."""
    found = defaultdict[str, list[int]](list)
    for entry, (message, _) in enumerate(pairwise(prompt), 1):
        said = message["content"]
        if message["role"] == "assistant" and final_answer(said) is None:
            for command in filter(None, map(str.strip, commands_of(said))):
                found[command].append(entry)
    return found
