"""The routes of context maps: show, set by hand, pin, export, delete, and what the updates did."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from starlette.responses import PlainTextResponse, Response

from acmserve.context.maps.text import render_map
from acmserve.context.maps.update import MapSettings
from acmserve.context.storage.codecs.map import change_value
from acmserve.context.storage.map_store import HeldMap
from acmserve.plan.request import MAX_SESSION_ID_CHARS, check_session_id
from acmserve.server.http.errors import problems
from acmserve.server.http.route_class import AcmRoute
from acmserve.server.maps.maps import Maps
from acmserve.server.routes.dependencies import Caller, CallerDep, check_has_maps
from acmserve.server.routes.schemas.maps import (
    MapChangeView,
    MapHistory,
    MapItemView,
    MapList,
    MapRequest,
    MapSummary,
    MapView,
)
from acmserve.server.routes.views.storage import deleting, storage_view

maps_router = APIRouter(route_class=AcmRoute, tags=["acm: context maps"], dependencies=[Depends(check_has_maps)])

MapId = Annotated[
    str,
    Path(
        min_length=1,
        max_length=MAX_SESSION_ID_CHARS,
        description="The external context that the map is about, percent-encoded: `a/b` is written `a%2Fb`.",
    ),
]


@maps_router.get("/maps", operation_id="acm_list_maps", summary="List context maps", responses=problems(400, 403))
async def list_maps(caller: CallerDep) -> MapList:
    """Lists the context maps of this API key (and cache salt), by id, without their contents."""
    caller.check_may_list()
    held = caller.server.maps.store.list(caller.tenant)
    return MapList(data=[_summary(each) for each in held])


@maps_router.get(
    "/maps/{external_context_id}", operation_id="acm_get_map", summary="Get a context map", responses=problems(400, 404)
)
async def get_map(external_context_id: MapId, caller: CallerDep) -> MapView:
    """Shows a map with its items and scores, its settings, and whether an update is under way."""
    return _view(caller.server.maps, _held(caller, external_context_id))


@maps_router.put(
    "/maps/{external_context_id}",
    operation_id="acm_set_map",
    summary="Make or change a context map",
    responses=problems(400, 413, 415) | {201: {"model": MapView, "description": "There was none; it was made."}},
)
async def put_map(external_context_id: MapId, wanted: MapRequest, response: Response, caller: CallerDep) -> MapView:
    """Sets the text of a map, its budget, how many queries it learns from, or pins it. Makes it where there is none.

    A text that exceeds the budget is refused, a smaller budget evicts what is worth least. All sessions that use the
    map read the change with their next question.
    """
    maps = caller.server.maps
    map_id = check_session_id(external_context_id, "external_context_id")
    settings = MapSettings(wanted.text, wanted.budget, wanted.evolve_steps, wanted.pinned)
    held, is_new = maps.settle(caller.tenant, map_id, settings)
    response.status_code = 201 if is_new else 200
    return _view(maps, held)


@maps_router.delete(
    "/maps/{external_context_id}",
    operation_id="acm_delete_map",
    summary="Delete a context map",
    status_code=204,
    responses=problems(400, 404, 503),
)
async def delete_map(external_context_id: MapId, caller: CallerDep) -> None:
    """Deletes a map with its history. An update that is under way is lost. A later request begins a new map."""
    map_id = check_session_id(external_context_id, "external_context_id")
    with deleting("map"):
        caller.server.maps.store.delete((caller.tenant, map_id))


@maps_router.get(
    "/maps/{external_context_id}/text",
    operation_id="acm_export_map",
    summary="Export a context map as text",
    response_class=Response,
    responses=problems(400, 404) | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def export_map(external_context_id: MapId, caller: CallerDep) -> PlainTextResponse:
    """Gives the map as plain text, as it stands in prompts. Edited, it goes back as `text` of a PUT."""
    return PlainTextResponse(render_map(_held(caller, external_context_id).context_map))


@maps_router.get(
    "/maps/{external_context_id}/history",
    operation_id="acm_get_map_history",
    summary="See what changed a context map",
    responses=problems(400, 404),
)
async def get_history(external_context_id: MapId, caller: CallerDep) -> MapHistory:
    """Lists the last changes: of each update its diagnosis, tags, operations and evictions, or why it failed."""
    history = _held(caller, external_context_id).context_map.history
    return MapHistory(data=[MapChangeView.model_validate(change_value(change)) for change in history])


def _held(caller: Caller, external_context_id: str) -> HeldMap:
    map_id = check_session_id(external_context_id, "external_context_id")
    return caller.server.maps.store.get((caller.tenant, map_id))


def _summary(held: HeldMap) -> MapSummary:
    context_map = held.context_map
    return MapSummary(
        external_context_id=held.key[1],
        num_items=len(context_map.items),
        version=context_map.version,
        frozen=context_map.frozen,
    )


def _view(maps: Maps, held: HeldMap) -> MapView:
    context_map = held.context_map
    return MapView(
        external_context_id=held.key[1],
        text=render_map(context_map),
        items=[
            MapItemView(id=item.item_id, section=item.section.name, text=item.text, score=item.score)
            for item in context_map.items
        ],
        tokens=maps.rules.count(context_map),
        budget=context_map.budget,
        evolve_steps=context_map.evolve_steps,
        num_steps=context_map.num_steps,
        pinned=context_map.pinned,
        frozen=context_map.frozen,
        version=context_map.version,
        num_pending=maps.updates.num_pending(held.key),
        num_read_tokens=context_map.num_read_tokens,
        num_written_tokens=context_map.num_written_tokens,
        storage=storage_view(held),
    )
