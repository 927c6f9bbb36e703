"""The ways in which agents' clients resend a history in other words, seen with unmodified clients. One function each.

A history is a list of messages with the number of the message that each one was, None where it is new. So the fuzzer
knows which message is which without any digest.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from tests.support.context.agent_session import REMINDER, Writer

Tagged = list[tuple[int | None, dict[str, Any]]]
Respelling = Callable[[Tagged, Writer], Tagged]

CLEARED = "[Old tool result content cleared]"


def tagged(messages: list[dict[str, Any]]) -> Tagged:
    return [(number, copy.deepcopy(message)) for number, message in enumerate(messages)]


def git_status(history: Tagged, writer: Writer) -> Tagged:
    """The end of the system message is taken anew, and the date in it."""
    _, system = history[0]
    text = as_text(system["content"])
    head, mark, _ = text.partition("Date: ")
    if system["role"] == "system" and mark:
        end = "".join(f"\n{writer.line(2)}" for _ in range(writer.rng.randint(1, 4)))
        system["content"] = f"{head}Date: {writer.line(2)}\nGit status:{end}"
    return history


def stripped(history: Tagged, writer: Writer) -> Tagged:
    """Answers without the white space at their ends."""
    for _, message in history:
        if message["role"] == "assistant" and isinstance(message.get("content"), str):
            message["content"] = message["content"].strip()
    return history


def as_parts(history: Tagged, writer: Writer) -> Tagged:
    """A text is a list of one part or of several, one line each."""
    for _, message in history:
        content = message.get("content")
        if isinstance(content, str) and content and writer.rng.random() < 0.4:
            pieces = content.split("\n\n") if writer.rng.random() < 0.3 else [content]
            message["content"] = [{"type": "text", "text": piece} for piece in pieces]
        elif isinstance(content, list) and all("text" in part for part in content) and writer.rng.random() < 0.4:
            message["content"] = as_text(content)
    return history


def cache_control(history: Tagged, writer: Writer) -> Tagged:
    """The last user message is a list of parts with a mark, the one before has lost its own."""
    users = [message for _, message in history if message["role"] in ("user", "tool")]
    for message in users[-2:]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        message["content"] = [{name: v for name, v in part.items() if name != "cache_control"} for part in parts]
    if users and users[-1]["content"]:
        users[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return history


def reminders(history: Tagged, writer: Writer) -> Tagged:
    """Reminders are taken off, glued on, or stand between as messages of their own."""
    for _, message in history:
        if message["role"] != "user":
            continue
        content = message["content"]
        if isinstance(content, str):
            without = content.removesuffix(REMINDER)
            message["content"] = without + (REMINDER if without == content and writer.rng.random() < 0.2 else "")
        elif writer.rng.random() < 0.2:
            content.append({"type": "text", "text": REMINDER})
    if writer.rng.random() < 0.5:
        places = [n for n, (_, message) in enumerate(history) if message["role"] == "user"]
        at = writer.rng.choice(places)
        history = [
            *history[: at + 1],
            (None, {"role": "system", "content": REMINDER + writer.line()}),
            *history[at + 1 :],
        ]
    return history


def memory_block(history: Tagged, writer: Writer) -> Tagged:
    """Lines of a block that the agent keeps are written anew, the rest stands."""
    for _, message in history:
        text = as_text(message.get("content"))
        if text.startswith("# Memory"):
            block, mark, rest = text.partition("# Task")
            lines = block.split("\n")
            lines[writer.rng.randrange(1, len(lines))] = writer.line()
            message["content"] = "\n".join(lines) + mark + rest
    return history


def files_behind(history: Tagged, writer: Writer) -> Tagged:
    """The block of files moves behind what was said since, and the reminder behind it is glued to the next message."""
    at = next(
        (n for n, (_, m) in enumerate(history) if as_text(m.get("content")).startswith("These are the files")), None
    )
    if at is None:
        return history
    moved, said = history[at : at + 2], history[at + 2 :]
    for _, message in said:
        if message["role"] == "user" and isinstance(message["content"], str):
            message["content"] = message["content"].removesuffix(REMINDER)
    return [*history[:at], *said, *moved]


def renamed_ids(history: Tagged, writer: Writer) -> Tagged:
    """Each call has another id, and its result too."""
    for _, message in history:
        for call in message.get("tool_calls") or ():
            call["id"] = f"renamed-{call['id']}"
        if "tool_call_id" in message:
            message["tool_call_id"] = f"renamed-{message['tool_call_id']}"
    return history


def pruned(history: Tagged, writer: Writer) -> Tagged:
    """Old results are a marker, or have only their last lines."""
    for _, message in history:
        if message["role"] == "tool" and writer.rng.random() < 0.4:
            lines = as_text(message["content"]).split("\n")
            kept = "\n".join(["[cut]", *lines[len(lines) // 2 :]])
            message["content"] = kept if writer.rng.random() < 0.5 and len(lines) > 3 else CLEARED
    return history


def no_reasoning(history: Tagged, writer: Writer) -> Tagged:
    """Reasoning is not sent back."""
    for _, message in history:
        message.pop("reasoning_content", None)
    return history


def compacted(history: Tagged, writer: Writer) -> Tagged:
    """A summary stands for the first messages. The last ones are as they were."""
    users = [n for n, (_, message) in enumerate(history) if message["role"] == "user"]
    at = writer.rng.choice(users[1:] or users)
    head = history[:1]
    summary: Tagged = [(None, {"role": "user", "content": f"Summary: {writer.text(3, 6)}"})]
    return [*head, *summary, *history[max(1, at) :]]


RESPELLINGS: tuple[Respelling, ...] = (
    git_status,
    stripped,
    as_parts,
    cache_control,
    reminders,
    memory_block,
    files_behind,
    renamed_ids,
    pruned,
    no_reasoning,
    compacted,
)


def respell(messages: list[dict[str, Any]], kinds: tuple[Respelling, ...], rng: random.Random, seed: int) -> Tagged:
    """The history after these, and a new message of the user. New words are those of no session."""
    writer = Writer(rng)
    writer.num_words = 1_000_000 + seed % 1000 * 1000
    history = tagged(messages)
    for kind in kinds:
        history = kind(history, writer)
    return [*history, (None, {"role": "user", "content": writer.text(1, 3)})]


def as_text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content if isinstance(content, str) else ""
