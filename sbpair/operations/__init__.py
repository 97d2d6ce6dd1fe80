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
    from sbpair.core.cost.request import CostRequest
    from sbpair.core.cost.result import Compared, Estimated
    from sbpair.core.failover.measured import Pinged
    from sbpair.core.failover.sent import SentMessages
    from sbpair.core.inspection.audit.result import AuditedPair
    from sbpair.core.inspection.diagnosis import Diagnoses
    from sbpair.core.inspection.discovery import Discovery
    from sbpair.core.inspection.result import AppliedPlan
    from sbpair.core.inspection.status import StatusReport
    from sbpair.operations.audit import AuditRequest, append_history, audit, audit_snapshot
    from sbpair.operations.cleanup import CleanupRequest, cleanup
    from sbpair.operations.cost import compare_costs, estimate_cost
    from sbpair.operations.dead_letters import (
        BrowseRequest,
        DeadLetterReason,
        DeadLetterReasons,
        browse_messages,
        list_dead_letters,
    )
    from sbpair.operations.discover import DiscoverRequest, discover
    from sbpair.operations.doctor import DoctorRequest, doctor
    from sbpair.operations.drain import DrainRequest, DrainResult, ToArchive, ToPrimary, ToQueue, drain
    from sbpair.operations.edit import EditRequest, EditResult, edit, find_message
    from sbpair.operations.empty import EmptyRequest, empty
    from sbpair.operations.ends import Ends, Sides
    from sbpair.operations.entity import (
        CreateEntityRequest,
        CreateRuleRequest,
        DeleteEntityRequest,
        DeleteRuleRequest,
        ListEntitiesRequest,
        ScrapeRequest,
        SetStatusRequest,
        ShowEntityRequest,
        create_entity,
        create_rule,
        delete_entity,
        delete_rule,
        list_entities,
        scrape_namespace,
        set_status,
        show_entity,
    )
    from sbpair.operations.evacuate import (
        DeadLettersTo,
        EvacuateRequest,
        EvacuateResult,
        EvacuationPlan,
        WrittenPlan,
        evacuate,
    )
    from sbpair.operations.explain import ExplainedMessage, ExplainRequest, explain_message
    from sbpair.operations.in_place import (
        DeadLetterRequest,
        RescheduleRequest,
        UndeferRequest,
        dead_letter_message,
        reschedule_message,
        undefer,
    )
    from sbpair.operations.move import CopyRequest, MovePlan, MoveRequest, MoveResult, Selection, copy, move
    from sbpair.operations.peek import PeekRequest, peek
    from sbpair.operations.ping import PingRequest, ping
    from sbpair.operations.provision import ProvisionRequest, provision
    from sbpair.operations.purge import PurgeRequest, purge
    from sbpair.operations.report import IncidentReport, ReportRequest, report
    from sbpair.operations.restore import RestoreRequest, RestoreResult, restore
    from sbpair.operations.resubmit import Repair, ResubmitRequest, Steps, resubmit
    from sbpair.operations.send import SendRequest, send
    from sbpair.operations.sessions import (
        ListSessionsRequest,
        SessionRequest,
        list_sessions,
        set_session_state,
        show_session,
    )
    from sbpair.operations.status import StatusRequest, status, watch_status
    from sbpair.operations.syphon import SyphonRequest, syphon
    from sbpair.operations.triage import Cause, Triage, TriageRequest, list_causes

