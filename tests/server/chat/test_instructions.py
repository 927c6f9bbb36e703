"""Instructions inside a conversation: in place where the template allows it, with a mark where it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from acmserve.context.transcript.message import Message
from acmserve.server.chat import instructions
from acmserve.server.chat.instructions import place_instructions
from acmserve.server.models.message_roles import MessageRoles, probe_roles
from tests.support.operations import growth

NOWHERE, INLINE, BOTH = MessageRoles(), MessageRoles(inline_system=True), MessageRoles(True, True)
CHATML = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
GUARDED = (
    "{% for m in messages %}{% if m['role'] == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
    "<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
)
HOISTING = (
    "{% for m in messages if m['role'] == 'system' %}{{ m['content'] }}\n{% endfor %}"
    "{% for m in messages if m['role'] != 'system' %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
)
DROPPING = "{% for m in messages if m['role'] in ['user', 'assistant'] or loop.first %}{{ m['content'] }}{% endfor %}"
KNOWING = "{% set d = 'developer' %}" + CHATML


def roles_of(template: str) -> MessageRoles:
    def write(messages: list[dict[str, Any]]) -> str:
        def raise_exception(message: str) -> None:
            raise ValueError(message)

        environment = ImmutableSandboxedEnvironment()
        environment.globals["raise_exception"] = raise_exception
        return environment.from_string(template).render(messages=messages)

    return probe_roles(write, template)


@pytest.mark.parametrize(
    ("template", "expected"),
    [(CHATML, INLINE), (GUARDED, NOWHERE), (HOISTING, NOWHERE), (DROPPING, NOWHERE), (KNOWING, BOTH)],
    ids=["chatml", "guarded", "hoisting", "dropping", "developer"],
)
def test_a_template_is_asked_by_rendering(template: str, expected: MessageRoles) -> None:
    assert roles_of(template) == expected


def chat(*messages: str) -> list[dict[str, Any]]:
    """`"system A"` is a message of the system that says A."""
    return [{"role": role, "content": text} for role, _, text in (message.partition(" ") for message in messages)]


def mark(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


def test_leading_instructions_are_one_message() -> None:
    placed = place_instructions(chat("system A", "developer B", "user C"), INLINE)
    assert placed == chat("system A\n\nB", "user C")
    assert place_instructions(chat("system A", "developer B", "user C"), BOTH) == chat(
        "system A", "developer B", "user C"
    )


def test_a_late_instruction_stays_where_the_template_allows_it() -> None:
    talk = chat("system A", "user C", "assistant D", "system X", "user E", "developer Y")
    assert place_instructions(talk, INLINE) == [*talk[:5], {"role": "system", "content": "Y"}]
    assert place_instructions(talk, BOTH) == talk


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (("user C", "system X", "assistant D"), (f"user C\n\n{mark('X')}", "assistant D")),
        (("user C", "assistant D", "system X", "user E"), ("user C", "assistant D", f"user {mark('X')}\n\nE")),
        (("user C", "assistant D", "system X"), ("user C", "assistant D", f"user {mark('X')}")),
        (
            ("user C", "assistant D", "system X", "assistant E"),
            ("user C", "assistant D", f"user {mark('X')}", "assistant E"),
        ),
        (("user C", "assistant D", "tool R", "system X"), ("user C", "assistant D", "tool R", f"user {mark('X')}")),
        (("user C", "assistant D", "system X", "tool R"), ("user C", "assistant D", "tool R", f"user {mark('X')}")),
        (("user C", "system X", "system Y"), (f"user C\n\n{mark('X')}\n\n{mark('Y')}",)),
    ],
)
def test_elsewhere_it_is_said_by_the_user(sent: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert place_instructions(chat("system A", *sent), NOWHERE) == chat("system A", *expected)


def test_parts_stay_parts() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:x"}}
    talk = [{"role": "user", "content": [image]}, {"role": "system", "content": [{"type": "text", "text": "X"}]}]
    [placed] = place_instructions(talk, NOWHERE)
    assert placed["content"] == [image, {"type": "text", "text": mark("X")}]


def test_what_goes_on_has_no_lead() -> None:
    assert place_instructions(chat("system X", "user C"), INLINE, begins=False) == chat("system X", "user C")
    assert place_instructions(chat("system X", "user C"), NOWHERE, begins=False) == chat(f"user {mark('X')}\n\nC")


def test_a_conversation_that_grows_keeps_its_beginning() -> None:
    talk = chat("system A", "user C", "system X", "assistant D", "user E", "system Y", "assistant F", "user G")
    for roles in (NOWHERE, INLINE, BOTH):
        whole = place_instructions(talk, roles)
        for end in (3, 6, 8):
            assert place_instructions(talk[:end], roles) == whole[: len(place_instructions(talk[:end], roles))]


def one_by_one(messages: list[Message], roles: MessageRoles) -> list[Message]:
    """The rule as it was first written: each late instruction joins the user's message in front of it at once."""
    late = next((n for n, message in enumerate(messages) if message["role"] not in ("system", "developer")), None)
    placed = place_instructions(messages[:late], roles)
    pending: list[Message] = []
    for message in messages[len(messages) if late is None else late :]:
        role = message["role"]
        if (role == "developer" and roles.developer) or (role in ("system", "developer") and roles.inline_system):
            placed.append(message if roles.developer and role == "developer" else {**message, "role": "system"})
        elif role in ("system", "developer"):
            told: list[Message] = [{"role": "user", "content": mark(message["content"])}]
            pending = [] if placed and placed[-1]["role"] == "user" else [*pending, *told]
            placed = placed if pending else [*placed[:-1], as_one([placed[-1], *told])]
        elif role == "tool" or not pending:
            placed.append(message)
        else:
            placed += [as_one([*pending, message])] if role == "user" else [as_one(pending), message]
            pending = []
    return [*placed, as_one(pending)] if pending else placed


