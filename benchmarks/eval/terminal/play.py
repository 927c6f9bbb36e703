"""An agent in a shell: it writes commands as text, and reads what they gave as messages of the user.

    task --> answer with a block of bash --> run --> exit code and output, as a message of the user --> answer ...
             answer with FINAL(...)      --> check          at most 15 steps for a task

    shell-isolated   each task in a conversation of its own            the baseline
    shell            all tasks in one conversation
    shell:POLICY     the same session, under a budget

The words are our own, the form of the loop is that of mini-swe-agent. Earlier tasks come out of the journal. Behind
each answer its commands are counted, with those that it gave before (`repeats.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from acmserve.bench.eval.play import Play
from acmserve.bench.eval.rlm.loop import final_answer
from acmserve.bench.eval.terminal.repeats import add_counts, commands_of, count_repeats, find_repeats
from acmserve.bench.eval.terminal.shell import SHELL_LIMITS, Shell
from acmserve.context.transcript.message import Message

NUM_STEPS = 15
SYSTEM = """\
You solve tasks in a shell, one after the other. Each task has a folder of its own, and you are in it.
Write one block of commands, and you are told what it gave:
```bash
ls
```
There is no network, and nobody can be asked. The tools are bash, python and the usual programs of Unix.
When a task is done, write FINAL(done) at the beginning of a line, outside of any block."""
NOTHING = "<returncode>none</returncode>\n<output>\nNothing was run: write a ```bash block, or FINAL(done).\n</output>"


def play_isolated(play: Play) -> str:
    """One task, with nothing before it."""
    return _play(play, [])


def play_session(play: Play, acm: Mapping[str, Any] | None = None) -> str:
    """One task behind those that were worked on before."""
    before = [message for _, answer in play.before if answer for message in json.loads(answer)["messages"]]
    if acm is None:
        return _play(play, before)
    with play.one_session(of_group=True):
        return _play(play, before, acm)


def _play(play: Play, before: list[Message], acm: Mapping[str, Any] | None = None) -> str:
    sample = play.sample
    said: list[Message] = [{"role": "user", "content": f"Next task: {sample.question}"}]
    play.repeats = count_repeats(0, [], ())
    with Shell(SHELL_LIMITS.showing(play.limits.printed)) as shell:
        shell.set_up(sample.facts["setup"])
        for _ in range(play.limits.steps or NUM_STEPS):
            prompt: list[Message] = [{"role": "system", "content": SYSTEM}, *before, *said]
            answer = play.ask(prompt, acm, max_tokens=play.step_tokens)
            _count(play, prompt, len(before) + 1, answer)
            said.append({"role": "assistant", "content": answer})
            told = shell.limits.joined([shell.run(command).told for command in commands_of(answer)]) or NOTHING
            if final_answer(answer) is not None:
                break
            said.append({"role": "user", "content": told})
        is_solved = shell.passes(sample.facts["check"])
    if said[-1]["role"] == "user":
        # The task ended without a last word, and the next begins with a message of the user.
        said.append({"role": "assistant", "content": "I have not finished this task."})
    return json.dumps({"solved": is_solved, "messages": said})


def _count(play: Play, prompt: list[Message], task_start: int, answer: str) -> None:
    """Add what an answer repeats. Once the server does not tell what it took out, nothing is known of the task."""
    if play.repeats is None:
        return
    repeats = find_repeats(prompt, task_start, answer)
    removed = play.removed_of({entry for one in repeats for entry in one.outputs})
    counts = None if removed is None else count_repeats(len(commands_of(answer)), repeats, removed)
    play.repeats = None if counts is None else add_counts([play.repeats, counts])
