"""Which class of the client is which schema of the server. Classes that these refer to are held against theirs, too."""

from __future__ import annotations

from acmserve.client.receipts import AcmAnswer
from acmserve.client.views import (
    BranchDetails,
    BudgetState,
    EditsResult,
    EvictionResult,
    SessionContext,
    SessionDetails,
    ToolResult,
)

KINDS: dict[type, str] = {
    AcmAnswer: "ReceiptFields",
    SessionDetails: "SessionInfo",
    SessionContext: "ContextView",
    BranchDetails: "BranchInfo",
    EditsResult: "EditsAnswer",
    EvictionResult: "Eviction",
    BudgetState: "BudgetView",
    ToolResult: "ToolAnswer",
}
