"""Refusals as the two administration APIs write them, with the tracking text every answer of the service carries."""

from collections.abc import Mapping
from uuid import uuid4

from sbpair.emulator import atom_xml
from sbpair.emulator.admin_calls import Call, Reply, json_reply
from sbpair.emulator.admin_values import format_log_time
from sbpair.emulator.errors import EntityError

MORE = "To know more visit https://aka.ms/sbResourceMgrExceptions."


def atom_error(error: EntityError, call: Call, headers: Mapping[str, str] | None = None) -> Reply:
    """A refusal of the data-plane API: `<Error><Code/><Detail/></Error>`."""
    body = atom_xml.error(error.http_status, f"{_sentence(error)} {tracking(call)}")
    return Reply(error.http_status, body.render().encode(), "application/xml; charset=utf-8", headers or {})


def arm_error(error: EntityError, call: Call, headers: Mapping[str, str] | None = None) -> Reply:
    """A refusal of the resource manager: `{"error": {"code", "message"}}`."""
    message = f"{_sentence(error)} CorrelationId: {uuid4()}"
    return json_reply({"error": {"code": error.code, "message": message}}, error.http_status, headers)


def tracking(call: Call) -> str:
    """`TrackingId:…, SystemTracker:…, Timestamp:…`, by which the service's support finds a request."""
    tracker = ":".join(part for part in (call.host.partition(":")[0], call.path) if part)
    return f"TrackingId:{uuid4()}_G0, SystemTracker:{tracker}, Timestamp:{format_log_time(call.now)}"


def _sentence(error: EntityError) -> str:
    if error.sub_code is None:
        return error.message
    return f"SubCode={error.sub_code}. {error.message} {MORE}"
