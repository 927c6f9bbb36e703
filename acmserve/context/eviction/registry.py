"""The policies by name. This is the only list: parser, HTTP schema, help and documentation are all made from it.

    POLICIES["cwl"]                 a policy of this package: one file, and one line here
    load("my_package.lru:Lru")      a policy of another package, named by the operator when the server starts

Decision: only an operator may have a module imported, by `--eviction-policy` or by the server's own `--budget`. A
request may name a policy of another package once it was loaded, and nothing is ever imported for a request.

`python -m acmserve.context.eviction.registry` prints the table of the documentation.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from acmserve.context.eviction.chain import Chain
from acmserve.context.eviction.clear_tool_uses import ClearToolUsesPolicy
from acmserve.context.eviction.compact import CompactPolicy
from acmserve.context.eviction.cwl import Cwl, PiCwl
from acmserve.context.eviction.oldest_first.recency import Recency
from acmserve.context.eviction.oldest_first.user_messages import UserMessages
from acmserve.context.eviction.policy import Option, Policy
from acmserve.context.session.budget import Budget
from acmserve.errors import InvalidRequest
from acmserve.validation import echo_json

POLICIES: dict[str, type[Policy]] = {
    "chain": Chain,
    "cwl": Cwl,
    "pi-cwl": PiCwl,
    "clear_tool_uses": ClearToolUsesPolicy,
    "recency": Recency,
    "compact": CompactPolicy,
    "user_messages": UserMessages,
}
_PARTS = ("summary", "options", "needs_episodes", "needs_model", "plan")
_loaded: dict[str, type[Policy]] = {}


def known() -> Mapping[str, type[Policy]]:
    """Every policy that a budget may name, in order."""
    return {**POLICIES, **_loaded}


def find(name: object, field: str = "budget.policy") -> type[Policy]:
    """The policy of this name. Raises `InvalidRequest` with the list and the remedy. Imports nothing."""
    found = known()
    if isinstance(name, str) and name in found:
        return found[name]
    remedy = f"Choose {', '.join(found)}."
    if isinstance(name, str) and ":" in name:
        remedy += (
            " A policy of another package is named by the operator: acmserve serve --eviction-policy MODULE:CLASS."
        )
    raise InvalidRequest(field, f"{echo_json(name)} is not known.", remedy)


def policy_of(budget: Budget) -> Policy:
    """The policy of a budget, with its options. Raises `InvalidRequest` for options that contradict each other."""
    build: Callable[..., Policy] = find(budget.policy)
    return build(**budget.options)


def has_last_resorts(budget: Budget) -> bool:
    """Whether a summary, and then messages of users and descriptions, may go where the policy's plan is not enough."""
    return bool(getattr(find(budget.policy), "has_last_resorts", False))


def load(name: str, field: str = "--eviction-policy") -> type[Policy]:
    """Import the policy `module:Class` and list it under that name. For an operator's settings only.

    Raises `InvalidRequest` where there is no such class, or it is no policy.
    """
    if name in known():
        return find(name)
    module, _, attribute = name.partition(":")
    remedy = "Give MODULE:CLASS of a policy that the server can import, such as my_package.lru:Lru."
    if not module or not attribute:
        raise InvalidRequest(field, f"{echo_json(name)} names no class.", remedy)
    try:
        policy = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidRequest(field, f"{echo_json(name)} cannot be loaded: {error}.", remedy) from error
    missing = [part for part in _PARTS if not hasattr(policy, part)]
    if missing or not isinstance(policy, type):
        raise InvalidRequest(
            field, f"{echo_json(name)} is no policy: it lacks {', '.join(missing) or 'a class'}.", remedy
        )
    found = cast(type[Policy], policy)
    if found.needs_model:
        raise InvalidRequest(field, f"{echo_json(name)} needs a model, which only `compact` may ask.", remedy)
    _loaded[name] = found
    return found


def option_owners() -> dict[str, list[str]]:
    """The names of all options, in order, each with the policies that take it."""
    owners: dict[str, list[str]] = {}
    for name, policy in known().items():
        for option in policy.options:
            owners.setdefault(option.name, []).append(name)
    return owners


def options() -> Iterator[tuple[Option, list[str]]]:
    """Every option once, with the policies that take it."""
    owners, policies = option_owners(), known()
    for name, names in owners.items():
        yield next(option for option in policies[names[0]].options if option.name == name), names


def describe() -> str:
    """All policies in one text, for the help of the command line and the HTTP schema."""
    return "; ".join(f"`{name}`: {policy.summary}" for name, policy in known().items())


def table() -> list[str]:
    """The rows of a Markdown table of the policies and their options."""
    rows = ["| policy | what leaves first | options (default) |", "|---|---|---|"]
    for name, policy in known().items():
        written = [f"`{option.name}` (`{_default(option)}`): {option.description}" for option in policy.options]
        rows.append(f"| `{name}` | {policy.summary} | {'. '.join(written) or '-'} |")
    return rows


def _default(option: Option) -> str:
    value = option.as_json(option.default)
    return ", ".join(value) or "none" if isinstance(value, list) else str(value).lower() or "none"


if __name__ == "__main__":
    print("\n".join(table()))
