"""A sample as an agent has it: its text came in parts, as results of calls that read it. Pure.

    user: Read parts 1 to 2.      assistant: read(part=1)      tool: ...      assistant: read(part=2)      tool: ...
    assistant: I have read them.      user: Read parts 3 to 4.      ...      user: the question

Decision: there are at least eight parts, of about 1,000 tokens at most. A budget takes parts, so a text of one part
would be kept or lost as a whole. A part ends with a line or a word.

Decision: the user asks for two parts at a time. Reads without a word of the user between them are one episode to
`cwl`, which takes an episode as a whole. So no budget would leave any of a short text.
"""

from __future__ import annotations

from acmserve.bench.agent.scripted_agent import function_tool
from acmserve.bench.eval.tasks.task import CHARS_PER_TOKEN, EvalSample
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import PLACEHOLDER

NUM_PARTS, PART_TOKENS, PARTS_OF_A_TURN = 8, 1_000, 2
READ = function_tool("read", "Read one part of the text.", part="integer")


def as_reads(sample: EvalSample) -> list[Message]:
    """The sample with its text as results of calls. A task that is a conversation stays as it is."""
    if not sample.context:
        return sample.messages()
    parts = split(sample.context)
    messages: list[Message] = list(sample.history)
    for first in range(0, len(parts), PARTS_OF_A_TURN):
        some = dict(enumerate(parts[first : first + PARTS_OF_A_TURN], start=first + 1))
        told = f"parts {min(some)} to {max(some)}" if len(some) > 1 else f"part {min(some)}"
        messages.append({"role": "user", "content": f"Read {told}."})
        for number, part in some.items():
            call = {"name": "read", "arguments": f'{{"part": {number}}}'}
            calls = [{"id": f"read-{number}", "type": "function", "function": call}]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": f"read-{number}", "content": part})
        messages.append({"role": "assistant", "content": "I have read them."})
    return [*messages, {"role": "user", "content": sample.question}]


def without_reads(sample: EvalSample) -> list[Message]:
    """What no budget may take: the question, and what was said around the reads."""
    said = [one for one in as_reads(sample) if one["role"] != "tool" and not one.get("tool_calls")]
    return said if sample.context else said[-1:]


def with_cleared_reads(sample: EvalSample) -> list[Message]:
    """The least that is left where results are cleared, and calls stay."""
    return [{**one, "content": PLACEHOLDER} if one["role"] == "tool" else one for one in as_reads(sample)]


def split(text: str) -> list[str]:
    """A text in parts, which make up the text together."""
    num = max(NUM_PARTS, -(-len(text) // (PART_TOKENS * CHARS_PER_TOKEN)))
    found, start = [], 0
    for num_left in range(num, 1, -1):
        size = (len(text) - start) // num_left
        ends = (text.rfind(mark, start + size // 2, start + size) for mark in "\n ")
        end = next((at + 1 for at in ends if at >= 0), start + size)
        found.append(text[start:end])
        start = end
    return [part for part in (*found, text[start:]) if part]
