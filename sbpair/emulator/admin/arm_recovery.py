"""Geo-disaster-recovery pairings of the resource manager: an alias that joins a primary and a secondary namespace.

Pairing, breaking and failing over (see `emulator.geo_recovery`) take effect at once, where the service takes minutes.
An alias has an address only if the emulator was started with it.
"""

from dataclasses import dataclass

from sbpair.emulator import geo_recovery
from sbpair.emulator.admin.arm_keys import access_keys, handle_rules, namespace_holder
from sbpair.emulator.admin.arm_models import ArmDirectory, Json, Scope, object_at, text
from sbpair.emulator.admin.calls import Call, Reply, json_reply, listed, method_not_allowed, only
from sbpair.emulator.geo_recovery import ALONE, PRIMARY, SECONDARY
from sbpair.emulator.geo_recovery import wrong_state as _wrong_state
from sbpair.emulator.namespace import Namespace
from sbpair.engine.errors import bad_request, not_found
from sbpair.service import Tier

_COLLECTION = "disasterRecoveryConfigs"


@dataclass(frozen=True, slots=True)
class RecoveryConfigs:
    """The pairings of one namespace. `directory` leads to the partner, if this resource manager knows it."""

    _directory: ArmDirectory
    _namespace: Namespace
    _scope: Scope
    _host: str

    def handle(self, call: Call, tail: tuple[str, ...]) -> Reply:
        """A request to `…/disasterRecoveryConfigs` and below; `tail` is what follows that word."""
        if not tail:
            return listed(self._resource(alias) for alias in sorted(self._configs))
        if len(tail) == 1 and tail[0].lower() == "checknameavailability":
            return self._check_name(call)
        if len(tail) == 1:
            return self._one(call, tail[0])
        if len(tail) == 2 and call.method == "POST" and tail[1].lower() == "breakpairing":
            return self._break_pairing(tail[0])
        if len(tail) == 2 and call.method == "POST" and tail[1].lower() == "failover":
            return self._fail_over(tail[0])
        if tail[1].lower() == "authorizationrules":
            return self._keys(call, tail[0], tail[2:])
        raise not_found(f"The resource '{call.path}' does not exist.")

    @property
    def _configs(self) -> dict[str, Json]:
        return self._namespace.disaster_recovery_configs

    def _config(self, alias: str) -> Json:
        config = self._configs.get(alias)
        if config is None:
            raise not_found(f"The disaster recovery alias '{alias}' does not exist.")
        return config

    def _resource(self, alias: str) -> Json:
        return self._scope.child(_COLLECTION, alias, properties=self._config(alias))

    def _check_name(self, call: Call) -> Reply:
        only(call, "POST")
        name = text(call.json_object().get("name"), "name")
        taken = name in self._configs or self._directory.find(name) is not None
        reason = "NameInUse" if taken else "None"
        message = f"The name '{name}' is in use." if taken else ""
        return json_reply({"nameAvailable": not taken, "reason": reason, "message": message})

    def _one(self, call: Call, alias: str) -> Reply:
        if call.method == "GET":
            return json_reply(self._resource(alias))
        if call.method == "PUT":
            created = alias not in self._configs
            self._pair(alias, object_at(call.json_object(), "properties"))
            return json_reply(self._resource(alias), 201 if created else 200)
        if call.method == "DELETE":
            return self._delete(alias)
        raise method_not_allowed(call)

    def _pair(self, alias: str, properties: Json) -> None:
        if self._namespace.tier is not Tier.PREMIUM:
            raise bad_request("Geo-disaster recovery is only available for namespaces of the 'Premium' tier.")
        old = self._configs.get(alias, {})
        partner_id = text(properties.get("partnerNamespace") or "", "partnerNamespace")
        if old.get("role") == SECONDARY:
            raise _wrong_state("The pairing can only be changed on the primary namespace.")
        if old.get("partnerNamespace") and partner_id != old["partnerNamespace"]:
            raise _wrong_state(f"The alias '{alias}' is paired already; break the pairing first.")
        partner = self._partner(partner_id)
        if partner is self._namespace:
            raise bad_request("A namespace cannot be its own partner.")
        own = _config(PRIMARY if partner_id else ALONE, partner_id, properties)
        if partner is None:
            self._configs[alias] = own
        else:
            there = _config(SECONDARY, self._scope.id, properties)
            geo_recovery.pair(alias, self._namespace, partner, (own, there))

    def _delete(self, alias: str) -> Reply:
        config = self._configs.get(alias)
        if config is None:
            return Reply(204)
        if config["partnerNamespace"]:
            raise _wrong_state(f"The alias '{alias}' is paired; break the pairing before deleting it.")
        del self._configs[alias]
        return Reply(200)

    def _break_pairing(self, alias: str) -> Reply:
        config = self._config(alias)
        if config["role"] != PRIMARY:
            raise _wrong_state("The pairing can only be broken on the primary namespace.")
        geo_recovery.part(alias, self._namespace)
        return Reply(200)

    def _fail_over(self, alias: str) -> Reply:
        self._config(alias)
        geo_recovery.fail_over(alias, self._namespace)
        return Reply(200)

    def _keys(self, call: Call, alias: str, tail: tuple[str, ...]) -> Reply:
        self._config(alias)
        holder = namespace_holder(self._namespace)
        if len(tail) == 2 and tail[1].lower() == "listkeys" and call.method == "POST":
            rule = holder.find(tail[0])
            if rule is None:
                raise not_found(f"The authorization rule '{tail[0]}' does not exist.")
            return json_reply(access_keys(rule, self._host, alias=alias))
        only(call, "GET")
        return handle_rules(call, self._scope, holder, tail, self._host)

    def _partner(self, partner_id: str) -> Namespace | None:
        found = self._directory.find(partner_id.rpartition("/")[2]) if partner_id else None
        return None if found is None else found[0]


def _config(role: str, partner: str, properties: Json) -> Json:
    config: Json = {
        "provisioningState": "Succeeded",
        "pendingReplicationOperationsCount": 0,
        "partnerNamespace": partner,
        "role": role,
    }
    if properties.get("alternateName"):
        config["alternateName"] = text(properties["alternateName"], "alternateName")
    return config