def as_one(told: list[Message]) -> Message:
    """Messages of the user as one. Where one has parts, all have."""
    contents = [message["content"] for message in told]
    if not any(isinstance(content, list) for content in contents):
        return {"role": "user", "content": "\n\n".join(content for content in contents if content)}
    lists = [text if isinstance(text, list) else [{"type": "text", "text": text}] for text in contents]
    return {"role": "user", "content": [part for parts in lists for part in parts]}


MESSAGES = st.sampled_from(
    [
        *chat("system X", "system Y", "developer Z", "user C", "user D", "user ", "assistant E", "tool R"),
        {"role": "user", "content": [{"type": "text", "text": "P"}]},
    ]
)


@given(st.lists(MESSAGES, max_size=9), st.builds(MessageRoles, st.booleans(), st.booleans()))
def test_each_stands_where_the_rule_says(talk: list[Message], roles: MessageRoles) -> None:
    assert place_instructions(talk, roles) == one_by_one(talk, roles)


@pytest.mark.parametrize("content", ["C", [{"type": "text", "text": "C"}]])
def test_a_message_is_copied_once_for_all_that_joins_it(content: object, monkeypatch: pytest.MonkeyPatch) -> None:
    join, joined = instructions._joined, list[int]()

    def counted(message: Message, added: Sequence[str], *, behind: bool) -> dict[str, Any]:
        joined.append(len(added))
        return join(message, added, behind=behind)

    monkeypatch.setattr(instructions, "_joined", counted)
    talk = [{"role": "user", "content": content}, *chat(*["system X"] * 50, "assistant D", "user E", "developer Y")]
    place_instructions(talk, NOWHERE)
    assert joined == [50, 1]


@pytest.mark.parametrize("roles", [NOWHERE, INLINE, BOTH])
@pytest.mark.parametrize("first", ["developer", "user"])
def test_thousands_of_instructions_cost_each_as_much(first: str, roles: MessageRoles) -> None:
    def work(num: int) -> Callable[[], object]:
        talk = chat(f"{first} C", *(f"{('system', 'developer')[n % 2]} {n}" for n in range(num)))
        return lambda: place_instructions(talk, roles)

    assert growth(work, size=50) < 5.5
