"""The places where the server stands in for vLLM's HTTP side.

    engine client .generate        every route of vLLM ends here: sessions are sent, receipts are taken
    engine client .shutdown        vLLM calls it when the server is asked to stop
    logger of the engine client    the end of an engine that was asked for is no error
    route function __signature__   FastAPI reads it to learn what a body may hold
    app lifespan                   what runs in the background ends with the server
    app.state.server               uvicorn's server, which waits for all answers before it ends

Does not know sessions: who taps hands in what is to happen.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from vllm.v1.engine.exceptions import EngineDeadError

Generate = Callable[..., AsyncGenerator[Any, None]]


def tap_engine_client(client: Any, around: Callable[[Generate], Generate]) -> None:
    """Wrap `generate` of this one engine client (vllm/v1/engine/async_llm.py)."""
    vars(client)["generate"] = around(client.generate)


def before_shutdown(client: Any, call: Callable[[], None]) -> None:
    """Have this engine client call something before it shuts down, which vLLM has it do when a signal came."""
    shutdown = client.shutdown

    def shutting_down(*args: Any, **kwargs: Any) -> Any:
        call()
        return shutdown(*args, **kwargs)

    vars(client)["shutdown"] = shutting_down


def in_this_loop(call: Callable[[], None]) -> Callable[[], None]:
    """`call`, for other threads: it is carried out in the event loop that runs now, and not once that has ended."""
    loop = asyncio.get_running_loop()

    def soon() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    return soon


def leave_out_engine_end() -> None:
    """From now on the end of the engine is no error in vLLM's log, for it was asked for."""
    logging.getLogger("vllm.v1.engine.async_llm").addFilter(is_no_engine_end)


def is_no_engine_end(record: logging.LogRecord) -> bool:
    """Whether a line of the log tells anything but that the engine is gone."""
    return record.exc_info is None or not isinstance(record.exc_info[1], EngineDeadError)


def set_signature(endpoint: Callable[..., Any], signature: inspect.Signature) -> None:
    """Have FastAPI read another signature than the function's own."""
    vars(endpoint)["__signature__"] = signature


def on_startup(app: FastAPI, tell: Callable[[FastAPI], Awaitable[None]]) -> None:
    """Run `tell` beside the app, from the beginning of its own lifespan on. It ends with the app."""
    lifespan = app.router.lifespan_context

    @asynccontextmanager
    async def telling(app: FastAPI) -> AsyncIterator[Any]:
        async with lifespan(app) as given:
            task = asyncio.ensure_future(tell(app))
            yield given
            task.cancel()

    app.router.lifespan_context = telling


def before_serving(app: FastAPI, start: Callable[[FastAPI], Awaitable[None]]) -> None:
    """Wait for `start` in the app's own lifespan, before any client is served."""
    lifespan = app.router.lifespan_context

    @asynccontextmanager
    async def starting(app: FastAPI) -> AsyncIterator[Any]:
        async with lifespan(app) as given:
            await start(app)
            yield given

    app.router.lifespan_context = starting


def on_shutdown(app: FastAPI, close: Callable[[FastAPI], Awaitable[None]]) -> None:
    """Call `close` when the app's own lifespan is about to end."""
    lifespan = app.router.lifespan_context

    @asynccontextmanager
    async def closing(app: FastAPI) -> AsyncIterator[Any]:
        async with lifespan(app) as given:
            yield given
            await close(app)

    app.router.lifespan_context = closing


def is_stopping(app: FastAPI) -> bool:
    """Whether the server of this app is about to end, because it was asked to or because its engine died.

    It waits for every answer that is still written. An app that runs in no server of vLLM never stops.
    """
    return bool(getattr(getattr(app.state, "server", None), "should_exit", False))
