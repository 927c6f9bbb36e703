"""Mends what an eviction leaves for templates that want the roles to alternate: neighbours merged, or bridged.

    left       user   "[explored A]"   assistant "Done."   user     |  user   call   result           user
    merged     user   "[explored A]\\nDone."               user     |
    bridged                                                         |  user   call   result   "[..]"  user

Only seams are touched: neighbours between which something was left out, or of which one was cut. Where nothing was, a
conversation stays the very messages of the client, and a template that refuses them refuses them without us. A pair is
judged by itself and from the front. So a conversation that grows gives the same bytes in front of what is new, for a
changed byte costs a prefill. A message with calls is never merged into what follows: its results stand between. Where
a template shows no text beside calls, what an eviction wrote into such a message is split off, as a message before it.

It does not know what was left out, nor why. What a template takes stands in `TemplateRules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acmserve.context.transcript.message import Message
from acmserve.context.transcript.parts import REASONING_FIELDS, tool_calls
from acmserve.context.transcript.template_rules import TAKES_ALL, TemplateRules

LEFT_OUT = "[an answer was left out]"
GO_ON = "[go on]"
_USER_BREAK, _ASSISTANT_BREAK = "\n\n", "\n"


def alternate(whole: Sequence[Message], left: Sequence[Message | None], rules: TemplateRules) -> list[Message]:
    """What is left of a conversation as the template takes it. `left` has what is left of each message of `whole`."""
    return alternate_entries(whole, left, rules)[0]


def alternate_entries(
    whole: Sequence[Message], left: Sequence[Message | None], rules: TemplateRules
) -> tuple[list[Message], list[list[int]]]:
    """The same, and for each message the entries that are in it: several where they were merged, none for a bridge."""
    if rules.policy == TAKES_ALL.policy:
        kept = [(message, [entry]) for entry, message in enumerate(left) if message is not None]
        return [message for message, _ in kept], [entries for _, entries in kept]
    mended: list[Message] = []
    entries: list[list[int]] = []
    before = -1
    was_cut = False
    for entry, message in enumerate(left):
        if message is None:
            continue
        is_cut = message is not whole[entry]
        for piece in _split(whole[entry], message) if is_cut and not rules.calls_with_text else (message,):
            if mended and (is_cut or was_cut or entry != before + 1):
                _join(mended, piece, rules)
            else:
                mended.append(piece)
            if len(mended) == len(entries):
                entries[-1].append(entry)
            entries += [[] for _ in range(len(mended) - len(entries) - 1)] + [[entry]] * (len(mended) > len(entries))
        before, was_cut = entry, is_cut
    return mended, entries


def _split(whole: Message, left: Message) -> tuple[Message, ...]:
    """A message that calls tools, and what an eviction wrote into it as one of its own before it."""
    if not tool_calls(left) or left.get("content") == whole.get("content"):
        return (left,)
    old, new = whole.get("content") or "", left.get("content") or ""
    if isinstance(new, list):
        known = old if isinstance(old, list) else []
        same = {id(part) for part in known}
        is_known = [id(part) in same or part in known for part in new]
        written: Any = [part for part, is_old in zip(new, is_known, strict=True) if not is_old]
        kept: Any = [part for part, is_old in zip(new, is_known, strict=True) if is_old]
    else:
        is_behind = isinstance(old, str) and bool(old) and str(new).startswith(old)
        written, kept = (str(new)[len(str(old)) :].strip(), old) if is_behind else (new, "")
    if not written:
        return (left,)
    return {"role": "assistant", "content": written}, {**left, "content": kept}


def _join(mended: list[Message], message: Message, rules: TemplateRules) -> None:
    """Append a message behind a seam: as it is, merged with the last one, or with a bridge before it."""
    last = mended[-1]
    pair = (last.get("role"), message.get("role"))
    if pair == ("user", "user") and not rules.users_in_a_row:
        mended[-1] = _merged(last, message, _USER_BREAK)
        return
    if pair == ("assistant", "assistant") and not tool_calls(last):
        if tool_calls(message):
            if not rules.text_then_calls and rules.calls_with_text:
                mended[-1] = _merged(last, message, _ASSISTANT_BREAK)
                return
            if not rules.text_then_calls:
                mended.append({"role": "user", "content": GO_ON})
        elif not rules.assistants_in_a_row:
            mended[-1] = _merged(last, message, _ASSISTANT_BREAK)
            return
    if pair == ("tool", "user") and not rules.results_then_user:
        mended.append({"role": "assistant", "content": LEFT_OUT})
    mended.append(message)


def _merged(first: Message, second: Message, between: str) -> dict[str, Any]:
    """Both messages as one, which is the second with what the first says in front."""
    merged = {**second, "content": _joined(first.get("content"), second.get("content"), between)}
    for name in REASONING_FIELDS:
        if first.get(name):
            merged[name] = _joined(first[name], second.get(name), between)
    return merged


def _joined(first: object, second: object, between: str) -> object:
    if not first or not second:
        return first or second or ""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{between}{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: object) -> list[Any]:
    return list(content) if isinstance(content, list | tuple) else [{"type": "text", "text": content}]
