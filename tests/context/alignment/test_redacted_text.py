"""A redacted text is known again wherever it stands, and a text that only resembles it is not."""

from __future__ import annotations

import base64
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.alignment import redacted_index
from acmserve.context.alignment.core_text import CoreText
from acmserve.context.alignment.redacted_index import RedactedIndex, RedactedStretch
from acmserve.context.alignment.redacted_text import RedactedText, seal_text
from acmserve.context.storage.codecs.redacted_text import redacted_from, redacted_value
from tests.support.context.conversation import KEY, user
from tests.support.fuzzing import FACTOR

SECRET = (
    "The safe in the harbour opens with 4711-0815,\n"
    "and nobody but Ann knows where the key of the harbour master is kept."
)


def sealed(text: str, name: str = "f1") -> RedactedText:
    found = seal_text(text, KEY, name, "user", 9)
    assert found is not None
    return found


def left(content: Any, *secrets: RedactedText, in_place: frozenset[str] = frozenset()) -> str:
    """What is left of a text without white space."""
    text = CoreText(user(content))
    kept, position = "", 0
    for found in RedactedIndex(secrets, KEY).find(text, in_place):
        assert position <= found.start < found.end <= len(text.text)
        kept, position = kept + text.text[position : found.start] + "#", found.end
    return kept + text.text[position:]


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (SECRET, "#"),
        (f"Before. {SECRET} Behind.", "Before.#Behind."),
        (SECRET.replace(" ", "  ").replace("\n", " "), "#"),
        ([{"text": SECRET[:30]}, {"text": SECRET[30:]}, {"text": "Go on."}], "#Goon."),
        (f"{SECRET}\n{SECRET}", "##"),
        (SECRET.upper(), "".join(SECRET.upper().split())),
    ],
)
def test_it_is_cut_out_wherever_it_stands(content: Any, kept: str) -> None:
    assert left(content, sealed(SECRET)) == kept


def test_a_part_is_cut_out_to_the_end_of_its_line() -> None:
    half = SECRET.split("\n")[1]
    assert left(f"[cut]\n{half}\nGo on.", sealed(SECRET)) == "[cut]#Goon."
    assert left(SECRET[:70] + " ...", sealed(SECRET)) == "#"


def test_one_block_is_enough_in_a_new_version_of_the_message_only() -> None:
    piece = "".join(SECRET.split())[16:40]
    assert left(f"Other words here: {piece}", sealed(SECRET)) == f"Otherwordshere:{piece}"
    assert "#" in left(f"Other words here: {piece}", sealed(SECRET), in_place=frozenset({"f1"}))


def test_a_short_text_is_looked_for_in_its_place_only() -> None:
    assert left("my pin is 4711", sealed("4711")) == "mypinis4711"
    assert left("my pin is 4711", sealed("4711"), in_place=frozenset({"f1"})) == "mypinis#"
    assert left("my pin is 47110815", sealed("47110815")) == "mypinis#"


def test_several_secrets_in_one_text() -> None:
    other = "quite another secret, which is as long as that"
    assert left(f"{other} and {SECRET}", sealed(SECRET), sealed(other, "f2")) == "#and#"


def test_nothing_is_kept_of_white_space() -> None:
    assert seal_text(" \n\t", KEY, "f1", "user", 1) is None


def test_another_key_knows_nothing_and_no_text_is_kept() -> None:
    assert RedactedIndex([sealed(SECRET)], b"another").find(CoreText(user(SECRET))) == []
    assert not any(word.encode() in sealed(SECRET).blocks for word in ("safe", "harbour", "Ann"))


@given(st.integers(0, 10_000), st.integers(8, 200), st.integers(0, 60), st.integers(0, 60))
def test_any_secret_of_eight_characters_is_found_whole(seed: int, num: int, before: int, behind: int) -> None:
    rng = random.Random(seed)
    secret, front, back = ("".join(rng.choices("abcdefgh ", k=k)) for k in (num, before, behind))
    if len("".join(secret.split())) >= 8:
        assert "".join(secret.split()) not in left(f"{front}\n{secret}\n{back}", sealed(secret))


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=80))
def test_it_is_stored_and_read_back(text: str) -> None:
    found = seal_text(text, KEY, "f1", "user", 3)
    if found is not None:
        assert redacted_from(redacted_value(found)) == found


@pytest.mark.parametrize(
    "value",
    [
        {},
        ["f1", "user", 1, 2],
        ["f1", "user", 1, "2", ""],
        ["f1", "user", 1, 20, base64.b64encode(b"x" * 16).decode()],
        ["f1", "user", 1, 0, ""],
        ["f1", "user", 1, 20, "not base64!"],
    ],
)
def test_a_damaged_value_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        redacted_from(value)


