"""`bench precompute --chains`: the user speaks after a chain of thoughts, which the template drops from the prompt.

    served     user | think, call | result | think, call | result | ... | answer
    next       user |        call | result |        call | result | ... | answer | user
    append     the next message of the user behind that: nothing is dropped any more

An edit with a hole in each step. The template is ours, after the published rule of thinking models: what stands in
front of `</think>` is shown until the user's next message. A chain comes with one request, so that nobody waits for
thousands of sampled tokens. The weights are real, and nothing that they say is scripted.

Ways take turns, a stock server among them, which gets the same requests. Each way is compared with its own append.
`exact` with `predict` waits until the server is idle, as it is while a person reads. The others leave no pause.
What `exact` answers has to be what stock answers, word for word.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acmserve.bench.agent.conversation import check_receipt
from acmserve.bench.agent.result_table import Report, ResultTable
from acmserve.bench.agent.scripted_server import MODEL, SMOLLM2, WINDOWS, check_scripted
from acmserve.bench.edit.exact_check import with_check
from acmserve.bench.harness.chat_stream import ask
from acmserve.bench.harness.library_text import read_library
from acmserve.bench.harness.markdown_text import count, milliseconds, ratio
from acmserve.bench.harness.options import as_gate
from acmserve.bench.harness.run_log import counted
from acmserve.bench.harness.server_process import ServerProcess, StockProcess
from acmserve.bench.precompute.runs import EXACT, PREDICT, REUSE, STOCK, wait_until_idle
from acmserve.bench.precompute.table import TITLES
from acmserve.context.transcript.message import Message
from acmserve.models.smollm2 import TOOLS_TEMPLATE, prepare

NUM_STEPS, THOUGHT_TOKENS, RESULT_TOKENS = 30, 300, 40
WARM_UP_STEPS = 3
MAX_CHARS = 400_000
QUESTION, AGAIN = "What did you find out?", "What did you see there?"
AUTO = "auto"
WAYS = (PREDICT, EXACT, AUTO, REUSE, STOCK)
_SHOWN = "(message['content'] or '')"
_DROPPED = (
    "((message['content'] or '').split('</think>')[-1].lstrip('\\n')"
    " if message['role'] == 'assistant' and loop.index0 < spoken.at else (message['content'] or ''))"
)
_LOOP = "{%- for message in rest -%}"
_SPOKEN = (
    "{%- set spoken = namespace(at=0) -%}{%- for message in rest -%}{%- if message['role'] == 'user' -%}"
    "{%- set spoken.at = loop.index0 -%}{%- endif -%}{%- endfor -%}\n"
)


def dropping_template() -> str:
    """The template of the bundled model, as one that drops the thoughts of earlier turns."""
    whole = TOOLS_TEMPLATE.read_text(encoding="utf-8").replace(_LOOP, _SPOKEN + _LOOP, 1)
    return whole.replace(f"message['role'] + '\\n' + {_SHOWN}", f"message['role'] + '\\n' + {_DROPPED}")


@dataclass(slots=True)
class ThoughtsWay:
    """How one way did: seconds to the first token behind a chain, and of an append. Stock has no receipts."""

    name: str
    spoken: list[float] = field(default_factory=list)
    appended: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    receipts: list[dict[str, Any]] = field(default_factory=list)


def measure_thoughts(num_chains: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure `num_chains` chains in every way. JSON-ready, without numbers where something failed."""
    # Imported late: it takes seconds, which `--help` can do without.
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prepare())
    ways = {name: ThoughtsWay(name) for name in WAYS}
    failures: list[str] = []
    with _servers() as (ours, stock):
        checked = check_scripted(ours)
        for number in range(-1, num_chains):
            say(counted(number + 1, num_chains, "chain") if number >= 0 else "a short chain that is not counted")
            chain = make_chain(number, tokenizer, NUM_STEPS if number >= 0 else WARM_UP_STEPS)
            taken = ways if number >= 0 else {name: ThoughtsWay(name) for name in WAYS}
            for name in (WAYS[(number + turn) % len(WAYS)] for turn in range(len(WAYS))):
                url = stock if name == STOCK else ours
                failures += _ask_way(url, taken[name], f"chain-{number} {name}", chain)
    for name in (PREDICT, EXACT):
        failures += [f"{name}: its answers are not those of stock"] * (ways[name].texts != ways[STOCK].texts)
    sizes = f"{NUM_STEPS} steps of {THOUGHT_TOKENS} tokens of reasoning and {RESULT_TOKENS} of a result"
    rows = [] if failures else [_row(way) for way in ways.values()]
    report = {"gate": as_gate(failures), "sizes": sizes, "num_chains": num_chains, "ways": rows}
    return with_check(report, checked)


