"""Opens the sessions of a server at its start: from the settings to a `Sessions` object in the app's state.

The one place where the parts meet: settings, the SQLite archive, the served tokenizer and chat template, who
summarizes, who embeds.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from starlette.datastructures import State
from vllm.engine.protocol import EngineClient

from acmserve.context.storage.session import Bound
from acmserve.context.storage.session_names import SharedNames
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.shared_folder import share_of
from acmserve.context.storage.sqlite import Archive
from acmserve.context.tools.suites import load_suites
from acmserve.engine.config import EngineConfig
from acmserve.plan.harm.level import ladder_of
from acmserve.server.app.access import has_api_keys
from acmserve.server.app.launch.sibling_layer import ownership_of
from acmserve.server.app.map_startup import open_maps
from acmserve.server.budget.budgets import Budgets, load_policies
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.redaction import Engines
from acmserve.server.exchange.served_prompts import ServedContexts
from acmserve.server.models.embedder import parse_embedder
from acmserve.server.models.model_identity import ModelIdentity, open_identity
from acmserve.server.models.piece_counter import piece_counter
from acmserve.server.models.prompt_renderer import PromptRenderers
from acmserve.server.models.summarizer import open_summarizer
from acmserve.server.models.template_probe import TemplateProbe
from acmserve.server.models.tokenizer import ServedTokenizer
from acmserve.server.options.config import ContextConfig, flag_value
from acmserve.server.options.harm import HarmMode, parse_harm
from acmserve.server.options.session_from import parse_sources
from acmserve.server.precompute.background_request import ServedBackground
from acmserve.server.sessions.identifier import Identifier
from acmserve.server.speculation.speculator import Speculator
from acmserve.server.vllm.api_processes import api_process_rank
from acmserve.server.vllm.call_marks import call_marks
from acmserve.server.vllm.model_names import served_names
from acmserve.server.vllm.taps import Generate

logger = logging.getLogger(f"vllm.{__name__}")


def open_server(engine_client: EngineClient, state: State, args: Namespace, probe: TemplateProbe) -> ContextServer:
    """The sessions of this server. `probe` is its template's. Raises AcmError for a wrong setting or data folder."""
    extra: dict[str, Any] = args.kv_transfer_config.kv_connector_extra_config
    config = ContextConfig.parse(extra)
    load_suites(config.suite)
    tokenizer = engine_client.renderer.get_tokenizer()
    limits = config.session_limits
    served = ServedContexts(tokenizer, Bound(limits.file.max_sessions, limits.max_bytes))
    counting = ServedTokenizer(tokenizer)
    budgets = _open_budgets(config, counting, engine_client.model_config.max_model_len, probe)
    index, ownership = api_process_rank(engine_client.vllm_config), ownership_of(args, config)
    share = share_of(Path(config.data_dir), index, ownership.num_servers)
    archive = Archive(share) if config.data_dir else None
    store = SessionStore(config.session_limits, archive)
    if ownership.num_servers > 1:
        store.names = SharedNames(lambda tenant, session_id: ownership.owner_of(tenant, session_id) == index)
    table = None if archive is None else archive.maps
    window = engine_client.model_config.max_model_len
    return ContextServer(
        store,
        counting,
        open_summarizer(config, state),
        parse_embedder(config.embedder),
        served,
        default_fidelity=EngineConfig.parse(extra).default_fidelity,
        max_tool_calls=config.max_tool_calls,
        has_api_keys=has_api_keys(args),
        tenants=getattr(state, "acm_tenants", None),
        budgets=budgets,
        maps=open_maps(config, state, table, tokenizer, counting, window),
        background=ServedBackground(state),
        precompute=config.precompute_options,
        pool_tokens=_pool_tokens(engine_client),
        identifier=open_identifier(config, store, served),
        renderers=PromptRenderers(state, tokenizer, piece_counter(tokenizer)),
        observations=config.observation_rule,
        rollout=config.rollout,
        prices=config.token_prices,
        call_marks=call_marks(getattr(state, "openai_serving_chat", None), tokenizer),
        identity=_open_identity(engine_client, args, tokenizer),
        shares_maps=ownership.num_servers == 1 or ownership.by_tenant,
        harm=_harm_mode(config, engine_client),
        ladder=ladder_of(EngineConfig.parse(extra).level, config.boldest),
    )


