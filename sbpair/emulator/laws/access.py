"""Keys, tokens and rights."""

from sbpair.emulator.laws.law import documented, fixed, inferred, reported, rule

_SAS = documented("Service Bus access control with Shared Access Signatures")


class AccessLaws:
    local_auth_disabled = rule(
        "A namespace whose keys are switched off (disableLocalAuth) says so: 401, LocalAuthDisabled.",
        reported("pnp/Microsoft365-Analytics-Insights issue 138, Azure/azure-sdk-for-java issue 37010"),
        "namespace.py SharedAccess.signers",
    )
    rights_of_links = fixed(
        "A sender needs Send, a receiver Listen, a request node one of them.", _SAS, "endpoints.py _check_rights"
    )
    manage_has_all_rights = rule(
        "A rule with Manage has Send and Listen as well.", _SAS, "validation.py authorization_rule"
    )
    tokens_end_links = fixed(
        "A link ends with the newest token for its entity, and with the key that signed it.",
        inferred("AMQP 1.0 in Azure Service Bus protocol guide"),
        "../engine/connection.py Connection",
    )
    identities = fixed(
        "Identities have the rights of their role assignments; private endpoints and firewalls keep others out.",
        documented("Authenticate and authorize an application with Microsoft Entra ID"),
        "../engine/auth.py _check_bearer",
        differs="a bearer token must be for the service and valid now; anybody can have signed it, and it has all "
        "rights",
    )
    other_machines = fixed(
        "A namespace is reached from every network that it allows.",
        documented("Allow access to Azure Service Bus namespaces from specific IP addresses"),
        differs="`sbpair emulator` listens on this machine alone unless told otherwise (--host, --tls-name); beyond it "
        "bearer tokens are off (--bearer-tokens)",
    )
