"""SASL mechanisms as the service offers them (AMQP 1.0 §5.3).

ANONYMOUS, EXTERNAL and MSSBCBS let everybody in; what they may do is decided by tokens put to `$cbs`. PLAIN brings a
key's name and the key itself, which must be one of the namespace's.
"""

import hmac
from typing import Final

from sbpair.emulator.auth import ALL_RIGHTS, MANAGE, Claims
from sbpair.emulator.link import NamespaceView

MECHANISMS: Final = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")


def sasl_claims(namespace: NamespaceView, mechanism: str, response: bytes) -> list[Claims] | None:
    """What the client may do by its SASL login alone; None when the login fails."""
    if mechanism == "PLAIN":
        return _plain_claims(namespace, response)
    return [] if mechanism in MECHANISMS else None


def _plain_claims(namespace: NamespaceView, response: bytes) -> list[Claims] | None:
    parts = response.split(b"\x00")
    if len(parts) != 3:
        return None
    key_name = parts[1].decode("utf-8", "replace")
    rule = namespace.auth_rules_for("").get(key_name)
    keys = () if rule is None else (rule.primary_key, rule.secondary_key)
    if rule is None or not any(hmac.compare_digest(key.encode(), parts[2]) for key in keys if key):
        return None
    rights = frozenset(str(right) for right in rule.rights)
    return [Claims("", ALL_RIGHTS if MANAGE in rights else rights, float("inf"), key_name)]
