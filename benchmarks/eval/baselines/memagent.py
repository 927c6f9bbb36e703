"""MemAgent: a memory that the model rewrites part by part (arXiv 2507.02259), with the Sculptor paper's trimming.

    text, trimmed in its middle to 120K tokens --> parts of 5K tokens
    memory 0 + part 1 --> memory 1 + part 2 --> ... --> memory n + question --> answer

Lengths are aimed at in characters, since a client does not know the server's tokenizer. The words are our own. An
empty memory leaves the old one.
"""

from __future__ import annotations

from acmserve.bench.eval.baselines.plain_text import plain_text
from acmserve.bench.eval.baselines.way_limits import PAPERS
from acmserve.bench.eval.play import Play
from acmserve.bench.eval.tasks.task import CHARS_PER_TOKEN

MOST_TOKENS = 120_000
NO_MEMORY = "Nothing was read before."


def play_memagent(play: Play) -> str:
    """One request for each part, and one for the answer."""
    memory = memory_of(play)
    asked = f"Your memory of a long text that you have read:\n{memory}\n\n{plain_text(play.sample).query}"
    return play.ask([{"role": "user", "content": asked}])


def memory_of(play: Play) -> str:
    """What the model wrote down of the sample's text, with its question in view. One request for each part."""
    told, memory = plain_text(play.sample), NO_MEMORY
    for part in parts(told.text, play.limits.part):
        asked = (
            f"A question will be asked: {told.query}\n\nYour memory of what you have read so far:\n{memory}\n\n"
            f"The next part of the text:\n{part}\n\nWrite your new memory. Keep what the question may need, of the old "
            "memory too, and add what the part says about it. Write nothing else."
        )
        written = play.ask([{"role": "user", "content": asked}], max_tokens=play.sample.memory_tokens)
        memory = written if written.strip() else memory
    return memory


def trimmed(text: str, num_tokens: int = MOST_TOKENS) -> str:
    """The text without its middle, where it is longer: as much of its beginning as of its end."""
    most = num_tokens * CHARS_PER_TOKEN
    return text if len(text) <= most else text[: most // 2] + text[len(text) - most // 2 :]


def parts(text: str, num_tokens: int = PAPERS.part) -> list[str]:
    """The trimmed text in parts of so many tokens."""
    text, size = trimmed(text), num_tokens * CHARS_PER_TOKEN
    return [text[start : start + size] for start in range(0, len(text), size)]
