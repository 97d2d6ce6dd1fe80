"""The control endpoint of a running emulator: `/$emulator/faults`.

    GET                       the rules in force
    POST  {"text": "throttle:entity=orders,for=30s"}  or  {"kind": "throttle", "entity": "orders", "for": 30}
    DELETE /$emulator/faults/{id}       one rule;  DELETE /$emulator/faults   all of them
    POST   /$emulator/failover/{alias}  have an alias of Geo-disaster recovery lead to the other namespace

The root key (or any key of the namespace with Manage) must sign the token in the `Authorization` header. The endpoint
itself is never hit by a fault that is answered over HTTP, so that a fault can always be taken back.
"""

from sbpair.emulator.admin.atom import allow
from sbpair.emulator.admin.calls import Call, Reply, arm_error, json_reply, method_not_allowed
from sbpair.emulator.geo_recovery import fail_over_pair
from sbpair.emulator.namespace import Namespace
from sbpair.engine.errors import EntityError, bad_request, not_found
from sbpair.engine.faults import FaultError, FaultRule, fault_to_json, parse_json

RESOURCE = "$emulator/faults"
"""What a token for this endpoint alone is signed for."""


def is_control_path(segments: tuple[str, ...]) -> bool:
    """Whether a path belongs to the emulator itself."""
    return bool(segments) and segments[0].lower() == "$emulator"


def handle_control(namespace: Namespace, call: Call) -> Reply:
    """Answer one request; refusals have the body of the resource manager's errors."""
    try:
        allow(namespace, call, RESOURCE)
        return _route(namespace, call)
    except EntityError as error:
        return arm_error(error, call)
    except FaultError as error:
        return arm_error(bad_request(str(error)), call)


def _route(namespace: Namespace, call: Call) -> Reply:
    faults = namespace.faults
    words = tuple(segment.lower() for segment in call.segments[1:])
    match (call.method, *words):
        case ("GET", "faults"):
            return json_reply({"value": [fault_to_json(fault) for fault in faults.list()]})
        case ("POST", "faults"):
            fault_id = faults.add(_rule(call))
            added = next(fault for fault in faults.list() if fault.id == fault_id)
            return json_reply(fault_to_json(added), 201)
        case ("DELETE", "faults"):
            faults.clear()
            return Reply(204)
        case ("DELETE", "faults", fault_id):
            if not faults.remove(fault_id):
                raise not_found(f"There is no fault '{fault_id}'.")
            return Reply(204)
        case ("POST", "failover", _):
            alias = call.segments[2]
            return json_reply({"alias": alias, "namespace": fail_over_pair(alias, namespace).name})
        case (_, "faults" | "failover", *_):
            raise method_not_allowed(call)
    raise not_found(f"The resource '{call.path}' does not exist.")


def _rule(call: Call) -> FaultRule | str:
    body = call.json_object()
    text = body.get("text")
    if isinstance(text, str) and len(body) == 1:
        return text
    return parse_json(body)
