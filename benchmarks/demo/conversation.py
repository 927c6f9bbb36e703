"""The bundled conversation and the prompts of its turns.

    warm      P  F  S                        everything said so far. F is the tool result that will be folded
    append    P  F  S  u1                    a new user message
    fold      P  m  S  u1 a1 u2              F gives way to a marker m
    append    P  m  S  u1 a1 u2 a2 u3
    restore   P  F  S  u1 a1 u2 a2 u3 a3 u4  F is back

The replies a1..a3 are recorded, not the model's: so every column of the demo reads the same prompt, whatever the model
answered. Prompts are token ids, made by the model's own chat template. Nothing here knows engines or times.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

Message = dict[str, str]
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DemoTurn:
    """`edit` is None, "fold" or "restore" and happens just before the user speaks."""

    name: str
    edit: str | None
    user: str
    recorded_reply: str | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """`messages[fold_index]` is the tool result that gets folded. `fragment` its name in the marker."""

    title: str
    messages: tuple[Message, ...]
    fold_index: int
    fragment: str
    turns: tuple[DemoTurn, ...]

    def at_turn(self, number: int, marker: str | None) -> list[Message]:
        """Messages of turn `number`, from 0, the folded one replaced by `marker` when there is one."""
        messages = list(self.messages)
        if marker is not None:
            messages[self.fold_index] = {"role": messages[self.fold_index]["role"], "content": marker}
        for turn in self.turns[:number]:
            messages.append({"role": "user", "content": turn.user})
            messages.append({"role": "assistant", "content": turn.recorded_reply or ""})
        messages.append({"role": "user", "content": self.turns[number].user})
        return messages


@dataclass(frozen=True, slots=True)
class TurnPrompt:
    """`num_new_tokens` at the end or in the marker were in no prompt before. Everything else was."""

    turn: DemoTurn
    tokens: Tokens
    num_new_tokens: int


@dataclass(frozen=True, slots=True)
class DemoReplay:
    """The whole demo in tokens: `warm` first, then the prompts in order."""

    warm: Tokens
    num_folded_tokens: int
    marker: str
    num_marker_tokens: int
    prompts: tuple[TurnPrompt, ...]


def load() -> Conversation:
    """The conversation that comes with the package. Message texts are stored as lists of lines."""
    raw = json.loads(files("acmserve.bench.demo").joinpath("conversation.json").read_text(encoding="utf-8"))
    return Conversation(
        title=raw["title"],
        messages=tuple({"role": m["role"], "content": "\n".join(m["lines"])} for m in raw["messages"]),
        fold_index=raw["fold"]["message"],
        fragment=raw["fold"]["fragment"],
        turns=tuple(DemoTurn(**turn) for turn in raw["turns"]),
    )


def marker_text(fragment: str, num_tokens: int) -> str:
    """What the model sees in the place of a folded message."""
    return f'[folded {fragment}: {num_tokens:,} tokens hidden; restore_fragment("{fragment}") to read]'


def plan_replay(conversation: Conversation, tokenizer: Any) -> DemoReplay:
    """Render every turn with the tokenizer's chat template."""

    def render(messages: Sequence[Message], answer_next: bool) -> Tokens:
        ids = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=answer_next, tokenize=True, return_dict=False
        )
        return tuple(int(token) for token in ids)

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    num_folded = count(conversation.messages[conversation.fold_index]["content"])
    marker = marker_text(conversation.fragment, num_folded)
    num_marker = count(marker)
    warm = render(conversation.messages, answer_next=False)
    prompts = []
    folded, last_end = False, len(warm)
    for number, turn in enumerate(conversation.turns):
        folded = turn.edit == "fold" or (folded and turn.edit != "restore")
        whole = render(conversation.at_turn(number, None), answer_next=True)
        tokens = render(conversation.at_turn(number, marker), answer_next=True) if folded else whole
        num_new = len(whole) - last_end + (num_marker if turn.edit == "fold" else 0)
        prompts.append(TurnPrompt(turn, tokens, num_new))
        last_end = len(whole)
    return DemoReplay(warm, num_folded, marker, num_marker, tuple(prompts))
