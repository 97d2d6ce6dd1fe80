"""Stands in for azure-mgmt-resource: the suite names its client, and uses it only to make resource groups."""


class ResourceManagementClient:
    """Never made: SERVICEBUS_RESOURCE_GROUP names a group that exists."""
