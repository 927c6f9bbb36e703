"""What the two models that keep a context map are asked, and the JSON that they may answer.

Both models and their JSON are those of PEEK (arXiv 2605.19932), appendix E.

    Distiller       map, trajectory of the query          -->  diagnosis, a tag for every item, candidates
    Cartographer    map, diagnosis, tags, candidates      -->  ADD, DELETE, REPLACE
    both at once    map, trajectory of the query          -->  diagnosis, a tag for every item, ADD, DELETE, REPLACE

The last is the paper's ablation of a monolithic update.

The wording is our own, and a person may have another one (`instructions.py`). The schemas go to guided decoding. They
name the ids that exist, so that a model can neither invent one nor forget a tag.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acmserve.context.maps.answers import Distilled
from acmserve.context.maps.instructions import OURS, Instructions, fill
from acmserve.context.maps.item import SCORES
from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.section import BY_NAME
from acmserve.context.maps.text import render_map

MAX_CANDIDATES_ASKED = 8
MAX_OPERATIONS_ASKED = 16

_DISTILLER = """\
An agent works on questions about one external context: documents, data or code that it can look into but does not \
have in its prompt. In its prompt it has a context map, a small note about that context. You see the map and what the \
agent did for its last question. Find out what it learned about the context that helps with other questions.

Tell two kinds of work apart. Orientation: finding out what the context is, how it is organized, which names, values \
and formats matter; that can be reused. Work for this one question: finding the passage or number that answers it; \
that cannot. Ask of everything: would somebody with quite another question about the same context be glad to know it?

Answer with a JSON object:
- diagnosis: in a few sentences, what the agent spent its steps on, whether it found out again what the map says or \
should have said, and where it got stuck or succeeded.
- item_tags: for every item of the map one of helpful (it helped, or would have), harmful (it is wrong or misleads), \
stale (it is out of date), neutral (right, but not needed this time).
- cache_candidates: what is worth keeping. Summarize what is long, but keep numbers, formulas, allowed values and \
field names exact. No answer to this question, no quotation, no advice on how to behave, nothing from crude counting \
of characters or words. transferability says which other questions it helps, rationale why it is more than a fact for \
this one. An empty list if there is nothing.

The sections:
{sections}

=== context map ===
{map}
=== what the agent did ===
{trajectory}
{ground_truth}=== end ==="""

_CARTOGRAPHER = """\
You keep a context map: a small note about one external context that stands in the prompt of an agent which answers \
many questions about it. You get the map, and a review of the agent's last question. Choose the few edits that make \
the map worth most for questions that nobody has asked yet.

The map may have {budget} tokens; it has {num_tokens} now. Items are short, about 80 tokens at most, one line each. \
Rather REPLACE an item by a better or shorter one than ADD another; never say the same twice. DELETE what is wrong, \
out of date, repeated, or good for one question only. Exact values stay exact. No advice, no quotations, no raw data. \
If nothing is worth a change, operations is an empty list.

Worth most first: understanding of the context and its exact constants, the roadmap, reusable results with how they \
were made, how to parse it, errors that were seen.

The sections:
{sections}

Operations:
{"type": "ADD", "section": ..., "content": ...}
{"type": "DELETE", "item_id": ...}
{"type": "REPLACE", "item_id": ..., "content": ...}

Answer with a JSON object: reasoning (why these edits, briefly) and operations.

=== context map ===
{map}
=== review ===
{review}
=== the question was ===
{question}
=== end ==="""
_AT_ONCE = """\
You keep a context map: a small note about one external context (documents, data or code) that stands in the prompt of \
an agent which answers many questions about it. You see the map and what the agent did for its last question. Choose \
the few edits that make the map worth most for questions that nobody has asked yet.

The map may have {budget} tokens; it has {num_tokens} now. Items are short, about 80 tokens at most, one line each. \
Never say the same twice. Exact values stay exact. No answer to this question, no advice, no quotations.

The sections:
{sections}

Answer with a JSON object: diagnosis (in a few sentences, what the agent spent its steps on), item_tags (for every \
item of the map one of helpful, harmful, stale, neutral) and operations:
{"type": "ADD", "section": ..., "content": ...}
{"type": "DELETE", "item_id": ...}
{"type": "REPLACE", "item_id": ..., "content": ...}