def make_chain(number: int, tokenizer: Any, num_steps: int) -> list[Message]:
    """A user's question, and steps of a thought, a call and its result. Text of the library, other in each chain."""
    text = "\n".join(source for _, source in sorted(read_library().sources.items()))
    tokens = tokenizer.encode(text[:MAX_CHARS], add_special_tokens=False)
    start = (number + 1) * NUM_STEPS * (THOUGHT_TOKENS + RESULT_TOKENS)
    made: list[Message] = [{"role": "user", "content": f"Question {number}: look around."}]
    for step in range(num_steps):
        at = (start + step * (THOUGHT_TOKENS + RESULT_TOKENS)) % (len(tokens) - THOUGHT_TOKENS - RESULT_TOKENS)
        thought = tokenizer.decode(tokens[at : at + THOUGHT_TOKENS])
        result = tokenizer.decode(tokens[at + THOUGHT_TOKENS : at + THOUGHT_TOKENS + RESULT_TOKENS])
        function = {"name": "look", "arguments": f'{{"step": {step}}}'}
        call = {"id": f"call-{step}", "type": "function", "function": function}
        said = {"role": "assistant", "content": f"<think>\n{thought}\n</think>\n\n", "tool_calls": [call]}
        made += [said, {"role": "tool", "tool_call_id": f"call-{step}", "content": result}]
    return made


def _ask_way(url: str, way: ThoughtsWay, session: str, chain: Sequence[Message]) -> list[str]:
    """A chain in one way: its end, the user's message, and one more. What was not as it has to be."""
    messages = list(chain)
    owner: dict[str, Any] = {"cache_salt": session}
    if way.name != STOCK:
        fidelity, _, precompute = way.name.partition(", ")
        owner |= {"session_id": session, "acm": {"fidelity": fidelity, "precompute": precompute or "off"}}
    replies = []
    for words in ("", QUESTION, AGAIN):
        messages += [{"role": "user", "content": words}] if words else []
        fields = {"temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}, **owner}
        replies.append(ask(url, {"model": MODEL, "messages": messages, "max_tokens": 12, **fields}))
        messages.append(replies[-1].message)
        if way.name == PREDICT:
            wait_until_idle(url, session)
    way.spoken.append(replies[1].first_seconds)
    way.appended.append(replies[2].first_seconds)
    way.texts.append("\n".join(reply.message["content"] for reply in replies))
    failures: list[str] = []
    num_steps = len(chain) // 2
    if not replies[1].usage["prompt_tokens"] < replies[0].usage["prompt_tokens"] - num_steps * THOUGHT_TOKENS // 2:
        failures.append(f"{session}: the template dropped no thoughts")
    if way.name != STOCK:
        receipt = replies[1].receipt
        way.receipts.append(receipt)
        failures += check_receipt(receipt, session)
        if not failures and (receipt["precomputed_tokens"] > 0) is not (way.name == PREDICT):
            failures.append(f"{session}: {receipt['precomputed_tokens']} tokens precomputed")
    return failures


@contextmanager
def _servers() -> Iterator[tuple[str, str]]:
    """The URLs of ours and of a stock one, with the same weights and flags."""
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder, ExitStack() as stack:
        template = Path(folder) / "dropping.jinja"
        template.write_text(dropping_template(), encoding="utf-8")
        window = WINDOWS[SMOLLM2]
        flags = ["--served-model-name", MODEL, "--max-model-len", str(window), "--chat-template", str(template)]
        flags += ["--hf-overrides", json.dumps({"max_position_embeddings": window})]
        ours = stack.enter_context(ServerProcess(prepare(), flags))
        stock = stack.enter_context(StockProcess(prepare(), [*flags, "--enforce-eager", "--dtype", "float32"]))
        yield ours.wait_ready(), stock.wait_ready()


def _row(way: ThoughtsWay) -> dict[str, Any]:
    counts = ("prompt_tokens", "kept_tokens", "moved_tokens", "computed_tokens", "precomputed_tokens")
    tokens = {name: statistics.median(receipt[name] for receipt in way.receipts) for name in counts if way.receipts}
    ratios = [spoken / appended for spoken, appended in zip(way.spoken, way.appended, strict=True)]
    return {
        "name": way.name,
        "median_seconds": statistics.median(way.spoken),
        "median_append_seconds": statistics.median(way.appended),
        "appends": statistics.median(way.spoken) / statistics.median(way.appended),
        "appends_of_chains": ratios,
        "median_tokens": tokens,
    }


def _ways(report: Report) -> Iterator[list[str]]:
    for way in report["ways"]:
        times = [milliseconds(way[name]) for name in ("median_seconds", "median_append_seconds")]
        tokens = [count(way["median_tokens"].get(f"{part}_tokens")) for part in ("moved", "computed")]
        yield [TITLES[way["name"]], *times, ratio(way["appends"]), *tokens]


THOUGHTS_TABLE = ResultTable(("way", "first token", "an append behind it", "in appends", "moved", "computed"), _ways)
