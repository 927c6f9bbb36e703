"""mini-swe-agent's own loop, model and environment, from its python interface. A turn is a task of its own."""

from __future__ import annotations

import os

os.environ |= {"MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors"}

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_path
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models import get_model

from tests.support.clients.programs.line_loop import MODEL, arguments, loop

URL, FILE = arguments()
