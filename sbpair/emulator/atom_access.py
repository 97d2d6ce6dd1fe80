"""Who may administer what on the data plane.

Manage on the entity or above it is needed for everything, except that the rules of a subscription may be handled with
Listen (the service's table of rights for shared access signatures). Entra tokens carry the rights the namespace maps.
"""

from sbpair.emulator.admin_calls import Call
from sbpair.emulator.auth import LISTEN, MANAGE, AuthError, Rights, authenticate
from sbpair.emulator.errors import EntityError
from sbpair.emulator.namespace import Namespace

_OPERATIONS = {"GET": "EntityRead", "PUT": "EntityWrite", "DELETE": "EntityDelete"}


def allow(namespace: Namespace, call: Call, path: str, *, rules: bool = False) -> None:
    """Raise EntityError 401 unless the request's token has the rights for `path`; `rules`: Listen is enough."""
    # Clients sign what they ask for, which may lie below `path`: a rule of a subscription, a page of a list.
    rights = token_rights(namespace, call, path, resource=call.path)
    if MANAGE in rights or (rules and LISTEN in rights):
        return
    operation = _OPERATIONS.get(call.method, "EntityRead")
    raise unauthorized(
        f"Unauthorized access for '{MANAGE},{operation}' operation on endpoint 'sb://{call.host}/{path}'.", 40100
    )


def token_rights(namespace: Namespace, call: Call, path: str, *, resource: str | None = None) -> Rights:
    """The rights of the request's token on `path`; EntityError 401 if there is none or it is not valid.

    `resource` is what the token must be for, if that is not `path` itself.
    """
    token = call.headers.get("authorization", "")
    if not token:
        raise unauthorized("MissingToken: The 'Authorization' header of the request is missing.")
    try:
        claims = authenticate(
            namespace.auth_rules_for(path),
            token,
            path if resource is None else resource,
            call.now,
            allow_entra=namespace.allow_entra,
            entra_rights=namespace.entra_rights,
        )
    except AuthError as error:
        raise unauthorized(str(error)) from error
    return claims.rights


def unauthorized(message: str, sub_code: int | None = None) -> EntityError:
    """HTTP 401."""
    return EntityError(401, sub_code, message, "Unauthorized")