=== context map ===
{map}
=== what the agent did ===
{trajectory}
{ground_truth}=== end ==="""
_TRUTH = "=== the right answer, which the agent did not have ===\n{}\n"


@dataclass(frozen=True, slots=True)
class MapQuestion:
    """One request to a model: a prompt, and the JSON schema of its answer, called `name`."""

    name: str
    prompt: str
    schema: Mapping[str, Any]


def ask_distiller(
    context_map: ContextMap, trajectory: str, instructions: Instructions = OURS, ground_truth: str | None = None
) -> MapQuestion:
    """What the Distiller is asked about one query. `ground_truth` is the right answer, where somebody knows it."""
    prompt = fill(instructions.distiller or _DISTILLER, _seen(context_map, trajectory, ground_truth))
    return MapQuestion("distiller", prompt, _distiller_schema(context_map))


def ask_at_once(
    context_map: ContextMap, trajectory: str, num_tokens: int, ground_truth: str | None = None
) -> MapQuestion:
    """What one model is asked that does the work of both. `num_tokens` is the size of the map now."""
    sizes = {"budget": context_map.budget, "num_tokens": num_tokens}
    prompt = fill(_AT_ONCE, _seen(context_map, trajectory, ground_truth) | sizes)
    schema = _object(
        {**_strings("diagnosis"), **_item_tags(context_map), "operations": _operations_schema(context_map)}
    )
    return MapQuestion("update", prompt, schema)


def _seen(context_map: ContextMap, trajectory: str, ground_truth: str | None) -> dict[str, object]:
    return {
        "sections": _sections(context_map),
        "map": render_map(context_map),
        "trajectory": trajectory,
        "ground_truth": "" if ground_truth is None else _TRUTH.format(ground_truth),
    }


def ask_cartographer(
    context_map: ContextMap,
    distilled: Distilled,
    question: str,
    num_tokens: int,
    instructions: Instructions = OURS,
) -> MapQuestion:
    """What the Cartographer is asked after that. `num_tokens` is the size of the map now."""
    review = {
        "diagnosis": distilled.diagnosis,
        "item_tags": dict(distilled.tags),
        "cache_candidates": list(distilled.candidates),
    }
    values = {
        "budget": context_map.budget,
        "num_tokens": num_tokens,
        "sections": _sections(context_map),
        "map": render_map(context_map),
        "review": json.dumps(review, ensure_ascii=False, indent=1),
        "question": question,
    }
    prompt = fill(instructions.cartographer or _CARTOGRAPHER, values)
    return MapQuestion("cartographer", prompt, _cartographer_schema(context_map))


def _sections(context_map: ContextMap) -> str:
    return "\n".join(f"- {name}: {BY_NAME[name].holds}" for name in context_map.sections)


def _distiller_schema(context_map: ContextMap) -> dict[str, Any]:
    candidate = {"section": {"type": "string", "enum": list(context_map.sections)}} | _strings(
        "value", "transferability", "rationale"
    )
    return _object(
        {
            **_strings("diagnosis"),
            **_item_tags(context_map),
            "cache_candidates": {"type": "array", "maxItems": MAX_CANDIDATES_ASKED, "items": _object(candidate)},
        }
    )


def _cartographer_schema(context_map: ContextMap) -> dict[str, Any]:
    return _object({**_strings("reasoning"), "operations": _operations_schema(context_map)})


def _item_tags(context_map: ContextMap) -> dict[str, Any]:
    """A tag for every item. Nothing where there is none: small models fill an empty object with white space."""
    tags = {item.item_id: {"type": "string", "enum": list(SCORES)} for item in context_map.items}
    return {"item_tags": _object(tags)} if tags else {}


def _operations_schema(context_map: ContextMap) -> dict[str, Any]:
    sections = {"type": "string", "enum": list(context_map.sections)}
    kinds = [_object({"type": _const("ADD"), "section": sections, **_strings("content")})]
    if context_map.items:
        ids = {"type": "string", "enum": [item.item_id for item in context_map.items]}
        kinds.append(_object({"type": _const("DELETE"), "item_id": ids}))
        kinds.append(_object({"type": _const("REPLACE"), "item_id": ids, **_strings("content")}))
    return {"type": "array", "maxItems": MAX_OPERATIONS_ASKED, "items": {"anyOf": kinds}}


def _strings(*names: str) -> dict[str, Any]:
    return {name: {"type": "string"} for name in names}


def _const(value: str) -> dict[str, Any]:
    return {"type": "string", "enum": [value]}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
