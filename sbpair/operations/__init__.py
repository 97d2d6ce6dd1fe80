"""The verbs of the command line as calls: what `sbpair drain orders` does, `await drain(sides, request)` does too.

    from sbpair import open_sides
    from sbpair.operations import DrainRequest, drain

    async with open_sides(pair) as sides:
        result = await drain(sides, DrainRequest(ledger=Path("drain.jsonl")))

Each verb takes open ends, a request that says everything about what to do, and two optional arguments: `observer` gets
the events on the way, `stop` ends the run early. It returns a result, which says what was done until then. A dry run is
a field of the request. `sbpair.run` calls a verb from code that is not asynchronous.

A verb prints nothing, asks nothing and reads no configuration. Names are imported when they are first used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sbpair.core.inspection.audit.result import AuditedPair
    from sbpair.core.inspection.result import AppliedPlan
    from sbpair.operations.audit import AuditRequest, append_history, audit, audit_snapshot
    from sbpair.operations.cleanup import CleanupRequest, cleanup
    from sbpair.operations.drain import DrainRequest, DrainResult, ToArchive, ToPrimary, ToQueue, drain
    from sbpair.operations.edit import EditRequest, EditResult, edit, find_message
    from sbpair.operations.ends import Ends, Sides
    from sbpair.operations.evacuate import EvacuateRequest, EvacuateResult, EvacuationPlan, Kept, WrittenPlan, evacuate
    from sbpair.operations.move import CopyRequest, MovePlan, MoveRequest, MoveResult, Selection, copy, move
    from sbpair.operations.peek import PeekRequest, peek
    from sbpair.operations.provision import ProvisionRequest, provision
    from sbpair.operations.purge import PurgeRequest, purge
    from sbpair.operations.restore import RestoreRequest, RestoreResult, restore
    from sbpair.operations.resubmit import ResubmitRequest, resubmit
    from sbpair.operations.syphon import SyphonRequest, syphon

__all__ = [
    "AppliedPlan",
    "AuditRequest",
    "AuditedPair",
    "CleanupRequest",
    "CopyRequest",
    "DrainRequest",
    "DrainResult",
    "EditRequest",
    "EditResult",
    "Ends",
    "EvacuateRequest",
    "EvacuateResult",
    "EvacuationPlan",
    "Kept",
    "MovePlan",
    "MoveRequest",
    "MoveResult",
    "PeekRequest",
    "ProvisionRequest",
    "PurgeRequest",
    "RestoreRequest",
    "RestoreResult",
    "ResubmitRequest",
    "Selection",
    "Sides",
    "SyphonRequest",
    "ToArchive",
    "ToPrimary",
    "ToQueue",
    "WrittenPlan",
    "append_history",
    "audit",
    "audit_snapshot",
    "cleanup",
    "copy",
    "drain",
    "edit",
    "evacuate",
    "find_message",
    "move",
    "peek",
    "provision",
    "purge",
    "restore",
    "resubmit",
    "syphon",
]

_MODULES = {
    "resubmit": ("ResubmitRequest", "resubmit"),
    "purge": ("PurgeRequest", "purge"),
    "move": ("CopyRequest", "MovePlan", "MoveRequest", "MoveResult", "Selection", "copy", "move"),
    "evacuate": ("EvacuateRequest", "EvacuateResult", "EvacuationPlan", "Kept", "WrittenPlan", "evacuate"),
    "edit": ("EditRequest", "EditResult", "edit", "find_message"),
    "audit": ("AuditRequest", "AuditedPair", "append_history", "audit", "audit_snapshot"),
    "cleanup": ("CleanupRequest", "cleanup"),
    "drain": ("DrainRequest", "DrainResult", "ToArchive", "ToPrimary", "ToQueue", "drain"),
    "ends": ("Ends", "Sides"),
    "provision": ("AppliedPlan", "ProvisionRequest", "provision"),
    "restore": ("RestoreRequest", "RestoreResult", "restore"),
    "peek": ("PeekRequest", "peek"),
    "syphon": ("SyphonRequest", "syphon"),
}


class _Verbs(ModuleType):
    """This package. Importing a module binds it here under its name, which is that of its verb: the verb is bound."""

    def __setattr__(self, name: str, value: object) -> None:
        named = isinstance(value, ModuleType) and name in _MODULES.get(name, ())
        super().__setattr__(name, getattr(value, name) if named else value)


sys.modules[__name__].__class__ = _Verbs


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
