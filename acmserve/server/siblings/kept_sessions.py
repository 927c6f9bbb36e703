"""The sessions of a data folder and their owners: a start that would not find them is refused.

    kept by session    agent-7 in the file of server 1, agent-8 in that of server 0
    now by tenant      both of server 0: agent-7 would be unknown, and begin a second time

Decision: refused is a start that finds fewer of them than one of the other kind. So one of the two always starts. One
server owns all of them, so its file is not opened.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from acmserve.context.storage.shared_folder import keys_of
from acmserve.errors import AcmError
from acmserve.server.siblings.ownership import Ownership


def check_owners(folder: Path, ownership: Ownership) -> None:
    """Raise `AcmError` where sessions or maps of the folder have another owner than with or without a flag."""
    if ownership.num_servers == 1:
        return
    kept = keys_of(folder, ownership.num_servers)
    other = replace(ownership, by_tenant=not ownership.by_tenant)
    num_lost, num_lost_otherwise = (
        sum(each.owner_of(*key) != index for index, key in kept) for each in (ownership, other)
    )
    if num_lost > num_lost_otherwise:
        now, then = ("with", "without") if ownership.by_tenant else ("without", "with")
        raise AcmError(
            f"--data-dir {folder} has the sessions and context maps of a start {then} --infer-sessions, and this start "
            f"{now} it would not find {num_lost:,} of {len(kept):,}. Start {then} --infer-sessions, or name another "
            "folder and hand the sessions over with export and import."
        )
