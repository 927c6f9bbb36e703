"""What an answer says where the sessions' file could not be written, as a pydantic model."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class StorageView(BaseModel):
    """The change was made in memory, and the file lacks it."""

    saved: Literal[False] = Field(description="Always false: the field is null where the file has the change.")
    reason: Literal["full", "locked", "read_only", "damaged", "replaced", "failed", "refused"] = Field(
        description="Why it could not be written."
    )
    warning: str = Field(description="What that means, and what to do.")
