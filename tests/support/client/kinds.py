"""Which class of the client is which schema of the server. Classes that these refer to are held against theirs, too."""

from __future__ import annotations

from acmserve.client.receipts import AcmAnswer
from acmserve.client.views.maps import MapDetails, MapOutline, RecordedMapChange
from acmserve.client.views.sessions import (
    BranchDetails,
    BudgetState,
    EditsResult,
    EvictionResult,
    PreparedEdits,
    SessionContext,
    SessionDetails,
    SessionEpisodes,
    SessionsPage,
    ToolResult,
)
from acmserve.client.views.turns import SessionTotals, TurnsPage, UsagePage

KINDS: dict[type, str] = {
    AcmAnswer: "ReceiptFields",
    SessionDetails: "SessionInfo",
    SessionContext: "ContextView",
    BranchDetails: "BranchInfo",
    EditsResult: "EditsAnswer",
    EvictionResult: "Eviction",
    BudgetState: "BudgetView",
    ToolResult: "ToolAnswer",
    SessionsPage: "SessionList",
    SessionEpisodes: "EpisodeList",
    PreparedEdits: "PreparationView",
    TurnsPage: "TurnList",
    SessionTotals: "TurnTotalsView",
    UsagePage: "UsageList",
    MapOutline: "MapSummary",
    MapDetails: "MapView",
    RecordedMapChange: "MapChangeView",
}
