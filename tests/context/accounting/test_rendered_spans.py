"""What a template makes of each message: dropped parts weigh nothing, and what it writes around them is counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from acmserve.context.accounting.known_prompt import Counted, KnownPrompt
from acmserve.context.accounting.rendered_spans import read_sizes
from acmserve.context.eviction.budget_json import parse_budget
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.eviction.plan import Protected
from acmserve.context.eviction.protected import largest_first, protected_tokens
from acmserve.context.session.history import adopt
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.media import MediaTokens, media_keys, without_media
from acmserve.context.transcript.message import Message
from tests.support.context.annotated import Story
from tests.support.context.conversation import KEY
from tests.support.templates.fixtures import NAMES, TemplateRenderer, counter

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png?w=300"}}
CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": '{"at": "the sea", "n": 3}'}}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Look at the sea and count the gulls there."},
    {"role": "assistant", "content": "", "reasoning": "The sea is wide and I think long. " * 9, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call00001", "content": 'Seven "gulls",\nand one "tern".\n' * 8},
    {"role": "assistant", "content": "There are seven gulls and a tern."},
    {"role": "user", "content": "Are you sure?"},
]


class Words:
    """A token is a character: no seams."""

    def starts(self, text: str) -> Sequence[int]:
        return range(len(text))


def size_of(text: str) -> int:
    return len(text)


class CharacterRenderer(TemplateRenderer):
    """Counts the characters of a template's text."""

    def num_tokens(self, messages: Sequence[Message]) -> int | None:
        text = self.written(messages)
        return None if text is None else len(text)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gemma"])
def test_spans_and_what_is_no_messages_make_up_the_prompt(name: str) -> None:
    """Characters have no seams. So the parts must be the prompt to the character, but for trimmed blanks."""
    renderer = CharacterRenderer(name)
    sizes = read_sizes(TALK, renderer, size_of)
    assert sizes is not None
    whole = renderer.num_tokens(TALK)
    assert whole is not None
    empty = renderer.num_tokens([{"role": "user", "content": "x"}])
    assert empty is not None
    rest = whole - sum(size.total for size in sizes)
    assert 0 <= rest <= empty, (rest, empty)
    is_escaped = name in ("llama3", "gpt_oss")
    result = sizes[2].text
    assert (result > len(TALK[2]["content"])) == is_escaped
    assert len(sizes[1].calls) == 1
    assert sizes[1].calls[0] >= len("the sea")


@pytest.mark.parametrize(("name", "until_user", "after_user"), [("qwen3", True, False), ("deepseek", False, False)])
def test_reasoning_weighs_what_the_template_shows_of_it(name: str, until_user: bool, after_user: bool) -> None:
    renderer = TemplateRenderer(name)
    chain = read_sizes(TALK[:3], renderer, counter().count)
    whole = read_sizes(TALK, renderer, counter().count)
    assert chain is not None
    assert whole is not None
    assert (chain[1].reasoning > 0, whole[1].reasoning > 0) == (until_user, after_user)


class Forger(CharacterRenderer):
    """Its tools quote marks of their author, once a rendering was seen that of its first text, too."""

    def __init__(self, forged: str, *, knows_last: bool = False) -> None:
        super().__init__("qwen3")
        self.forged, self.knows_last, self.seen = forged, knows_last, list[str]()

    def written(self, messages: Sequence[Message]) -> str | None:
        told = self.forged * 1000 + (str(self.seen[-1]) * 1000 if self.knows_last and self.seen else "")
        self.seen.append(messages[0]["content"])
        written = super().written(messages)
        return None if written is None else told + written


@pytest.mark.parametrize("forged", ['acm7q0q\\"', 'acm7q0q"', "acm7q" + "9" * 5000 + "q"])
def test_a_text_that_looks_like_marks_is_text(forged: str) -> None:
    """Each such mark in a tool's description cost a count of the whole first message. Long numbers were a 500."""
    counts = list[str]()

    def count(text: str) -> int:
        counts.append(text)
        return len(text)

    honest = read_sizes(TALK, CharacterRenderer("qwen3"), count)
    num_honest = len(counts)
    forger = Forger(forged, knows_last=True)
    assert [read_sizes(TALK, forger, count) for _ in range(2)] == [honest, honest]
    assert len(counts) == 3 * num_honest
    assert len(set(forger.seen)) == 2, "a mark that was seen is of no use in the next rendering"


def test_a_text_that_a_template_shows_often_is_counted_once_and_weighs_each_time() -> None:
    class Repeats(CharacterRenderer):
        def written(self, messages: Sequence[Message]) -> str | None:
            return f"{messages[0]['content']}," * 100

    counts = list[str]()
    sizes = read_sizes(TALK[:1], Repeats("qwen3"), lambda text: counts.append(text) or len(text))
    assert sizes is not None
    assert sizes[0].text == 100 * len(TALK[0]["content"])
    assert sorted(counts) == [",", TALK[0]["content"]]


def test_a_template_that_refuses_says_nothing_of_spans() -> None:
    assert read_sizes([*TALK[:1], *TALK[:1]], TemplateRenderer("mistral"), len) is None


def test_a_prompt_that_drops_reasoning_is_no_400_and_nothing_protected_is_below_zero() -> None:
    """`400 protected: must not be negative, but is -678`: the parts had more tokens than the prompt that was served."""
    meter = ContextMeter(Words())
    history = Story().expl("find", ("grep", "found it"), reasoning="I think . " * 99).user().messages
    meter.follow(adopt(SessionState(digest_key=KEY), history).state)
    counted = meter.counted()
    meter.calibrate(counted, counted.num_tokens - 2000)
    assert meter.token_counts.base_tokens < -1900
    budget = parse_budget({"max_tokens": 100, "policy": "cwl"}, 1000, "budget")
    measured = meter.measure(budget, 1000.0, None)
    assert measured.protected == 0
    meter.plan(budget, measured)
    left = protected_tokens(meter.view, 300)
    assert sum(item.num_tokens for item in left) == 300
    assert all(item.num_tokens > 0 for item in left)


def test_what_is_protected_adds_up_and_is_never_negative() -> None:
    found = [Protected("a", 70), Protected("b", 50), Protected("c", -40)]
    left = largest_first(found, 80)
    assert sum(item.num_tokens for item in left) == 80
    assert min(item.num_tokens for item in left) > 0
    assert largest_first(found, -5) == ()


def test_media_weigh_what_served_prompts_have_shown() -> None:
    media, message = MediaTokens(), {"role": "user", "content": [{"type": "text", "text": "See."}, IMAGE]}
    keys = media_keys(message)
    assert without_media(message)["content"] == [{"type": "text", "text": "See."}]
    assert (media.weight(keys), media.num_unknown(keys)) == (0, 1)
    assert media.learn(keys, 300)
    assert (media.weight(keys), media.num_unknown(keys)) == (300, 0)
    assert not media.learn(keys, 999)
    other = media_keys({"content": [{**IMAGE, "image_url": {"url": "b"}}, IMAGE]})
    assert media.weight(other) == 600
    assert media.learn(other, 350)
    assert media.weight(other) == 350


def test_a_known_prompt_holds_until_something_else_than_an_append_happens() -> None:
    known = KnownPrompt()
    assert known.before(3) is None
    known.last = Counted(100, 3, known.version, 100)
    assert known.rendered(3) is known.last
    assert (known.rendered(4), known.before(4), known.before(2)) == (None, 3, None)
    known.serve(known.last, 110, is_guess=False)
    assert known.drift == 10
    assert known.margin(100, 1) > 100 * 0.25
    assert known.rendered(3) is None
    known.change()
    assert known.before(4) is None
