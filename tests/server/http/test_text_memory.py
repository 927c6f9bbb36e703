"""What is remembered of texts tells no tenant what another one has sent. It holds no text, and it is bounded."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextvars import Context
from types import FunctionType, ModuleType
from typing import Any

import pytest

from acmserve.errors import IntegrityError
from acmserve.server.exchange.foldable_pieces import PieceFinder
from acmserve.server.http import text_memory
from acmserve.server.http.tenants import TENANT
from acmserve.server.http.text_memory import TextMemory
from acmserve.server.identity.units import UnitReader
from acmserve.server.models import tokenizer
from acmserve.server.models.piece_counter import PieceCounter
from acmserve.server.models.tokenizer import ServedTokenizer
from tests.support.server.acm_app import Words

TEXT = "the numbers of the quarter are 17 and 4 and nobody may know them"
Work = Callable[[], int]


class WordsAsked(Words):
    """`seen` has every text that was tokenized."""

    is_fast = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        self.seen.append(text)
        return {"offset_mapping": [(start, start) for start in self.starts(text)]}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.seen.append(text)
        return super().encode(text, add_special_tokens)


def counted_by(run: Callable[[WordsAsked], Callable[[], object]]) -> Work:
    """The texts that a run tokenizes."""
    words = WordsAsked()
    once = run(words)

    def work() -> int:
        num_before = len(words.seen)
        once()
        return len(words.seen) - num_before

    return work


def counting() -> Work:
    def run(words: WordsAsked) -> Callable[[], object]:
        served = ServedTokenizer(words)
        return lambda: served.starts(TEXT)

    return counted_by(run)


def counting_pieces() -> Work:
    def run(words: WordsAsked) -> Callable[[], object]:
        pieces = PieceCounter(lambda text: len(words.encode(text)), ["<|end|>"])
        return lambda: pieces.count(f"{TEXT}<|end|>{TEXT} too")

    return counted_by(run)


def finding_pieces() -> Work:
    def run(words: WordsAsked) -> Callable[[], object]:
        finder, prompt = PieceFinder(words), Words().encode(TEXT)
        return lambda: finder.find(prompt, [{"role": "user", "content": TEXT}])

    return counted_by(run)


def spelling() -> Work:
    def work() -> int:
        reader = UnitReader()
        reader.read({"type": "function_call", "name": "known_by_tenant", "arguments": json.dumps({"said": TEXT})})
        return reader.num_spelled

    return work


@pytest.mark.parametrize("prepared", [counting, counting_pieces, finding_pieces, spelling])
def test_a_text_of_another_tenant_is_as_new_as_any(prepared: Callable[[], Work]) -> None:
    work = prepared()

    def as_tenant(tenant: str) -> int:
        context = Context()
        context.run(TENANT.set, tenant)
        return context.run(work)

    first, again = as_tenant("a"), as_tenant("a")
    assert first > 0
    assert again == 0, "the same tenant's is known"
    for other in ("b", "b/salt", "a/salt", ""):
        assert (as_tenant(other), as_tenant(other)) == (first, 0)


def texts_in(root: object) -> Iterator[str]:
    """All text that an object holds, however deep."""
    seen, left = set[int](), [root]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType):
            continue
        seen.add(id(each))
        if isinstance(each, str | bytes):
            yield each if isinstance(each, str) else each.decode("latin-1")
        left += gc.get_referents(each)


def test_no_text_is_kept() -> None:
    words = WordsAsked()
    served, pieces, finder = (
        ServedTokenizer(words),
        PieceCounter(lambda text: len(text.split()), []),
        PieceFinder(words),
    )
    assert len(served.starts(TEXT)) == pieces.count(TEXT)
    finder.find(words.encode(TEXT), [{"role": "user", "content": TEXT}])
    assert any(TEXT in text for text in texts_in(words)), "the search finds what is there"
    words.seen.clear()
    assert not [text for text in texts_in([served, pieces, finder]) if TEXT[:20] in text]


def test_short_texts_are_bounded_by_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text is one character or two: their offsets alone would never reach the bound."""
    max_bytes = 400_000
    monkeypatch.setattr(tokenizer, "MAX_REMEMBERED_BYTES", max_bytes, raising=False)
    words = WordsAsked()
    served = ServedTokenizer(words)
    served.starts("warm")
    tracemalloc.start()
    try:
        for number in range(20_000):
            served.starts(chr(0x4E00 + number))
            words.seen.clear()
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_bytes < max_bytes
    served.check_integrity()


def test_what_was_used_longest_ago_goes_first() -> None:
    made: list[str] = []
    memory: TextMemory[int] = TextMemory(10, lambda value: value)

    def make(text: str) -> int:
        made.append(text)
        return len(text)

    for text in ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb"):
        assert memory.of(text, make) == 4
        memory.check_integrity()
    assert made == ["aaaa", "bbbb", "cccc", "bbbb"]
    assert memory.of("d" * 11, make) == 11
    assert len(memory) == 0
    memory.check_integrity()
    memory.keep(b"one", 4)
    memory.keep(b"one", 6)
    memory.check_integrity()
    memory._num_used += 1
    with pytest.raises(IntegrityError, match="7 counted, 6 used, at most 10"):
        memory.check_integrity()


def test_digests_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = text_memory.text_digest("a", TEXT)
    assert text_memory.text_digest("a", TEXT) == digest != text_memory.text_digest("b", TEXT)
    assert text_memory.text_digest("a", "\ud800")
    monkeypatch.setattr(text_memory, "_SECRET", bytes(32))
    assert text_memory.text_digest("a", TEXT) != digest
