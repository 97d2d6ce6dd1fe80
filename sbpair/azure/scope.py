"""Connection strings of one entity (`EntityPath=...`): good for that entity, as with the SDKs, and for nothing else."""

from sbpair.core.access import NamespaceAccess, entity_path_of
from sbpair.core.errors import UnauthorizedError


def check_scope(access: NamespaceAccess, entity: str | None, tried: str) -> None:
    """Refuse what the connection string is not for, before the service refuses it in words that do not tell why.

    `entity`: the path that is worked on; sub-queues and subscriptions belong to theirs. None: the whole namespace.

    Raises:
        UnauthorizedError: the connection string is for another entity.
    """
    bound = entity_path_of(access)
    if bound is None or (entity is not None and f"{entity}/".lower().startswith(f"{bound}/".lower())):
        return
    raise UnauthorizedError(
        f"Could not {tried}: the connection string is for {bound} alone (EntityPath={bound}).",
        hint="Give a connection string of the namespace; if its key is the namespace's, take `;EntityPath=...` out.",
        entity=entity,
    )
