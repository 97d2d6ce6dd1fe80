"""The room that knows the Azure SDKs, and the only one.

messaging        Messaging: makes senders and receivers (`sender`, `receiver`, `mover`) over `links` that open again
wire             the lossless hook, private attributes of the SDK, self test; `frames`: what is read from and put around
                 encoded messages
administration   NamespaceAdmin over the data plane (`atom`); `management`: over Azure Resource Manager; `client` and
                 `http`: what both stand on
credentials      Entra ID credentials by name, one at a time
errors           the one table from foreign exceptions to ours

The functions here are the one place that chooses which adapter serves a namespace.
"""

from sbpair.core.access import AuthMethod, ControlPlane, NamespaceAccess
from sbpair.ports import NamespaceAdmin, Topology, TransactedMessaging


def make_messaging(access: NamespaceAccess) -> TransactedMessaging:
    """The messaging side of a namespace. Connects on first use."""
    from sbpair.azure.messaging import AzureMessaging

    return AzureMessaging(access)


def make_admin(access: NamespaceAccess) -> NamespaceAdmin:
    """The control plane of a namespace, chosen by `access.control_plane` (`auto`: see `chosen_plane`)."""
    if chosen_plane(access) is ControlPlane.ARM:
        from sbpair.azure.management import ArmAdmin

        return ArmAdmin(access)
    from sbpair.azure.administration import DataPlaneAdmin

    return DataPlaneAdmin(access)


def make_topology(access: NamespaceAccess) -> Topology:
    """All entities of a namespace. Always by the data plane, whatever control plane is configured: the resource manager
    gives a namespace's entities to another role, and tells nothing of them that the data plane does not."""
    from sbpair.azure.administration import DataPlaneTopology

    return DataPlaneTopology(access)


def chosen_plane(access: NamespaceAccess) -> ControlPlane:
    """`auto` means the data plane with a connection string, ARM where subscription and resource group are known,
    otherwise the data plane."""
    if access.control_plane is not ControlPlane.AUTO:
        return access.control_plane
    with_key = access.auth is AuthMethod.CONNECTION_STRING or access.connection_string is not None
    if not with_key and access.subscription and access.resource_group:
        return ControlPlane.ARM
    return ControlPlane.DATA_PLANE
