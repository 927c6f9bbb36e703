"""`acmserve doctor`: what is installed, whether it fits together, and whether a model's KV may be moved.

Each finding is ok, a note, or broken. A model that refuses moves is a note: it is served exactly, and that is no
defect. Broken is what keeps acmserve from working at all: no vLLM, a hook that does not fit, no fast kernel.

It only asks the layers that know (version, dispatch, model_verdict) and loads no weights. A model is judged by what
judges it in the engine, on its own class with few layers and random weights.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acmserve.cli.command import Command
from acmserve.cli.installation import check_torchvision
from acmserve.errors import AcmError, EngineMismatch

if TYPE_CHECKING:
    from acmserve.engine.vllm.model.media_rule import MediaRule

OK, NOTE, BROKEN = "ok", "note", "broken"
WITHOUT_HYBRID = (
    "with --disable-hybrid-kv-cache-manager moves are allowed; the KV of layers with a window is then kept for the "
    "whole context, so fewer tokens fit into the cache"
)
COST_OF_WINDOWS = (
    "unless --prefix-cache-retention-interval is set, vLLM caches a window at the end of each prompt alone, so a move "
    "ends there, and an edit in front of it keeps no prefix"
)
COST_OF_NOTHING = (
    "acmserve moves nothing here, and being a KV connector costs features of vLLM: blocks are freed later under async "
    "scheduling, --use-replayssm is refused, and from vLLM 0.33 on a prefix hit beside EAGLE or MTP loses its last "
    "block, for want of hashes that look ahead; where only moves are wanted, start vLLM without acmserve"
)
KEPT_FOR_EDITS = (
    "after an edit vLLM alone finds a prompt again up to where an earlier one ended; in a session acmserve has it keep "
    "what an edit needs in front of each message, and an exact edit computes what follows it (`edit_boundaries` of the "
    "receipt)"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `status` is ok, note or broken."""

    topic: str
    status: str
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """All findings in the order in which they were made."""

    findings: tuple[Finding, ...]

    @property
    def is_broken(self) -> bool:
        """Whether anything keeps acmserve from working."""
        return any(finding.status == BROKEN for finding in self.findings)

    def as_text(self) -> str:
        """One line for each finding and one for the sum."""
        lines = [f"{finding.status:<7} {finding.topic:<8} {finding.detail}" for finding in self.findings]
        verdict = "something is broken, see above" if self.is_broken else "acmserve can work here"
        return "\n".join([*lines, verdict])

    def as_json(self) -> str:
        """`{"ok": bool, "findings": [{"topic", "status", "detail"}]}`."""
        return json.dumps({"ok": not self.is_broken, "findings": [asdict(f) for f in self.findings]}, indent=2)


def examine(
    model: str | None = None, speculative: dict[str, Any] | None = None, kv_cache_dtype: str = "auto"
) -> Report:
    """Look at the installation and, when `model` is given, at that model with such a KV cache.

    The drafter of vLLM's `speculative_config` counts, too. Raises AcmError when the model cannot be read.
    """
    try:
        check_torchvision()
    except AcmError as error:
        return Report((Finding("torch", BROKEN, str(error)),))
    findings = [_vllm(), _torch(), *_kernels(), _precompute()]
    if model is not None:
        findings += [_template(model), *_model(model, speculative, kv_cache_dtype)]
    return Report(tuple(findings))


def _vllm() -> Finding:
    from acmserve.engine.vllm.version import check_engine, engine_version, is_tested

    try:
        name, version = engine_version()
        check_engine()
    except EngineMismatch as mismatch:
        return Finding("vllm", BROKEN, str(mismatch))
    except ImportError as error:
        return Finding("vllm", BROKEN, f"{name} {version} is installed but cannot be imported: {error}")
    if not is_tested(version):
        return Finding("vllm", NOTE, f"{name} {version}; every hook fits, but this version was not tested")
    return Finding("vllm", OK, f"{name} {version}; every hook fits")


def _torch() -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding("torch", BROKEN, f"cannot be imported ({error}); `make setup` installs the pinned build")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU only"
    return Finding("torch", OK, f"{importlib.metadata.version('torch')}, {device}, {torch.get_num_threads()} threads")


def _kernels() -> list[Finding]:
    try:
        from acmserve.kernels.dispatch import available
    except ImportError as error:
        return [Finding("kernels", BROKEN, f"cannot be imported: {error}")]
    found = available()
    fast = any(kernel.usable for name, kernel in found.items() if name != "reference")
    findings = [
        Finding("kernel", OK if kernel.usable else NOTE, f"{name}: {'' if kernel.usable else 'no, '}{kernel.detail}")
        for name, kernel in found.items()
    ]
    if not fast:
        findings.append(Finding("kernel", BROKEN, "only the slow reference can run here; reinstall acmserve with g++"))
    return findings


