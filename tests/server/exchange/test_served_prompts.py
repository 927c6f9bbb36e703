"""Outputs come back as the tokens that were sampled, and each message's KV is described."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from acmserve.context.storage.session import Bound
from acmserve.server.exchange.served_prompts import ServedContext, ServedContexts
from acmserve.server.models.tokenizer import ServedTokenizer

TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
ROOM = 10_000


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2_folder)


def letters(tokenizer: Any, text: str) -> list[int]:
    """The text in tokens of one character each, as no tokenizer would choose them."""
    ids = [tokenizer.encode(letter)[0] for letter in text]
    assert tokenizer.decode(ids) == text
    assert ids != tokenizer.encode(text)
    return ids


def receipt(kept: int, moves: list[tuple[int, int, int]], fidelity: str = "reuse") -> dict[str, Any]:
    keys = ("dst_start", "src_start", "num_tokens")
    return {"fidelity": fidelity, "kept_tokens": kept, "moves": [dict(zip(keys, m, strict=True)) for m in moves]}


def test_an_output_comes_back_in_its_own_tokens(tokenizer: Any) -> None:
    context = ServedContext(tokenizer)
    sampled = letters(tokenizer, "the harbour master")
    context.remember_output("the harbour master", [*sampled, tokenizer.eos_token_id])
    prompt = tokenizer.encode(TEMPLATE.format("Who?") + "the harbour master<|im_end|>\n")
    spliced = context.splice(prompt, ROOM)
    assert tokenizer.decode(spliced) == tokenizer.decode(prompt)
    start = len(tokenizer.encode(TEMPLATE.format("Who?")))
    assert spliced[start : start + len(sampled)] == sampled
    assert context.splice(spliced, ROOM) == spliced


def test_an_output_that_the_template_rewrites_is_left_to_the_tokenizer(tokenizer: Any) -> None:
    context = ServedContext(tokenizer)
    context.remember_output("the harbour master", letters(tokenizer, "the harbour master"))
    prompt = tokenizer.encode(TEMPLATE.format("Who?") + "THE HARBOUR MASTER<|im_end|>\n")
    assert context.splice(prompt, ROOM) == prompt


def test_a_prompt_without_room_stays(tokenizer: Any) -> None:
    context = ServedContext(tokenizer)
    context.remember_output("the harbour master", letters(tokenizer, "the harbour master"))
    prompt = tokenizer.encode("the harbour master")
    assert context.splice(prompt, len(prompt)) == prompt
    assert context.splice(prompt, 100) != prompt


def test_ordinary_outputs_need_no_memory(tokenizer: Any) -> None:
    context = ServedContext(tokenizer)
    context.remember_output("the harbour master", tokenizer.encode("the harbour master"))
    context.remember_output("", [tokenizer.eos_token_id])
    context.remember_output("other text", letters(tokenizer, "the harbour master"))
    prompt = tokenizer.encode("the harbour master, other text")
    assert context.splice(prompt, ROOM) == prompt


@pytest.mark.parametrize(
    ("chosen", "num_stale"), [("exact", 0), ("reuse", 60), ("repair", 60)], ids=["exact", "reuse", "repair"]
)
def test_under_auto_what_was_chosen_says_what_is_stale(tokenizer: Any, chosen: str, num_stale: int) -> None:
    """A prefix with moved KV is kept, but where the engine chose to compute it anew."""
    context = ServedContext(tokenizer)
    context.record([], range(100), receipt(40, [(40, 90, 60)], "reuse"))
    assert context.num_stale == 60
    context.record([], range(100), receipt(100, [], "auto") | {"chosen": chosen})
    assert context.num_stale == num_stale


def test_kv_of_messages_is_kept_moved_or_gone(tokenizer: Any) -> None:
    context = ServedContext(tokenizer)
    counter = ServedTokenizer(tokenizer)
    messages = [{"role": "user", "content": f"Message number {n} about harbours"} for n in range(3)]
    assert context.describe_kv(messages, counter) == ["gone"] * 3
    prompt = tokenizer.encode("".join(TEMPLATE.format(m["content"]) for m in messages))
    third = len(tokenizer.encode("".join(TEMPLATE.format(m["content"]) for m in messages[:2])))
    context.record(messages, prompt, receipt(third, [(third, third + 50, len(prompt) - third)]))
    assert context.describe_kv(messages, counter) == ["kept", "kept", "moved"]
    new = {"role": "user", "content": "New"}
    assert context.describe_kv([*messages, new], counter) == ["kept", "kept", "moved", "gone"]
    assert context.describe_kv([messages[0], new, messages[2]], counter) == ["kept", "gone", "moved"]
    context.record(messages, prompt, receipt(len(prompt) - 1, []))
    assert context.describe_kv(messages, counter) == ["kept", "kept", "moved"], "what was moved stays moved"
    context.record(messages, prompt, receipt(len(prompt) - 1, [], "exact"))
    assert context.describe_kv(messages, counter) == ["kept"] * 3
    assert context.describe_kv([messages[0], new, messages[2]], counter) == ["kept", "gone", "gone"]
    context.record(messages, prompt, receipt(len(prompt) - 1, [], "exact"), "It is.")
    answer = {"role": "assistant", "content": "It is."}
    assert context.describe_kv([*messages, answer, new], counter) == ["kept"] * 4 + ["gone"]
    assert context.describe_kv([messages[0], answer], counter) == ["kept", "gone"]


def test_a_prompt_is_looked_into_once_and_what_was_found_counts(tokenizer: Any) -> None:
    class Counting(ServedTokenizer):
        num_asked = 0

        def starts(self, text: str) -> Any:
            self.num_asked += 1
            return super().starts(text)

    context, counter = ServedContext(tokenizer), Counting(tokenizer)
    messages = [{"role": "user", "content": "The port is 8000."}]
    context.record(messages, tokenizer.encode("The port is 8000."), receipt(0, []))
    before = context.num_bytes
    assert context.describe_kv(messages, counter) == context.describe_kv(messages, counter) == ["kept"]
    assert counter.num_asked == 1
    assert context.num_bytes > before
    context.record(messages, tokenizer.encode("The port is 8000."), receipt(0, []))
    context.describe_kv(messages, counter)
    assert counter.num_asked == 2, "a new prompt is looked into anew"


def test_sessions_of_two_tenants_are_two(tokenizer: Any) -> None:
    contexts = ServedContexts(tokenizer)
    assert contexts.of("a", "s") is contexts.of("a", "s")
    assert contexts.of("a", "s") is not contexts.of("b", "s")
    before = contexts.of("a", "s")
    contexts.drop("a", "s")
    assert contexts.of("a", "s") is not before


def test_what_was_served_is_bounded_and_shared_fairly(tokenizer: Any) -> None:
    """One key that fills the memory pushes out its own. A prompt of 128K tokens takes half a MiB, not five."""
    contexts, prompt = ServedContexts(tokenizer, Bound(100, 4 * 2**20)), list(range(131_072))
    contexts.of("a", "mine").record([], prompt, receipt(0, []))
    assert contexts.num_bytes < 2**20
    for number in range(50):
        contexts.of("b", f"s{number}").record([], prompt, receipt(0, []))
    assert contexts.of("a", "mine").num_served == len(prompt)
    assert contexts.of("b", "s49").num_served == len(prompt)
    assert contexts.of("b", "s0").num_served == 0
    assert contexts.num_bytes <= 4 * 2**20


def test_a_context_that_grows_counts(tokenizer: Any) -> None:
    contexts = ServedContexts(tokenizer, Bound(100, 2 * 2**20))
    for number in range(10):
        contexts.of("a", f"s{number}")
    for number in range(10):
        contexts.of("a", f"s{number}").record([], list(range(131_072)), receipt(0, []))
    contexts.of("a", "s9")
    assert contexts.num_bytes <= 2 * 2**20
    assert contexts.of("a", "s9").num_served == 131_072


def test_token_starts_of_the_served_tokenizer_are_its_own(tokenizer: Any) -> None:
    counter = ServedTokenizer(tokenizer)
    text = "Ein Größenvergleich, 3 Zeilen\n\nzweite 🙂 Zeile\nEnde"
    starts = counter.starts(text)
    assert len(starts) == len(tokenizer.encode(text))
    assert list(starts) == sorted(starts)
    assert starts[0] == 0


def test_a_tokenizer_without_offsets_is_counted_by_lines(tokenizer: Any) -> None:
    class Slow:
        encode = staticmethod(tokenizer.encode)

    text = "first line here\nsecond line\n\nlast"
    starts = ServedTokenizer(Slow()).starts(text)
    assert len(starts) == sum(len(tokenizer.encode(line)) for line in text.splitlines(keepends=True))
    assert text.index("second") in list(starts)
