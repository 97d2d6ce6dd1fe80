"""The verbs of the command line as calls: what `sbpair drain orders` does, `await drain(sides, request)` does too.

    from sbpair import open_sides
    from sbpair.operations import DrainRequest, drain

    async with open_sides(pair) as sides:
        result = await drain(sides, DrainRequest(ledger=Path("drain.jsonl")))

A verb takes what it works on, open: `sides`, those of a pair, or `ends`, the namespace of the request's entity and that
of its destination; `report` and `estimate_cost` work on files, and `discover` is given an opener. A request
says everything about what to do; a dry run is a field of it. Two arguments are optional: `observer` gets the events on
the way, if there are any; `stop`, once it is set, ends the run early. What only reads then raises InterruptedWorkError;
what moves messages settles or releases those in flight, and the result says what was done until then. A verb's own
docstring tells what is more than that. `sbpair.run` calls a verb from code that is not asynchronous.

A verb prints nothing, asks nothing and reads no configuration. Names are imported when they are first used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sbpair.core.cost.model import Month as Month
    from sbpair.core.cost.model import SyphonModel as SyphonModel
    from sbpair.core.editing import Editables as Editables
    from sbpair.core.entities import EntityKind as EntityKind
    from sbpair.core.entities import EntitySettings as EntitySettings
    from sbpair.core.entities import RuleFacts as RuleFacts
    from sbpair.core.errors import ConfigurationError as ConfigurationError
    from sbpair.core.errors import EntityExistsError as EntityExistsError
    from sbpair.core.errors import EntityNotFoundError as EntityNotFoundError
    from sbpair.core.errors import InterruptedWorkError as InterruptedWorkError
    from sbpair.core.errors import JournalError as JournalError
    from sbpair.core.errors import OperationTimeoutError as OperationTimeoutError
    from sbpair.core.errors import SbpairError as SbpairError
    from sbpair.core.errors import ServiceError as ServiceError
    from sbpair.core.errors import StalePlanError as StalePlanError
    from sbpair.core.errors import UsageError as UsageError
    from sbpair.core.inspection.contents import Contents as Contents
    from sbpair.core.inspection.drilled import Reaction as Reaction
    from sbpair.core.inspection.entity import ScrapedNamespace as ScrapedNamespace
    from sbpair.core.inspection.plan import Plan as Plan
    from sbpair.core.message import TtlMode as TtlMode
    from sbpair.core.replication.ownership import SessionState as SessionState
    from sbpair.core.replication.ownership import Terms as Terms
    from sbpair.core.transfer.filters import FilterError as FilterError
    from sbpair.core.transfer.filters import MessageFilter as MessageFilter
    from sbpair.core.transfer.filters import Where as Where
    from sbpair.core.transfer.peeked import GroupKey as GroupKey
    from sbpair.core.transfer.resend import Planned as Planned
    from sbpair.core.transfer.restored import RestorePlan as RestorePlan
    from sbpair.operations.audit import *
    from sbpair.operations.cost import *
    from sbpair.operations.discover import *
    from sbpair.operations.doctor import *
    from sbpair.operations.drain import *
    from sbpair.operations.drill import *
    from sbpair.operations.entity import *
    from sbpair.operations.evacuate import *
    from sbpair.operations.in_place import *
    from sbpair.operations.ledgers import *
    from sbpair.operations.move import *
    from sbpair.operations.peek import *
    from sbpair.operations.ping import *
    from sbpair.operations.promotion import *
    from sbpair.operations.provision import *
    from sbpair.operations.replication import *
    from sbpair.operations.restore import *
    from sbpair.operations.resubmit import *
    from sbpair.operations.rules import *
    from sbpair.operations.send import *
    from sbpair.operations.status import *
    from sbpair.ports import Ends as Ends
    from sbpair.ports import Sides as Sides
    from sbpair.service import EntityStatus as EntityStatus
    from sbpair.service import Tier as Tier

_MODULES = {
    ".core.cost.model": ("Month", "SyphonModel"),
    ".core.editing": ("Editables",),
    ".core.entities": ("EntityKind", "EntitySettings", "RuleFacts"),
    ".core.errors": (
        "ConfigurationError",
        "EntityExistsError",
        "EntityNotFoundError",
        "InterruptedWorkError",
        "JournalError",
        "OperationTimeoutError",
        "SbpairError",
        "ServiceError",
        "StalePlanError",
        "UsageError",
    ),
    ".core.inspection.contents": ("Contents",),
    ".core.inspection.drilled": ("Reaction",),
    ".core.inspection.entity": ("ScrapedNamespace",),
    ".core.inspection.plan": ("Plan",),
    ".core.message": ("TtlMode",),
    ".core.replication.ownership": ("SessionState", "Terms"),
    ".core.transfer.filters": ("FilterError", "MessageFilter", "Where"),
    ".core.transfer.peeked": ("GroupKey",),
    ".core.transfer.resend": ("Planned",),
    ".core.transfer.restored": ("RestorePlan",),
    ".ports": ("Ends", "Sides"),
    ".service": ("EntityStatus", "Tier"),
    "audit": (
        "AuditRequest",
        "AuditedPair",
        "append_history",
        "audit",
        "audit_namespace",
        "audit_snapshot",
        "read_history",
    ),
    "cost": ("Compared", "CostRequest", "Estimated", "compare_costs", "estimate_cost"),
    "discover": ("DiscoverRequest", "Discovery", "discover"),
    "doctor": ("Diagnoses", "DoctorRequest", "doctor"),
    "drain": ("DrainRequest", "DrainResult", "SyphonRequest", "ToArchive", "ToPrimary", "ToQueue", "drain", "syphon"),
    "drill": ("DrillRequest", "Drilled", "ShadowOutage", "drill"),
    "entity": (
        "CreateEntityRequest",
        "CreateRuleRequest",
        "DeleteEntityRequest",
        "DeleteRuleRequest",
        "FoundNamespace",
        "ListEntitiesRequest",
        "SetStatusRequest",
        "ShowEntityRequest",
        "create_entity",
        "create_rule",
        "delete_entity",
        "delete_rule",
        "list_entities",
        "read_namespace",
        "set_status",
        "show_entity",
    ),
    "evacuate": ("DeadLettersTo", "EvacuateRequest", "EvacuateResult", "EvacuationPlan", "WrittenPlan", "evacuate"),
    "in_place": (
        "DeadLetterRequest",
        "EditRequest",
        "EditResult",
        "ExplainRequest",
        "ExplainedMessage",
        "PurgeRequest",
        "RescheduleRequest",
        "UndeferRequest",
        "dead_letter_message",
        "edit",
        "explain_message",
        "find_message",
        "purge",
        "reschedule_message",
        "show_message",
        "undefer",
    ),
    "ledgers": ("IncidentReport", "ReportRequest", "report"),
    "move": ("CopyRequest", "MovePlan", "MoveRequest", "MoveResult", "Selection", "copy", "move"),
    "peek": (
        "BrowseRequest",
        "Cause",
        "DeadLetterReason",
        "DeadLetterReasons",
        "ListSessionsRequest",
        "PeekRequest",
        "SessionRequest",
        "Triage",
        "TriageRequest",
        "browse_messages",
        "list_causes",
        "list_dead_letters",
        "list_sessions",
        "peek",
        "set_session_state",
        "show_session",
    ),
    "ping": ("PingRequest", "Pinged", "ping"),
    "promotion": ("PromotionReport", "PromotionRequest", "report_promotion"),
    "provision": ("AppliedPlan", "CleanupRequest", "EmptyRequest", "ProvisionRequest", "cleanup", "empty", "provision"),
    "replication": (
        "JournalStatus",
        "JournalStatusRequest",
        "ProvisionReplicatedRequest",
        "ReplicatedProvision",
        "journal_status",
        "provision_replicated",
    ),
    "restore": ("RestoreRequest", "RestoreResult", "restore"),
    "resubmit": ("Repair", "ResubmitRequest", "Steps", "resubmit"),
    "rules": (
        "CatchAllRequest",
        "TestRulesRequest",
        "TestedMessage",
        "Unmatched",
        "UnmatchedRequest",
        "create_catch_all",
        "find_unmatched",
        "test_rules",
    ),
    "send": ("SendDryRun", "SendRequest", "SentMessages", "plan_send", "send"),
    "status": ("ScrapeRequest", "StatusReport", "StatusRequest", "scrape_namespace", "status", "watch_status"),
}
"""Module -> its names, which are those of its `__all__`; and, with a dot before it, what requests are made of
and verbs raise."""
__all__ = sorted(name for names in _MODULES.values() for name in names)


class _Verbs(ModuleType):
    """This package. Importing a module binds it here under its name, which is that of its verb: the verb is bound."""

    def __setattr__(self, name: str, value: object) -> None:
        named = isinstance(value, ModuleType) and name in _MODULES.get(name, ())
        super().__setattr__(name, getattr(value, name) if named else value)


sys.modules[__name__].__class__ = _Verbs


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
