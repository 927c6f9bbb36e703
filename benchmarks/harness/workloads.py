"""Two scripted conversations of 000: PI-LLM (section 4.1) and a chain of needles (NeedleBench, multi-needle reasoning).

A small model does not call tools by itself, so the calls are scripted. They are what a model that follows the preset
prompts would say, step by step. Everything else is real: the loop, the tools, the chat template, the parser, the
engine. The ids of fragments are not guessed: they follow from the conversation. So the script is planned by running the
same tools on the same state (`plan_script`).

    PI-LLM        fragment_context(10) -> fold the first eight, in one completion -> answer
    needle chain  search -> search -> get_search_detail -> ... -> answer
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from acmserve.context.session.history import adopt
from acmserve.context.session.state import SessionState
from acmserve.context.tools.run import ToolCall, ToolContext, run_tool
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import AcmError

# fmt: off
KEYS = [
    "anchor", "basket", "candle", "desert", "engine", "forest", "garden", "harbor", "island", "jacket", "kettle",
    "ladder", "market", "needle", "orange", "pencil", "quarry", "ribbon", "saddle", "temple", "umbrella", "valley",
    "window", "yellow", "zipper", "bridge", "cotton", "dragon", "feather", "guitar", "hammer", "ivory", "jungle",
    "kitten", "lemon", "mirror", "napkin", "ocean", "pepper", "rocket", "silver", "tunnel", "velvet", "wagon",
    "copper", "barrel",
]
VALUES = [
    "apple", "brass", "cedar", "delta", "ember", "flint", "grain", "hazel", "iron", "jade", "kelp", "linen", "maple",
    "nickel", "olive", "pearl", "quartz", "reed", "slate", "thorn", "umber", "vine", "wheat", "yarn", "zinc", "amber",
    "birch", "coral", "dune", "elm", "frost", "glass", "hemp", "ink", "juniper", "kale", "lime", "moss", "nectar",
    "onyx", "pine", "quill", "rust", "sand", "teak", "usher", "vapor", "willow", "yew", "zest", "acorn", "beech",
    "clay", "dew", "ebony", "fern", "grove", "heath", "ivy", "jute", "knot", "lava", "mint",
]
# fmt: on
STREAM_BEGINS, STREAM_ENDS = "The stream of updates begins.", "The stream of updates ends."
NAMES = ["Alder", "Brigid", "Corwin", "Delia", "Edmund", "Farah", "Gideon", "Hester", "Isolde", "Jarek"]

Step = Callable[[SessionState], list[ToolCall]]


@dataclass(frozen=True, slots=True)
class Workload:
    """A conversation, the preset that its system prompt comes from, and what a model would call, step by step."""

    name: str
    preset: str
    question: str
    steps: tuple[Step, ...]
    answer: str

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.question}]


def pi_llm(
    num_keys: int = 46,
    num_updates: int = 64,
    num_fragments: int = 10,
    num_folded: int = 8,
    *,
    one_a_step: bool = False,
) -> Workload:
    """Updates of `num_keys` keys, `num_updates` each. The last value of each key is asked for.

    `one_a_step`: each fold in a completion of its own, from front to back.
    """
    draw = random.Random(7)
    updates = [(key, draw.choice(VALUES)) for _ in range(num_updates) for key in draw.sample(KEYS[:num_keys], num_keys)]
    stream = "\n".join(f"{key}: {value}" for key, value in updates)
    latest = dict(updates)

    def cut(state: SessionState) -> list[ToolCall]:
        markers = {"start_marker": STREAM_BEGINS, "end_marker": STREAM_ENDS, "num_fragments": num_fragments}
        return [ToolCall("fragment_context", markers)]

    def fold(first: int, end: int) -> Step:
        return lambda state: [
            ToolCall("fold_fragment", {"fragment_id": fragment.fragment_id}) for fragment in state.fragments[first:end]
        ]

    folds = [fold(number, number + 1) for number in range(num_folded)] if one_a_step else [fold(0, num_folded)]
    return Workload(
        "PI-LLM",
        "pi-llm",
        f"{STREAM_BEGINS}\n{stream}\n{STREAM_ENDS} What is the latest value of each key?",
        (cut, *folds),
        "; ".join(f"{key}: {latest[key]}" for key in sorted(latest)) + ".",
    )


def needle_chain(num_needles: int = 5, num_lines: int = 1200) -> Workload:
    """A family tree scattered over a long text. Each name found is searched for in turn."""
    draw = random.Random(11)
    filler = [f"On day {n} the {draw.choice(KEYS)} was traded for {draw.choice(VALUES)}." for n in range(num_lines)]
    for i in range(num_needles):
        filler.insert(
            num_lines * (2 + i) // (2 * num_needles + 2),
            f"It is known that {NAMES[i + 1]} is the parent of {NAMES[i]}.",
        )

    def search(name: str) -> Step:
        return lambda state: [ToolCall("search_context", {"query": f"parent of {name}.", "context_size": 50})]

    def detail(state: SessionState) -> list[ToolCall]:
        return [ToolCall("get_search_detail", {"search_id": state.hits[-1].search_id, "extended_context": 100})]

    return Workload(
        "needle chain",
        "needlebench",
        "Read this.\n" + "\n".join(filler) + f"\nWho is the oldest known ancestor of {NAMES[0]}?",
        (search(NAMES[0]), detail, *(search(name) for name in NAMES[1 : num_needles + 1])),
        f"The oldest known ancestor of {NAMES[0]} is {NAMES[num_needles]}.",
    )


def plan_script(workload: Workload, tokenizer: Tokenizer) -> list[str]:
    """What the model is to say in each step: calls in the words of vLLM's `hermes` parser, then the answer.

    Raises AcmError when a scripted call would be refused.
    """
    state = adopt(SessionState(), workload.messages).state
    said = []
    for number, step in enumerate(workload.steps):
        calls = step(state)
        for call in calls:
            outcome = run_tool(state, call, ToolContext(tokenizer))
            if outcome.error is not None:
                raise AcmError(f"{workload.name}, step {number}: {outcome.result}")
            state = outcome.state
        said.append(as_hermes(calls))
    return [*said, workload.answer]


def as_hermes(calls: Sequence[ToolCall]) -> str:
    """Calls as the parser `hermes` reads them and as the chat template writes them.

    The grammar of `tool_choice: required` allows one call, or several without the line breaks between them.
    """
    bodies = (json.dumps({"name": call.name, "arguments": call.arguments}) for call in calls)
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
