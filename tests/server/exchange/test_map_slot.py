"""The slot of a context map: the same length whatever the map says, at the same place, and nothing else is touched."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from acmserve.errors import InvalidRequest
from acmserve.server.exchange.map_slot import ALIGNMENT, MapSlots, Slot

TEMPLATE = (files("acmserve.models") / "chatml_tools.jinja").read_text()
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2_folder)


@pytest.fixture(scope="module")
def slots(tokenizer: Any) -> MapSlots:
    return MapSlots(tokenizer)


def rendered(tokenizer: Any, slots: MapSlots, before: str, budget: int, tools: Any = None) -> list[int]:
    """A prompt with a placeholder in its system message, as the chat template writes it."""
    messages = [
        {"role": "system", "content": f"{before}\n\nMap:\n{slots.placeholder(budget)}\n"},
        {"role": "user", "content": "How many records are there?"},
    ]
    text = tokenizer.apply_chat_template(
        messages, chat_template=TEMPLATE, tools=tools, tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
def test_the_text_stands_in_the_slot_and_everything_else_as_it_was(tokenizer: Any, slots: MapSlots, tools: Any) -> None:
    prompt = rendered(tokenizer, slots, "You help.", 64, tools)
    filled = slots.fill(prompt, "## MAP\n[cr-00001] 388 records", 64)
    text = tokenizer.decode(filled)
    assert len(filled) < len(prompt)
    assert "Slot" not in text
    assert text.replace("\n", "") == tokenizer.decode(prompt).replace(slots.placeholder(64), "").replace(
        "\n", ""
    ).replace("Map:", "Map:## MAP[cr-00001] 388 records")


@settings(max_examples=60, deadline=None)
@given(
    before=st.text(alphabet="ab .\n\u00e9\U0001f600<|>", max_size=40),
    old=st.text(alphabet="cd .\n#[]-\u00e9\U0001f600", max_size=60),
    new=st.text(alphabet="cd .\n#[]-\u00e9\U0001f600", max_size=60),
)
def test_an_update_changes_tokens_inside_the_slot_only(
    tokenizer: Any, slots: MapSlots, before: str, old: str, new: str
) -> None:
    prompt = rendered(tokenizer, slots, before, 200)
    first, second = slots.fill(prompt, old, 200), slots.fill(prompt, new, 200)
    assert len(first) == len(second)
    different = [index for index, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    start = len(first) - len(prompt) + _end_of_slot(tokenizer, prompt, slots) - 200
    assert start % ALIGNMENT == 0
    assert all(start <= index < start + 200 for index in different)
    assert tokenizer.decode(first[start : start + 200]).rstrip("\n") == old.rstrip("\n")


def _end_of_slot(tokenizer: Any, prompt: list[int], slots: MapSlots) -> int:
    """Tokens up to the end of the placeholder."""
    name = slots.placeholder(1).rpartition(" ")[2]
    text = tokenizer.decode(prompt)
    behind = text[text.index(name) + len(name) :]
    return len(prompt) - len(tokenizer.encode(behind, add_special_tokens=False))


def test_a_text_longer_than_its_budget_is_cut(tokenizer: Any, slots: MapSlots) -> None:
    prompt = rendered(tokenizer, slots, "You help.", 64)
    assert len(slots.fill(prompt, "word " * 500, 64)) == len(slots.fill(prompt, "", 64))


def test_a_client_that_writes_a_placeholder_of_another_process_gets_no_slot(tokenizer: Any, slots: MapSlots) -> None:
    prompt = rendered(tokenizer, MapSlots(tokenizer), "You help.", 64)
    with pytest.raises(InvalidRequest, match="chat template changes the system message") as refused:
        Slot(slots, "map", 64).fill(prompt)
    assert refused.value.field == "acm.map.placement"
    assert "tail" in refused.value.remedy


def test_a_tokenizer_without_single_tokens_is_refused_by_name() -> None:
    class Bytes:
        all_special_ids: tuple[int, ...] = ()

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [*text.encode(), 0]

        def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
            return json.dumps(token_ids)

    with pytest.raises(InvalidRequest, match="tokenizer of this model"):
        MapSlots(Bytes()).placeholder(64)  # type: ignore[arg-type]
