"""Regions: what Geo-Replication keeps, and what a promotion does."""

from sbpair.emulator.laws.law import documented, fixed, rule

_GEO_REPLICATION = documented("Azure Service Bus Geo-Replication")


class RegionLaws:
    planned_promotion_read_only = rule(
        "From the request of a planned promotion to its end the namespace is read only.",
        _GEO_REPLICATION,
        "geo_replication.py GeoReplication.promote",
        differs="the other region has no address of its own; one namespace is promoted in place, and cuts connections",
    )
    forced_promotion_loses_tail = fixed(
        "A forced promotion loses what asynchronous replication has not brought to the secondary yet.",
        _GEO_REPLICATION,
        "geo_replication.py GeoReplication.promote",
    )
    completions_come_back = fixed(
        "Messages whose completion or deferral was not replicated are there again after a forced promotion.",
        _GEO_REPLICATION,
        "geo_replication.py GeoReplication.drop_message",
        differs="dead-letterings and forwardings of that time are not taken back, and states of sessions stay",
    )
