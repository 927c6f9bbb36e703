"""What is remembered of a conversation to recognise it: the units of its last request, as hashes.

    remembered   [ u0 u1 u2 u3 u4 ]            of a request, and of the answer that was given to it
    request      [ u0 u1 u2 u3 u4 a5 u6 ]      the same beginning: one comparison of two chain hashes
    request      [ x0 u1 u2 u4 a5 u6 ]         changed in front, inserted, left out: compared unit by unit

A request *continues* a conversation when the end of the conversation stands in it. A fork from the middle of one shares
much of it and does not continue it. The end is the last unit, or that unit in other words beside another one of the
last four. The words of a unit change when a client glues a reminder to its last message, and takes the reminder off
again.

A request *retells* a conversation when its own text holds much of what was said in that conversation. A client that
compacts may write everything out as one text, under headings of its own. Lines are compared for that, those with the
smallest hashes, so that as few stand for all. A client may cut long results, so its own lines are what counts. Text
that is written with escapes has other lines, and is not recognised.

Holds no text. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import compress
from operator import not_

from acmserve.server.identity.prompt import PromptUnits, read_units
from acmserve.server.identity.system_text import SystemText
from acmserve.server.identity.units import UnitReader

TAIL = 4
"""Units at the end of a conversation of which two must be found again."""
MIN_RESPELLED_CHARS = 12
MIN_SHARED_CHARS = 128
"""Text that another history must share with a conversation."""
MIN_SHARE = 4
"""Another history must share one part in so many of the conversation, or of itself."""
NUM_SKETCHED = 256
"""Lines that stand for a conversation."""
MIN_RETOLD = 4
"""So many lines of a request must be a conversation's, and one part in so many of those that can be told."""
_MIN_LINE_CHARS = 12
_MAX_TAIL_LINES = 256
_BYTES = 600
_BYTES_PER_MARK = 160
"""Of the hashes under which a conversation is listed by what it begins with, or was answered: see `beginnings.py`."""
_BYTES_PER_UNIT = 16
_BYTES_PER_LINE = 80


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`tools` is None where nobody knows them. `num_opening` units go up to the model's first words, 0 without any.

    The model wrote `num_spoken_chars` of the `num_chars` characters. `last_lines` are the lines of the last unit.
    `answer` are the units of the answer that was given to the request. `said` is the hash that it has as another's
    words: see `summaries.py`. `ours` is a unit of the first answer of this server that stands in the request, 0 without
    one. Other answers may be words that a client put into the model's mouth. `sketch` are hashes of lines behind the
    opening, the smallest ones.
    """

    system: SystemText
    tools: int | None
    digests: array[int]
    chain: array[int]
    num_chars: int
    num_spoken_chars: int = 0
    num_opening: int = 0
    last_lines: frozenset[int] = frozenset()
    answer: frozenset[int] = frozenset()
    sketch: tuple[int, ...] = ()
    said: int = 0
    ours: int = 0

    @property
    def num_bytes(self) -> int:
        """Host memory, roughly."""
        return (
            _BYTES
            + _BYTES_PER_UNIT * len(self.digests)
            + _BYTES_PER_MARK * (2 + len(self.digests).bit_length())
            + _BYTES_PER_UNIT * len(self.sketch)
            + _BYTES_PER_LINE * len(self.last_lines)
            + (_BYTES_PER_LINE + _BYTES_PER_MARK) * len(self.answer)
            + 2 * _BYTES_PER_MARK * (self.said != 0)
            + self.system.num_bytes
        )

    @property
    def is_empty(self) -> bool:
        return not self.digests


def fingerprint_of(
    prompt: PromptUnits, before: Fingerprint | None = None, *, ours: int = 0, knows_tools: bool = True
) -> Fingerprint:
    """What is remembered of a request. Of what was known `before` no text is read again.

    `ours` is known where that does not show it.
    """
    lines = prompt.texts[-1].splitlines()[:_MAX_TAIL_LINES] if prompt.texts else ()
    return Fingerprint(
        prompt.system,
        prompt.tools if knows_tools else None,
        array("q", prompt.digests),
        array("q", prompt.chain),
        prompt.num_chars,
        prompt.num_spoken_chars,
        prompt.answers.index(True) + 1 if not prompt.begins else 0,
        frozenset(map(hash, lines)),
        sketch=_sketch(prompt, before),
        ours=_ours(prompt, before) or ours,
    )


def _ours(prompt: PromptUnits, before: Fingerprint | None) -> int:
    """A unit of a request that was an answer to what was known before."""
    if before is None:
        return 0
    if before.ours in prompt.weights:
        return before.ours
    return unit_of(before.answer) if before.answer <= prompt.weights.keys() else 0


def unit_of(answer: Collection[int]) -> int:
    """The unit that stands for an answer, 0 for an empty one."""
    return min(answer, default=0)


def with_answer(conversation: Fingerprint, message: object) -> Fingerprint:
    """The same, when its request was answered with this message."""
    return replace(conversation, answer=frozenset(read_units(message)), said=_said(message))


def _said(message: object) -> int:
    """The hash that an answer has as another's words. 0 for a short one, and for one that is more than one text."""
    if not isinstance(message, Mapping) or message.get("tool_calls"):
        return 0
    reader = UnitReader()
    reader.read_content(message.get("content"), False)
    if len(reader.units) != 1:
        return 0
    _, _, digest, num_chars = reader.units[0]
    return digest if num_chars >= MIN_SHARED_CHARS else 0


