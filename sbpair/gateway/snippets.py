"""What an application is given: a connection string, as its language or its platform wants it."""

import json
from collections.abc import Callable, Mapping
from typing import Final

VARIABLE: Final = "SERVICEBUS_CONNECTION_STRING"


def _env(text: str) -> str:
    return f"{VARIABLE}='{text}'"


def _json(text: str) -> str:
    return json.dumps({"ConnectionStrings": {"ServiceBus": text}}, indent=2)


def _dotnet(text: str) -> str:
    return (
        "// Azure.Messaging.ServiceBus 7.20.1 or newer takes the port of this connection string in clear only;\n"
        "// older ones want 5672 (plain) or 5671 (TLS).\n"
        f'await using var client = new ServiceBusClient("{text}");'
    )


def _java(text: str) -> str:
    return (
        "ServiceBusSenderClient sender = new ServiceBusClientBuilder()\n"
        f'    .connectionString("{text}")\n'
        '    .sender().queueName("orders").buildClient();'
    )


def _go(text: str) -> str:
    return f'client, err := azservicebus.NewClientFromConnectionString("{text}", nil)'


def _javascript(text: str) -> str:
    return f'const client = new ServiceBusClient("{text}");'


def _spring(text: str) -> str:
    return f'spring:\n  cloud:\n    azure:\n      servicebus:\n        connection-string: "{text}"'


def _k8s(text: str) -> str:
    return f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: servicebus\nstringData:\n  {VARIABLE}: {json.dumps(text)}"


SNIPPETS: Final[Mapping[str, Callable[[str], str]]] = {
    "env": _env,
    "json": _json,
    "dotnet": _dotnet,
    "java": _java,
    "go": _go,
    "javascript": _javascript,
    "spring": _spring,
    "k8s": _k8s,
}
"""By the name that `--snippet` has."""