def _precompute() -> Finding:
    """What `acmserve serve` precomputes here where nothing is set."""
    from acmserve.server.app.launch.default_precompute import PrecomputePlace, plan_default_precompute

    try:
        from vllm.platforms import current_platform

        on_cpu: bool = current_platform.is_cpu()
    except ImportError as error:
        return Finding("serve", NOTE, f"what it precomputes is not known without vLLM ({error})")
    found = plan_default_precompute(PrecomputePlace(on_cpu))
    return Finding("serve", NOTE if found.mode == "off" else OK, str(found))


def _model(model: str, speculative: dict[str, Any] | None, kv_cache_dtype: str) -> list[Finding]:
    """The model as the engine would find it, built small here."""
    from acmserve.engine.config import engine_config
    from acmserve.engine.worker.model_verdict import judge_model

    folder = _folder(model)
    config = _read_config(folder, model)
    kind = f"{getattr(config, 'model_type', 'unknown')}, {getattr(config, 'max_position_embeddings', '?')} positions"
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # vLLM tells on stdout how it builds the small model
    try:
        settings = {"speculative_config": speculative, "kv_cache_dtype": kv_cache_dtype, **engine_config()}
        verdict = judge_model(folder, **settings)
    except Exception as error:  # noqa: BLE001 -- whatever a model class raises, the engine has the last word
        reason = (str(error) or type(error).__name__).splitlines()[0]
        detail = f"{kind}: vLLM cannot build it small ({reason}); the engine measures it when it starts"
        return [Finding("model", NOTE, detail)]
    finally:
        logging.disable(before)
    kept = [] if verdict.sparse is None else [Finding("edits", OK, f"{verdict.sparse}: {KEPT_FOR_EDITS}")]
    if verdict.refusal is None:
        bound = f"a key is turned at most {verdict.max_rotations} times, then its token is computed anew"
        allowed = Finding("model", OK, f"{kind}: moves allowed ({verdict.describe_keys()}); {bound}")
        windows = verdict.describe_windows()
        cost = [] if windows is None else [Finding("model", NOTE, f"{windows}; {COST_OF_WINDOWS}")]
        return [*kept, allowed, *_media(verdict.media), *cost]
    detail = f"{kind}: no moves ({verdict.refusal}); it is served exactly"
    remedy = COST_OF_NOTHING if verdict.refusal_without_hybrid else f"{WITHOUT_HYBRID} ({verdict.describe_keys()})"
    return [*kept, Finding("model", NOTE, detail), Finding("model", NOTE, remedy)]


def _media(rule: MediaRule | None) -> list[Finding]:
    """What becomes of prompts with images, where the model takes any."""
    return [] if rule is None else [Finding("model", OK if rule.refusal is None else NOTE, str(rule))]


def _template(model: str) -> Finding:
    """What the chat template takes, and so what becomes of the neighbours that an eviction leaves."""
    from transformers import AutoTokenizer

    from acmserve.server.models.template_probe import rules_of, template_render

    load: Callable[[str], Any] = AutoTokenizer.from_pretrained
    try:
        tokenizer = load(_folder(model))
    except (OSError, ValueError, ImportError) as error:
        return Finding("template", NOTE, f"no tokenizer to probe it with ({str(error).splitlines()[0]})")
    if getattr(tokenizer, "chat_template", None) is None:
        return Finding("template", NOTE, "the model has none; --chat-template names one, and the server probes that")
    return Finding("template", OK, str(rules_of(template_render(tokenizer))))


def _read_config(folder: str, model: str) -> Any:
    from transformers import AutoConfig

    load: Callable[[str], Any] = AutoConfig.from_pretrained
    try:
        return load(folder)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise AcmError(f"cannot read the configuration of {model!r}: {reason}") from error


def _folder(model: str) -> str:
    if model != "smollm2" or Path(model).exists():
        return model
    from acmserve.models.smollm2 import default_folder, is_prepared

    if not is_prepared(default_folder()):
        raise AcmError("the bundled model is not prepared yet; `acmserve model smollm2` prepares it")
    return str(default_folder())


def _add_flags(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument("model", nargs="?", metavar="MODEL", help="a Hugging Face folder, or the word smollm2")
    doctor.add_argument(
        "--speculative-config",
        type=_json_object,
        metavar="JSON",
        help="vLLM's flag: the keys of the drafter count, too",
    )
    doctor.add_argument(
        "--kv-cache-dtype", default="auto", metavar="TYPE", help="judge MODEL with this KV cache (vLLM's own flag)"
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value


def _run(parsed: argparse.Namespace) -> int:
    report = examine(parsed.model, parsed.speculative_config, parsed.kv_cache_dtype)
    print(report.as_json() if parsed.json else report.as_text())
    return 1 if report.is_broken else 0


DOCTOR = Command(
    "check vLLM, hooks, kernels and, with MODEL, whether its KV may be moved",
    _run,
    "Tells which vLLM is installed, whether acmserve's hooks fit it, which kernels are built and, with MODEL, whether "
    "its positions and attention allow moves, and if not, why. The chat template of MODEL is probed: which orders of "
    "messages it takes, and so how evictions leave a conversation. A model whose KV may not be moved is no defect: "
    "it is served exactly. Exit code 1 when something is broken.",
    _add_flags,
)
