"""A redacted text is known again wherever it stands, and a text that only resembles it is not."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.alignment import redacted_text
from acmserve.context.alignment.core_text import CoreText
from acmserve.context.alignment.redacted_text import RedactedIndex, RedactedText, seal_text
from acmserve.context.storage.codecs.redacted_text import redacted_from, redacted_value
from tests.support.context.conversation import KEY, user

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
    digest = redacted_text._digest

    def counted(text: str, key: bytes) -> bytes:
        nonlocal num_digests
        num_digests += 1
        return digest(text, key)

    secret = sealed("ab" * 20_000)
    monkeypatch.setattr(redacted_text, "_digest", counted)
    assert left("ab" * 10_000, secret) == "#"
    assert num_digests < 10_000


def test_a_long_text_has_few_blocks_and_is_found_in_part() -> None:
    lines = [f"line {number} has words {number * 7919} of its own and {number * 104729}" for number in range(4000)]
    secret = sealed("\n".join(lines))
    assert 4000 * 16 < len(secret.blocks) <= 4096 * 16
    assert left("\n".join(["[cut]", *lines[1000:1100]]), secret) == "[cut]#"
    assert left("\n".join(["[cut]", *lines[1000:1003]]), secret, in_place=frozenset({"f1"})).count("line") == 0
    assert "".join(lines[5].split()) not in left("\n".join(lines), secret)
