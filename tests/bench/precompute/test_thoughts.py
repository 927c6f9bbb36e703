"""What `bench precompute --chains` sends, and its table, without a server."""

from __future__ import annotations

from typing import Any

import jinja2

from acmserve.bench.agent.result_table import told_by
from acmserve.bench.harness.options import as_gate
from acmserve.bench.precompute.thoughts import (
    NUM_STEPS,
    RESULT_TOKENS,
    THOUGHT_TOKENS,
    THOUGHTS_TABLE,
    dropping_template,
    make_chain,
)


class Characters:
    """A token is a character."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(map(ord, text))

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))


def rendered(messages: list[dict[str, Any]]) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(dropping_template()).render(messages=messages, add_generation_prompt=True)


def test_the_template_drops_the_thoughts_when_the_user_speaks() -> None:
    chain: list[dict[str, Any]] = [dict(message) for message in make_chain(0, Characters(), NUM_STEPS)]
    assert len(chain) == 1 + 2 * NUM_STEPS
    before = rendered(chain)
    after = rendered([*chain, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "And now?"}])
    assert before.count("</think>") == NUM_STEPS
    assert "</think>" not in after
    assert after.count("<tool_response>") == NUM_STEPS
    assert len(before) - len(after) > NUM_STEPS * THOUGHT_TOKENS - 2 * RESULT_TOKENS


def test_chains_have_texts_of_their_own() -> None:
    one, other = (make_chain(number, Characters(), NUM_STEPS) for number in (0, 1))
    assert not {str(message) for message in one} & {str(message) for message in other}


def test_the_table_says_how_many_appends_it_was() -> None:
    way = {"name": "exact", "median_seconds": 0.5, "median_append_seconds": 0.4, "appends": 1.25, "median_tokens": {}}
    report = {"gate": as_gate([]), "sizes": "some", "num_chains": 3, "ways": [way]}
    assert any("1.25" in line for line in told_by(THOUGHTS_TABLE)(report))
    red = report | {"gate": as_gate(["exact: its answers are not those of stock"])}
    assert not any("1.25" in line for line in told_by(THOUGHTS_TABLE)(red))
