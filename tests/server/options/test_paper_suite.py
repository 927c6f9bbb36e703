"""`sculptor-paper` is the paper's own words: a prompt with it is that of a reference written by hand, to the token.

The reference, `tests/support/templates/sculptor_paper.txt`, was written from Figures 8 and 10 to 15 (arXiv 2508.04664).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from acmserve.models.smollm2 import TOOLS_TEMPLATE
from acmserve.server.chat.request import LoopRequest
from acmserve.server.options.loop_options import parse_loop_options

REFERENCE = Path(__file__).parents[2] / "support" / "templates" / "sculptor_paper.txt"
QUESTION = [{"role": "user", "content": "Who is the oldest ancestor of Ann?"}]


def prompt_of(tokenizer: Any, suite: str) -> list[int]:
    options = parse_loop_options({"tools": suite, "preset": "needlebench"}, 20)
    assert options is not None
    body = LoopRequest({"messages": QUESTION}, options).step(QUESTION, 0, 0)
    template = Path(TOOLS_TEMPLATE).read_text(encoding="utf-8")
    text = tokenizer.apply_chat_template(
        body["messages"], tools=body["tools"], chat_template=template, tokenize=False, add_generation_prompt=True
    )
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


def test_a_prompt_with_the_papers_suite_is_the_reference_token_for_token(smollm2_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    reference = tokenizer.encode(REFERENCE.read_text(encoding="utf-8"), add_special_tokens=False)
    assert prompt_of(tokenizer, "sculptor-paper") == reference
    assert prompt_of(tokenizer, "sculptor") != reference
