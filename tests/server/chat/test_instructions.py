"""Instructions inside a conversation: in place where the template allows it, with a mark where it does not."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from acmserve.server.chat.instructions import place_instructions
from acmserve.server.models.message_roles import MessageRoles, probe_roles

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
