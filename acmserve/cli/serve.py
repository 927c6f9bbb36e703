"""`acmserve serve`: the server. Its flags are read by the server and by vLLM.

A suite of the deployment is read here, before vLLM is imported: what is wrong with the file is told at once.
"""

from __future__ import annotations

import argparse

from acmserve.cli.command import Command
from acmserve.context.tools.suites import load_suites


def _run(arguments: list[str]) -> int:
    ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    ours.add_argument("--suite", default="")
    load_suites(ours.parse_known_args(arguments)[0].suite)

    from acmserve.server.app.serve import main

    return main(arguments)


SERVE = Command("start the OpenAI-compatible server with context edits on", _run)
