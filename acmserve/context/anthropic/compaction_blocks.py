"""Compaction blocks of a conversation in the Anthropic form: a summary stands for everything before it.

    user a | assistant b | user c | assistant [compaction S, d] | user e                    as a client sends it
    user [S, c] | assistant d | user e                                                      as the model sees it

    user a | assistant use 1 | user result 1 | assistant use 2 | user result 2 | assistant [compaction S, d]
    user [S, a] | assistant use 2 | user result 2 | assistant d

The last block with content counts. The vendor drops all that stands before it. Here what the assistant was answering
stays, word for word. A summary may lose the question that it is followed by. That is the user's turn right before the
block. Where tool results stand there, these with their calls, and the user's last words before them. Clients may leave
out what stands before the block themselves, and then nothing of it is kept.

The result depends on the messages alone. The prompt behind a new summary is, to the byte, the beginning of every later
prompt, so it stays cached. A block without content is a compaction that failed, and stands for nothing.

Pure. The messages may be anything that JSON can say: whoever parses the result refuses what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acmserve.context.eviction.compact import HEAD
from acmserve.errors import InvalidRequest

COMPACTION = "compaction"
_TOOL_CHANGES = ("tool_addition", "tool_removal")


def compaction_block(summary: str | None) -> dict[str, Any]:
    """The block that the client keeps. None says that no summary could be written."""
    return {"type": COMPACTION, "content": summary}


def has_compaction(messages: object) -> bool:
    """Whether there is a compaction block, with content or without."""
    return isinstance(messages, list) and any(_is_compaction(block) for m in messages for block in _blocks(m))


def check_compaction(messages: Sequence[Any]) -> None:
    """Raise InvalidRequest for a block whose content is neither a summary nor null."""
    for index, message in enumerate(messages):
        for position, block in enumerate(_blocks(message)):
            content = block.get("content") if _is_compaction(block) else None
            if content is not None and (not isinstance(content, str) or not content):
                raise InvalidRequest(
                    f"messages[{index}].content[{position}].content",
                    "of a compaction block must be the summary, or null for a compaction that failed.",
                    "Send the block back as it came.",
                )


def resume(messages: Sequence[Any]) -> list[Any]:
    """The messages as the model sees them. Those of which nothing is taken are the very objects that came in."""
    found = _last_summary(messages)
    if found is None:
        return without_compaction(messages)
    index, position = found
    message = messages[index]
    content = message["content"]
    summary = content[position]["content"]
    before, after = without_compaction(messages[:index]), without_compaction(messages[index + 1 :])
    changes, kept = _kept(before)
    rest = [block for block in content[position + 1 :] if not _is_compaction(block)]
    if rest:
        after.insert(0, {**message, "content": rest})
    elif kept and after and _role(kept[-1]) == _role(after[0]) == "user":
        after[0] = {**after[0], "content": [*_blocks(kept.pop()), *_blocks(after[0])]}
    return [*changes, *_headed(f"{HEAD}\n{summary}", [*kept, *after])]


def with_summary(messages: Sequence[Any], summary: str) -> list[Any]:
    """What the model sees when all these messages have just been summarized."""
    return resume([*messages, {"role": "assistant", "content": [compaction_block(summary)]}])


def without_compaction(messages: Sequence[Any]) -> list[Any]:
    """The messages without compaction blocks, and without those that have nothing else."""
    left: list[Any] = []
    for message in messages:
        if not any(_is_compaction(block) for block in _blocks(message)):
            left.append(message)
        elif rest := [block for block in message["content"] if not _is_compaction(block)]:
            left.append({**message, "content": rest})
    return left


def _last_summary(messages: Sequence[Any]) -> tuple[int, int] | None:
    for index in reversed(range(len(messages))):
        if not any(_is_compaction(block) for block in _blocks(messages[index])):
            continue
        content = messages[index]["content"]
        for position in reversed(range(len(content))):
            if _is_compaction(content[position]) and content[position].get("content"):
                return index, position
    return None


def _kept(before: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What stays of the messages before a block: changes of the tools, and what the assistant was answering."""
    start = max((index for index, message in enumerate(before) if _role(message) == "assistant"), default=-1) + 1
    question: list[Any] = []
    if not any(_own_words(message) for message in before[start:]) or _has_results(before[start:]):
        while start > 0 and _role(before[start - 1]) == "assistant":
            start -= 1
        asked = (message for message in reversed(before[:start]) if _own_words(message))
        question = [{**message, "content": _own_words(message)} for message in asked][:1]
    changed = ([b for b in _blocks(message) if b.get("type") in _TOOL_CHANGES] for message in before[:start])
    return [{"role": "system", "content": blocks} for blocks in changed if blocks], [*question, *before[start:]]


def _headed(summary: str, messages: list[Any]) -> list[Any]:
    """The summary at the head of the first message, if that is a user's, else as one of its own."""
    block = {"type": "text", "text": summary}
    if messages and _role(messages[0]) == "user":
        return [{**messages[0], "content": [block, *_blocks(messages[0])]}, *messages[1:]]
    return [{"role": "user", "content": [block]}, *messages]


def _own_words(message: object) -> list[Mapping[str, Any]]:
    """What a user says or shows in a message, beside results of tools."""
    if _role(message) != "user":
        return []
    return [block for block in _blocks(message) if block.get("type") != "tool_result"]


def _has_results(messages: Sequence[Any]) -> bool:
    return any(block.get("type") == "tool_result" for message in messages for block in _blocks(message))


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, Mapping) else None


def _blocks(message: object) -> list[Mapping[str, Any]]:
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []


def _is_compaction(block: object) -> bool:
    return isinstance(block, Mapping) and block.get("type") == COMPACTION