def _sketch(prompt: PromptUnits, before: Fingerprint | None) -> tuple[int, ...]:
    """The smallest hashes of lines behind the opening. Where most is known, lines that are gone may stay among them."""
    if prompt.begins:
        return ()
    start = prompt.answers.index(True)
    texts = prompt.texts[start:]
    if before is not None and before.sketch:
        num_known = len(before.digests)
        if num_leading(before, prompt) == num_known:
            new = prompt.texts[num_known:]
        else:
            is_known = map(frozenset(before.digests).__contains__, prompt.digests[start:])
            new = tuple(compress(texts, map(not_, is_known)))
        if 2 * len(new) < len(texts):
            return _with_lines(before.sketch, new)
    return tuple(nsmallest(NUM_SKETCHED, set(_lines(texts))))


def _with_lines(sketch: tuple[int, ...], texts: Iterable[str]) -> tuple[int, ...]:
    """A sketch, and the lines of a few texts more. A full one has room for smaller hashes only."""
    most = sketch[-1] if len(sketch) == NUM_SKETCHED else None
    more = {line for line in _lines(texts) if most is None or line < most}
    return tuple(sorted(more.union(sketch))[:NUM_SKETCHED]) if more else sketch


def _lines(texts: Iterable[str]) -> Iterator[int]:
    """Hashes of the lines of texts, without white space at their ends, all but the short ones."""
    for text in texts:
        for line in map(str.strip, text.splitlines()):
            if len(line) >= _MIN_LINE_CHARS:
                yield hash(line)


def retells(conversation: Fingerprint, prompt: PromptUnits) -> bool:
    """Whether a first request holds much of a conversation in its own text. See the module."""
    if not conversation.sketch or not prompt.begins:
        return False
    known = conversation.sketch
    comparable = {line for line in _lines(prompt.texts) if len(known) < NUM_SKETCHED or line <= known[-1]}
    found = len(comparable.intersection(known))
    return found >= MIN_RETOLD and found * MIN_RETOLD >= len(comparable)


@dataclass(frozen=True, slots=True)
class HistoryLikeness:
    """What the messages of a request have in common with a conversation.

    `num_leading` units at the beginning of both are the same, `num_shared` characters stand in both, wherever, the
    answer that was given among them. `is_answered`: the request has that answer. `shared` are the units in both, where
    `num_compared` were looked at one by one.
    """

    num_leading: int
    num_shared: int
    continues: bool
    is_answered: bool
    num_compared: int
    shared: Set[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Likeness:
    """The same with what stands around the messages. `same_tools` is None where the tools of one are not known."""

    history: HistoryLikeness
    same_system: bool
    same_tools: bool | None


def compare(conversation: Fingerprint, prompt: PromptUnits) -> Likeness:
    """Compare a request with a conversation."""
    tools = None if conversation.tools is None else conversation.tools == prompt.tools
    return Likeness(compare_history(conversation, prompt), conversation.system.is_like(prompt.system), tools)


def compare_history(conversation: Fingerprint, prompt: PromptUnits) -> HistoryLikeness:
    """Compare the messages only. The work is bounded by the units of the conversation, and done once for a request."""
    held = prompt.compared.get(id(conversation))
    if held is None or held[0] is not conversation:
        held = prompt.compared[id(conversation)] = conversation, _compare_history(conversation, prompt)
    likeness: HistoryLikeness = held[1]
    return likeness


def _compare_history(conversation: Fingerprint, prompt: PromptUnits) -> HistoryLikeness:
    num_units = len(conversation.digests)
    num_same = num_leading(conversation, prompt)
    num_compared, shared = 0, set[int]()
    if num_same == num_units:
        num_shared, continues = conversation.num_chars, num_units > 0
    else:
        weights = prompt.weights
        shared = set(conversation.digests).intersection(weights)
        num_shared, num_compared = sum(map(weights.__getitem__, shared)), num_units
        continues = _continues(conversation, prompt)
    is_answered = bool(conversation.answer) and conversation.answer <= prompt.weights.keys()
    num_shared += sum(map(prompt.weights.__getitem__, conversation.answer)) if is_answered else 0
    return HistoryLikeness(num_same, num_shared, continues, is_answered, num_compared, shared)


def num_leading(conversation: Fingerprint, prompt: PromptUnits) -> int:
    """Units of the common beginning. A chain that differs once differs from there on."""
    mine, yours = conversation.chain, prompt.chain
    num_both = min(len(mine), len(yours))
    if num_both and mine[num_both - 1] == yours[num_both - 1]:
        return num_both
    return bisect_left(range(num_both), True, key=lambda number: mine[number] != yours[number])


def _continues(conversation: Fingerprint, prompt: PromptUnits) -> bool:
    tail = conversation.digests[-TAIL:]
    if not tail:
        return False
    found = sum(digest in prompt.weights for digest in tail)
    if found < min(2, len(tail) - 1):
        return False
    if tail[-1] in prompt.weights:
        return found >= min(2, len(tail))
    return any(_is_respelled(conversation.last_lines, text) for text in prompt.texts[-2 * TAIL :])


def _is_respelled(lines: frozenset[int], text: str) -> bool:
    """Whether all lines of one text stand in the other."""
    if len(text) < MIN_RESPELLED_CHARS or not lines:
        return False
    others = set(map(hash, text.splitlines()))
    return others <= lines or lines <= others