__all__ = [
    "AppliedPlan",
    "AuditRequest",
    "AuditedPair",
    "BrowseRequest",
    "Cause",
    "CleanupRequest",
    "Compared",
    "CopyRequest",
    "CostRequest",
    "CreateEntityRequest",
    "CreateRuleRequest",
    "DeadLetterReason",
    "DeadLetterReasons",
    "DeadLetterRequest",
    "DeadLettersTo",
    "DeleteEntityRequest",
    "DeleteRuleRequest",
    "Diagnoses",
    "DiscoverRequest",
    "Discovery",
    "DoctorRequest",
    "DrainRequest",
    "DrainResult",
    "EditRequest",
    "EditResult",
    "EmptyRequest",
    "Ends",
    "Estimated",
    "EvacuateRequest",
    "EvacuateResult",
    "EvacuationPlan",
    "ExplainRequest",
    "ExplainedMessage",
    "IncidentReport",
    "ListEntitiesRequest",
    "ListSessionsRequest",
    "MovePlan",
    "MoveRequest",
    "MoveResult",
    "PeekRequest",
    "PingRequest",
    "Pinged",
    "ProvisionRequest",
    "PurgeRequest",
    "Repair",
    "ReportRequest",
    "RescheduleRequest",
    "RestoreRequest",
    "RestoreResult",
    "ResubmitRequest",
    "ScrapeRequest",
    "Selection",
    "SendRequest",
    "SentMessages",
    "SessionRequest",
    "SetStatusRequest",
    "ShowEntityRequest",
    "Sides",
    "StatusReport",
    "StatusRequest",
    "Steps",
    "SyphonRequest",
    "ToArchive",
    "ToPrimary",
    "ToQueue",
    "Triage",
    "TriageRequest",
    "UndeferRequest",
    "WrittenPlan",
    "append_history",
    "audit",
    "audit_snapshot",
    "browse_messages",
    "cleanup",
    "compare_costs",
    "copy",
    "create_entity",
    "create_rule",
    "dead_letter_message",
    "delete_entity",
    "delete_rule",
    "discover",
    "doctor",
    "drain",
    "edit",
    "empty",
    "estimate_cost",
    "evacuate",
    "explain_message",
    "find_message",
    "list_causes",
    "list_dead_letters",
    "list_entities",
    "list_sessions",
    "move",
    "peek",
    "ping",
    "provision",
    "purge",
    "report",
    "reschedule_message",
    "restore",
    "resubmit",
    "scrape_namespace",
    "send",
    "set_session_state",
    "set_status",
    "show_entity",
    "show_session",
    "status",
    "syphon",
    "undefer",
    "watch_status",
]

_MODULES = {
    "empty": ("EmptyRequest", "empty"),
    "audit": ("AuditRequest", "AuditedPair", "append_history", "audit", "audit_snapshot"),
    "cleanup": ("CleanupRequest", "cleanup"),
    "cost": ("Compared", "CostRequest", "Estimated", "compare_costs", "estimate_cost"),
    "dead_letters": ("BrowseRequest", "DeadLetterReason", "DeadLetterReasons", "browse_messages", "list_dead_letters"),
    "discover": ("DiscoverRequest", "Discovery", "discover"),
    "doctor": ("Diagnoses", "DoctorRequest", "doctor"),
    "drain": ("DrainRequest", "DrainResult", "ToArchive", "ToPrimary", "ToQueue", "drain"),
    "edit": ("EditRequest", "EditResult", "edit", "find_message"),
    "ends": ("Ends", "Sides"),
    "entity": (
        "CreateEntityRequest",
        "CreateRuleRequest",
        "DeleteEntityRequest",
        "DeleteRuleRequest",
        "ListEntitiesRequest",
        "ScrapeRequest",
        "SetStatusRequest",
        "ShowEntityRequest",
        "create_entity",
        "create_rule",
        "delete_entity",
        "delete_rule",
        "list_entities",
        "scrape_namespace",
        "scrape_namespace",
        "set_status",
        "show_entity",
    ),
    "evacuate": ("EvacuateRequest", "EvacuateResult", "EvacuationPlan", "DeadLettersTo", "WrittenPlan", "evacuate"),
    "in_place": (
        "DeadLetterRequest",
        "RescheduleRequest",
        "UndeferRequest",
        "dead_letter_message",
        "reschedule_message",
        "undefer",
    ),
    "move": ("CopyRequest", "MovePlan", "MoveRequest", "MoveResult", "Selection", "copy", "move"),
    "peek": ("PeekRequest", "peek"),
    "ping": ("PingRequest", "Pinged", "ping"),
    "provision": ("AppliedPlan", "ProvisionRequest", "provision"),
    "purge": ("PurgeRequest", "purge"),
    "report": ("IncidentReport", "ReportRequest", "report"),
    "restore": ("RestoreRequest", "RestoreResult", "restore"),
    "resubmit": ("Repair", "ResubmitRequest", "Steps", "resubmit"),
    "send": ("SendRequest", "SentMessages", "send"),
    "status": ("StatusReport", "StatusRequest", "status", "watch_status"),
    "syphon": ("SyphonRequest", "syphon"),
    "explain": ("ExplainRequest", "ExplainedMessage", "explain_message"),
    "sessions": ("ListSessionsRequest", "SessionRequest", "list_sessions", "set_session_state", "show_session"),
    "triage": ("Cause", "Triage", "TriageRequest", "list_causes"),
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
