"""Outputs come back as the tokens that were sampled, and each message's KV is described."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from acmserve.context.storage.session import Bound
from acmserve.errors import IntegrityError
from acmserve.server.exchange.scores import ScoredAnswer
from acmserve.server.exchange.served_prompts import ServedContext, ServedContexts
from acmserve.server.models.tokenizer import ServedTokenizer

TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
ROOM = 10_000
CHARS_PER_TOKEN = 2


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


class Pairs:
    """A tokenizer in which a text names both its own tokens and those that were sampled for it.

    One letter is no number. Beside tokens it stands in front of what they say, and behind it.
    """

    all_special_ids: tuple[int, ...] = ()
    letter, letter_id = "a", -1

    def __init__(self) -> None:
        self.texts: dict[tuple[int, ...], str] = {}

    def text(self, canonical: Sequence[int], sampled: Sequence[int]) -> str:
        said = ",".join(map(str, canonical))
        self.texts[tuple(sampled)] = said
        return said

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.letter_id if each == self.letter else int(each) for each in text.split(",") if each]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        ids = tuple(token_ids)
        begin, end = (self.letter if ids[place] == self.letter_id else "" for place in (0, -1))
        inner = tuple(token_id for token_id in ids if token_id != self.letter_id)
        said = self.texts.get(inner, ",".join(map(str, inner)))
        return begin + said + end if inner else begin


def remembered(outputs: Sequence[tuple[list[int], list[int]]]) -> ServedContext:
    pairs: Any = Pairs()
    context = ServedContext(pairs)
    for canonical, sampled in outputs:
        context.remember_output(pairs.text(canonical, sampled), sampled)
    return context


@contextmanager
def searches() -> Iterator[list[tuple[str, Any]]]:
    """Each search that runs meanwhile: the method's name, and the text that is searched."""
    made: list[tuple[str, Any]] = []

    def note(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in ("find", "rfind", "index", "rindex"):
            made.append((function.__name__, function.__self__))

    sys.setprofile(note)
    try:
        yield made
    finally:
        sys.setprofile(None)


IDS = (0, 1, 256, 257, 65_535, 65_536, 0xD800, 0x10000 + 0xD800, 0x110000, 2**31 - 1)
"""Tokens that look alike where their bytes are shifted, and those whose numbers are no characters."""


def naively_spliced(prompt: list[int], outputs: Sequence[tuple[list[int], list[int]]]) -> list[int]:
    newest: dict[tuple[int, ...], list[int]] = {}
    for canonical, sampled in outputs:
        newest.pop(tuple(canonical), None)
        newest[tuple(canonical)] = sampled
    for key, sampled in newest.items():
        starts = [at for at in range(len(prompt) - len(key) + 1) if tuple(prompt[at : at + len(key)]) == key]
        if starts:
            prompt = [*prompt[: starts[-1]], *sampled, *prompt[starts[-1] + len(key) :]]
    return prompt


def test_answers_come_back_as_a_naive_search_puts_them() -> None:
    """Also where answers overlap, repeat each other and meet within what another one became."""
    chance, num_changed = random.Random(5), 0
    for _ in range(1500):
        ids = chance.sample(IDS, chance.randint(1, 3))
        prompt = chance.choices(ids, k=chance.randint(0, 40))
        outputs: list[tuple[list[int], list[int]]] = []
        for number in range(chance.randint(1, 5)):
            canonical = chance.choices(ids, k=chance.randint(1, 5))
            outputs.append((canonical, [*canonical[: chance.randint(0, 4)], *chance.choices(ids, k=3), 7 + number]))
        expected = naively_spliced(prompt, outputs)
        context = remembered(outputs)
        assert context.splice(prompt, ROOM) == expected
        assert context.splice(prompt, len(prompt)) == (expected if len(expected) <= len(prompt) else prompt)
        num_changed += expected != prompt
    assert 300 < num_changed < 1400, "the control"


@pytest.mark.parametrize(
    ("prompt", "canonical"),
    [
        ([1] * 4_000, [256] * 500),
        ([0x0141] * 4_000, [0x0241, *[0x0141] * 2_000]),
        ([0x0141] * 2_000, [*[0x0141] * 600, 0x0241, *[0x0141] * 300]),
        ([5, 6] * 1_000, [5, 6] * 40),
        ([5] * 40_000, [5] * 39_000),
    ],
    ids=["between tokens", "by the low byte", "a short prompt", "a short answer", "nearly the prompt"],
)
def test_no_answer_makes_its_search_long(prompt: list[int], canonical: list[int]) -> None:
    """Each answer is one search, of the kind and in a text for which CPython has a linear algorithm.

    Whoever imports a session chooses its answers. Searched backwards, or in a short text, this took the product of both
    lengths. Answers found between two tokens were searched again from there, thousands of times.
    """
    context = remembered([(canonical, [*canonical, 9])])
    with searches() as made:
        context.splice(prompt, 10**6)
    assert [name for name, _ in made] == ["find"]
    ((_, text),) = made
    assert isinstance(text, str), "tokens are characters, so there is nothing between them"
    assert len(text) >= max(30_000, 4 * CHARS_PER_TOKEN * len(canonical))


def test_an_answer_longer_than_the_prompt_is_not_looked_for() -> None:
    with searches() as made:
        assert remembered([([5] * 300, [6])]).splice([5] * 299, ROOM) == [5] * 299
    assert made == []


def test_the_answers_of_a_session_are_bounded_in_tokens() -> None:
    """They were bounded in number alone, and an import may bring long ones."""
    outputs = [([number] * 150_000, [number] * 150_000 + [9]) for number in range(12)]
    context = remembered(outputs)
    assert context.num_bytes < 17 * 2**20
    kept = [tokens[0] for _, tokens in context.outputs()]
    assert kept == list(range(6, 12))[-len(kept) :] != [], "the newest ones"
    assert remembered([([1] * 2_000_000, [1] * 2_000_000 + [9]), ([3], [4])]).splice([3], ROOM) == [4]


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


def test_a_look_at_a_session_asks_no_other_one_for_its_size(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token of each stream is such a look: with a thousand sessions, streams waited for the sums."""
    contexts, asked = ServedContexts(tokenizer), Counter[str]()
    for number in range(200):
        contexts.of("a", f"s{number}").record([], [number] * 40, receipt(0, []))
    size = ServedContext.num_bytes
    monkeypatch.setattr(
        ServedContext,
        "num_bytes",
        property(lambda self: asked.update(["asked"]) or size.fget(self)),  # type: ignore
    )
    for _ in range(50):
        contexts.of("a", "s7")
    assert asked["asked"] <= 50
    contexts.check_integrity()
    assert asked["asked"] >= 200, "the control"


def test_the_running_sum_is_the_sum(tokenizer: Any) -> None:
    """Whatever happens to sessions, also to one that is gone and that somebody still writes into."""
    chance = random.Random(3)
    contexts, counter = ServedContexts(tokenizer, Bound(6, 2**16)), ServedTokenizer(tokenizer)
    messages = [{"role": "user", "content": "The port is 8000."}]
    gone: list[ServedContext] = []

    def record(context: ServedContext) -> None:
        prompt = [*tokenizer.encode("The port is 8000."), *range(chance.randrange(3000))]
        context.record(messages[: chance.randrange(2)], prompt, receipt(2, [(2, 5, 2)]), "so" * chance.randrange(9))

    def remember(context: ServedContext) -> None:
        text = chance.choice(["the harbour master", "port", "a mill"])
        context.remember_output(text, letters(tokenizer, text))

    def score(context: ServedContext) -> None:
        context.scored = chance.choice([None, ScoredAnswer((1, 2), (0.5, 0.5))])

    writes = [record, remember, score, ServedContext.note_healed, lambda c: c.describe_kv(messages, counter)]
    for _ in range(600):
        name = f"s{chance.randrange(9)}"
        step = chance.random()
        if step < 0.1:
            gone.append(contexts.of("a", name))
            contexts.drop("a", name)
        elif step < 0.2:
            contexts.share(("a", name), ("a", f"s{chance.randrange(9)}"))
        else:
            chance.choice(writes)(chance.choice(gone[-3:]) if gone and step < 0.3 else contexts.of("a", name))
        contexts.check_integrity()
    assert contexts.num_bytes > 0
    for number in range(9):
        contexts.drop("a", f"s{number}")
    assert contexts.num_bytes == len(contexts) == 0


def test_a_wrong_sum_is_told(tokenizer: Any) -> None:
    contexts = ServedContexts(tokenizer)
    context = contexts.of("a", "s")
    context.record([], range(100), receipt(0, []))
    contexts.check_integrity()
    assert context.last is not None
    context._last = replace(context.last, answer="longer")
    with pytest.raises(IntegrityError, match=r"served prompts: 9\d\d bytes are counted, 9\d\d are held"):
        contexts.check_integrity()


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