def test_a_text_that_repeats_itself_costs_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    num_digests = 0
    digest = redacted_index.digest_block

    def counted(text: str, key: bytes) -> bytes:
        nonlocal num_digests
        num_digests += 1
        return digest(text, key)

    secret = sealed("ab" * 20_000)
    monkeypatch.setattr(redacted_index, "digest_block", counted)
    assert left("ab" * 10_000, secret) == "#"
    assert num_digests < 10_000


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of which a digest was made."""
    asked: list[str] = []
    digest = redacted_index.digest_block

    def counted(text: str, key: bytes) -> bytes:
        asked.append(text)
        return digest(text, key)

    monkeypatch.setattr(redacted_index, "digest_block", counted)
    return asked


@pytest.mark.parametrize("sign", ["=", "ab", "0123456789abcdef", "-" * 15 + "+", "-+-" * 7])
@pytest.mark.parametrize("num_blocks", [1, 3])
def test_a_text_that_repeats_a_block_of_a_secret_costs_no_digest(
    digests: list[str], sign: str, num_blocks: int
) -> None:
    """Each place of it has a block, and no run of them is long enough to count."""
    repeated = (sign * 16)[:16]
    secrets = [
        sealed("".join(f"{repeated}the secret {n}.{part} is so" for part in range(num_blocks)), f"f{n}")
        for n in range(4)
    ]
    text = sign * (30_000 // len(sign))
    digests.clear()
    assert left(text, *secrets) == text
    assert len(digests) == 0
    assert left(text + SECRET, *secrets, sealed(SECRET)) == text + "#"


def test_a_short_secret_of_another_message_costs_no_digest(digests: list[str]) -> None:
    secrets = [sealed("====", "f1"), sealed("1234", "f2")]
    digests.clear()
    assert left("=" * 30_000, *secrets, in_place=frozenset({"f2"})) == "=" * 30_000
    assert len(digests) == 0


@pytest.mark.parametrize("in_place", [frozenset[str](), frozenset({"f1"})])
def test_made_up_digests_are_not_asked_for_ever(digests: list[str], in_place: frozenset[str]) -> None:
    true = sealed("=" * 64)
    blocks = b"".join(true.blocks[at : at + 8] + bytes(8) for at in range(0, len(true.blocks), 16))
    forged = replace(true, blocks=blocks)
    digests.clear()
    assert left("=" * 30_000, forged, in_place=in_place) == "=" * 30_000
    assert 0 < len(digests) < 2_000


def plain_search(text: str, secrets: list[RedactedText], in_place: frozenset[str]) -> list[tuple[int, int, str]]:
    """What counts of the secrets, by the digest of every place of a text. Without margins."""
    found: list[tuple[int, int, str]] = []
    for width in sorted({secret.num_block_chars for secret in secrets}):
        blocks = [(s, number) for s in secrets if s.num_block_chars == width for number in range(s.num_blocks)]
        end = 0
        for start in range(len(text) - width + 1 if width >= 8 or in_place else 0):
            here = [(s, n) for s, n in blocks if has_block(text, start, s, n)] if start >= end else []
            runs = [(run_from(text, start, *block), block[0]) for block in here[:4]]
            wanted = [
                run for run in runs if run[1].fragment_id in in_place or run[0] >= max(8, min(run[1].num_chars, 32))
            ]
            if wanted:
                num, secret = max(wanted, key=lambda run: run[0])
                end = start + num
                found.append((start, end, secret.fragment_id))
    return found


def has_block(text: str, start: int, secret: RedactedText, number: int) -> bool:
    end = start + secret.num_block_chars
    return end <= len(text) and redacted_index.digest_block(text[start:end], KEY) == secret.digest(number)


def run_from(text: str, start: int, secret: RedactedText, number: int) -> int:
    first, last = secret.offset(number), 0
    while number < secret.num_blocks and has_block(text, start + secret.offset(number) - first, secret, number):
        last, number = secret.offset(number) + secret.num_block_chars - first, number + 1
    return last


REPEATING = st.lists(
    st.tuples(st.sampled_from(["=", "ab", "abc", "a" * 15 + "b", "xyz"]), st.integers(1, 40)), min_size=1
)


@settings(max_examples=120 * FACTOR, deadline=None)
@given(st.lists(REPEATING, min_size=1, max_size=5), REPEATING, st.data())
def test_it_finds_what_a_plain_search_finds(secrets: Any, parts: Any, data: st.DataObject) -> None:
    """In texts that repeat themselves with any period. A margin that is no line would hide the difference."""
    told = ["".join(text * num for text, num in secret)[: data.draw(st.integers(1, 90))] for secret in secrets]
    hidden = [sealed(text, f"f{number}") for number, text in enumerate(told)]
    copies = [(text, 1) for text in told]
    text = "".join(one * num for one, num in data.draw(st.permutations([*parts, *copies])))
    in_place = frozenset(data.draw(st.sets(st.sampled_from([secret.fragment_id for secret in hidden]))))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(redacted_index, "_stretch", without_margin)
        patched.setattr(redacted_index, "_apart", list)
        found = RedactedIndex(hidden, KEY).find(CoreText(user(text)), in_place)
    assert [(f.start, f.end, f.fragment_id) for f in found] == plain_search(text, hidden, in_place)


def without_margin(text: CoreText, run: Any, is_in_place: bool) -> RedactedStretch:
    return RedactedStretch(run.start, run.start + run.num_chars, run.sealed.fragment_id)


def test_a_long_text_has_few_blocks_and_is_found_in_part() -> None:
    lines = [f"line {number} has words {number * 7919} of its own and {number * 104729}" for number in range(4000)]
    secret = sealed("\n".join(lines))
    assert 4000 * 16 < len(secret.blocks) <= 4096 * 16
    assert left("\n".join(["[cut]", *lines[1000:1100]]), secret) == "[cut]#"
    assert left("\n".join(["[cut]", *lines[1000:1003]]), secret, in_place=frozenset({"f1"})).count("line") == 0
    assert "".join(lines[5].split()) not in left("\n".join(lines), secret)