def _harm_mode(config: ContextConfig, engine_client: EngineClient) -> HarmMode:
    """Log probabilities of another kind are not those of a prompt. Where those of a prompt are wrong nobody judges."""
    mode = parse_harm(config.harm)
    refusal = find_scoring_refusal(engine_client.vllm_config)
    if engine_client.model_config.logprobs_mode != "raw_logprobs":
        refusal = "engine: its log probabilities are not raw"
    if refusal is None or mode is HarmMode.OFF:
        return mode
    logger.info("acmserve: the harm of moved KV is not measured. %s", refusal)
    return HarmMode.OFF


def open_speculator(
    generate: Generate, engine_client: EngineClient, config: ContextConfig, engines: Engines
) -> Speculator:
    """Who drafts exact answers."""
    model, transfer = engine_client.model_config, engine_client.vllm_config.kv_transfer_config
    extra = {} if transfer is None else transfer.kv_connector_extra_config
    return Speculator(
        generate,
        engine_client.renderer.get_tokenizer,
        model.max_model_len,
        by_default=config.speculate,
        default_fidelity=EngineConfig.parse(extra).default_fidelity,
        num_engines=engines.num_engines,
        refusal=find_draft_refusal(model, engine_client.vllm_config),
    )


def find_draft_refusal(model_config: Any, vllm_config: Any) -> str | None:
    """Why no answer of this server can be verified. None where some can.

    A logits processor of the deployment's may change which token is the likeliest. vLLM loads every installed one.
    """
    if model_config.logits_processors or entry_points(group="vllm.logits_processors"):
        return "engine: it has logits processors of its own"
    return find_scoring_refusal(vllm_config)


def find_scoring_refusal(vllm_config: Any) -> str | None:
    """Why the log probabilities of a prompt cannot be asked for. None where they can.

    With fast prefill vLLM lets those of 0 tokens pass, and its engine ends at them. With adapters it takes the rows of
    a prompt for those of other requests: they get a wrong head, or the engine ends.
    """
    refusals = {
        "engine: with fast prefill it tells nothing of a prompt's tokens": (
            vllm_config.cache_config.kv_sharing_fast_prefill
        ),
        "engine: adapters change the head": vllm_config.lora_config is not None,
    }
    return next((reason for reason, holds in refusals.items() if holds), None)


def _open_identity(engine_client: EngineClient, args: Namespace, tokenizer: Any) -> ModelIdentity:
    """What an export of a session says of the served model."""
    kwargs = getattr(args, "default_chat_template_kwargs", None)
    config = engine_client.model_config.hf_text_config
    return open_identity(served_names(args), tokenizer, args.chat_template, kwargs, config)


def open_identifier(
    config: ContextConfig, store: SessionStore | None = None, served: ServedContexts | None = None
) -> Identifier:
    """Finds the sessions of requests, as the settings want it. Raises InvalidRequest for a wrong one."""
    sources = parse_sources(config.session_from)
    return Identifier(sources, infers=config.infer_sessions, store=store, served=served)


def _open_budgets(config: ContextConfig, counting: ServedTokenizer, window: int, probe: TemplateProbe) -> Budgets:
    """The budgets, and what the served chat template weighs. Raises InvalidRequest for a wrong setting."""
    budgets = Budgets(counting, window=window, overheads=probe.overheads, num_base=probe.num_base, rules=probe.rules)
    default = flag_value(config.budget, "--budget") if config.budget else None
    load_policies(config.eviction_policy, default)
    if default is not None:
        budgets.default = budgets.parse(default, "--budget")
    return budgets


def _pool_tokens(engine_client: EngineClient) -> int | None:
    """Tokens that the KV cache holds, None where the engine does not report it."""
    cache = engine_client.vllm_config.cache_config
    return cache.num_gpu_blocks * cache.block_size if cache.num_gpu_blocks else None
