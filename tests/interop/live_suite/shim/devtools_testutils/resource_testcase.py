"""Names the preparers agree on."""

RESOURCE_GROUP_PARAM = "resource_group"
