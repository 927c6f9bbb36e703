"""What a model says that works through the tasks of `terminal`, and gets some of them wrong.

    user: ... - rename: Rename every file ...   ->  a call of the shell, or a block: cd rename && ...
    the result of the last task                 ->  a call that submits

As with errands, the answer follows from the rendered prompt alone. The next task is that behind the last one that was
worked on, so an eviction of earlier steps changes nothing.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.clients.errand import NOTED, SUBMIT
from tests.support.clients.offered_tools import command_call, offered_tools

WRONG = frozenset({"archive", "fix-test", "sum-table"})
SOLUTIONS = json.loads((Path(__file__).parents[2] / "bench/eval/terminal/solutions.json").read_text(encoding="utf-8"))
BLOCK = "```mswea_bash_command"
"""How the text configuration of mini-swe-agent has its commands begin."""
_WORKED_ON = re.compile(r"cd ([a-z-]+) && ")


def next_command(prompt: str) -> str:
    """What is to be run next."""
    done = [name for name in _WORKED_ON.findall(prompt) if name in SOLUTIONS]
    names = list(SOLUTIONS)
    number = names.index(done[-1]) + 1 if done else 0
    if number == len(names):
        return f"echo {SUBMIT}"
    name = names[number]
    return f"cd {name} && {SOLUTIONS[name]['wrong' if name in WRONG else 'right']}"


def due_call(prompt: str) -> str:
    """The next command as a tool call, or in a block where the system message wants one."""
    system = prompt.partition("<|im_start|>")[2].partition("<|im_start|>")[0]
    if BLOCK in system:
        return f"THOUGHT: That is next.\n\n{BLOCK}\n{next_command(prompt)}\n```"
    call = command_call(offered_tools(system), next_command(prompt))
    if call is None:
        return NOTED
    return f"<tool_call>\n{json.dumps({'name': call[0], 'arguments': call[1]})}\n</tool_call>"
