"""The names of the served model. vLLM names every answer after the first of them, and we as the request did.

A client that asks for an alias (`--model-alias`) and is answered by another name may take the answer for a mistake.
The name is set by the route, before vLLM's function runs, and is that of the request's own task. vLLM has judged it
when it asks for the name of the answer. Where no request set one, as in the server's own questions, vLLM's name stays.
"""

from __future__ import annotations

from argparse import Namespace
from contextvars import ContextVar
from typing import Any

ASKED_NAME: ContextVar[str | None] = ContextVar("acmserve_model_name", default=None)


def served_names(args: Namespace) -> list[str]:
    """The names that a model is served under: those of `--served-model-name`, else its own."""
    names = args.served_model_name or [args.model]
    return [names] if isinstance(names, str) else list(names)


def echo_names(models: Any) -> None:
    """Have vLLM's list of models name an answer after the model that the request asked for."""
    name_answer = models.model_name

    def model_name(*args: Any, **kwargs: Any) -> str:
        served: str = name_answer(*args, **kwargs)
        return ASKED_NAME.get() or served

    vars(models)["model_name"] = model_name
