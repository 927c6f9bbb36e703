"""The clients themselves, from the package registries, in `build/clients`: a folder each, for they pin other versions.

They are tools of `make clients` and no dependency of anything. What stands there is used again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CLIENTS = ROOT / "build" / "clients"
INSTALL_SECONDS = 3600
ATTEMPTS = 3
"""A registry that does not answer once answers the next time."""


@dataclass(frozen=True)
class Package:
    """One client. `packages` are pip's or npm's own words, the first one names the client."""

    folder: str
    installer: str
    packages: tuple[str, ...]

    @property
    def place(self) -> Path:
        """Where it is, or will be."""
        return CLIENTS / self.folder

    @property
    def version(self) -> str:
        """The pinned version of the client."""
        return self.packages[0].rpartition("==" if self.installer == "pip" else "@")[2]

    def program(self, name: str) -> Path:
        """A command of it."""
        return self.place / ("bin" if self.installer == "pip" else "node_modules/.bin") / name

    def commands(self) -> list[list[str]]:
        """What installs it."""
        if self.installer == "npm":
            return [["npm", "install", "--no-audit", "--no-fund", "--prefix", str(self.place), *self.packages]]
        return [[sys.executable, "-m", "venv", str(self.place)], self.pip(*self.packages)]

    def pip(self, *asked: str) -> list[str]:
        """What puts more into its environment."""
        patient = ["--retries", "10", "--timeout", "60"]
        return [str(self.program("pip")), "install", "--quiet", "--disable-pip-version-check", *patient, *asked]


CODEX = Package("codex", "npm", ("@openai/codex@0.169.0",))
CLAUDE_CODE = Package("claude", "npm", ("@anthropic-ai/claude-code@2.1.197",))
OPENCODE = Package("opencode", "npm", ("opencode-ai@1.18.33",))
QWEN_CODE = Package("qwen", "npm", ("@qwen-code/qwen-code@0.15.10",))
MINI = Package("mini", "pip", ("mini-swe-agent==2.4.6",))
AIDER = Package("aider", "pip", ("aider-chat==0.86.2",))
LANGGRAPH = Package(
    "langgraph",
    "pip",
    ("langgraph==1.2.24", "langchain==1.5.2", "langchain-openai==1.7.4", "langgraph-checkpoint-sqlite==3.1.2"),
)
AGENTS_SDK = Package("agents", "pip", ("openai-agents==0.24.0",))
ANTHROPIC = Package("anthropic", "pip", ("anthropic==2.13.0",))
LITELLM = Package("litellm", "pip", ("litellm==1.110.2",))
MONITOR = Package("monitor", "pip", ("rich==15.0.0",))
PYRIGHT = Package("pyright", "npm", ("pyright@1.1.414",))
OPENAI = Package("openai", "pip", ("openai==3.54.0", "anthropic==2.13.0"))


def install(package: Package) -> None:
    """Make sure that it is there. Skips the test with the installer's words where it cannot be had."""
    failure = install_failure(package)
    if failure is not None:
        pytest.skip(f"{package.packages[0]} cannot be installed: {failure}")


def install_failure(package: Package) -> str | None:
    """Make sure that it is there. The installer's words where it cannot be had."""
    stamp = package.place / "installed.txt"
    wanted = " ".join(package.packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return None
    package.place.parent.mkdir(parents=True, exist_ok=True)
    for command in package.commands():
        failure = command_failure(command)
        if failure is not None:
            return failure
    stamp.write_text(wanted)
    return None


def command_failure(command: Sequence[str]) -> str | None:
    """Run an installer, several times where it fails. Its last words where it never came to its end."""
    said = ""
    for _ in range(ATTEMPTS):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except OSError as error:
            return str(error)
        if done.returncode == 0:
            return None
        said = " ".join(done.stderr.strip().splitlines()[-1:])
    return said or f"{command[0]} failed"
