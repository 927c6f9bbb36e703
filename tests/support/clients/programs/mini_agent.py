"""mini-swe-agent's own loop, model and environment, from its python interface. A turn is a task of its own.

Behind the two arguments of every program may stand the name of one of its configurations. Behind that may stand what
each request has beside `messages`, as JSON.
"""

from __future__ import annotations

import json
import os
import sys

os.environ |= {"MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors"}

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_path
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models import get_model

from tests.support.clients.programs.line_loop import MODEL, arguments, loop

URL, FILE = arguments()
MORE = dict(enumerate(sys.argv[3:]))
NAME, BODY = MORE.get(0, "mini"), json.loads(MORE.get(1, "{}"))
CONFIG = yaml.safe_load(get_config_path(NAME).read_text())
CLASS = {"model_class": "litellm_textbased"} if NAME == "mini_textbased" else {}
SETTINGS = {name: CONFIG["agent"][name] for name in ("system_template", "instance_template")}


def turn(words: str) -> tuple[str, int | None]:
    given = {"api_base": f"{URL}/v1", "api_key": "unused", "drop_params": True, "extra_body": BODY}
    served = get_model(f"openai/{MODEL}", {**CONFIG["model"], **CLASS, "model_kwargs": given})
    agent = DefaultAgent(served, LocalEnvironment(), cost_limit=0.0, **SETTINGS)
    result = agent.run(words)
    answers = [message["extra"]["response"] for message in agent.messages if "response" in message.get("extra", {})]
    details = answers[-1]["usage"].get("prompt_tokens_details") or {}
    is_done = result.get("exit_status") == "Submitted"
    return "Errand is done." if is_done else str(result.get("exit_status")), details.get("cached_tokens")


loop(turn)
