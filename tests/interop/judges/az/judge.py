"""Scenarios of Azure's command line, unmodified, against the resource manager of a namespace at ENDPOINT.

Run by the Python that has azure-cli. A JSON line each. What belongs to Azure and not to a namespace is of this program:
the cloud's addresses and the sign-in in files as `az` keeps them, and the endpoint of a managed identity, which gives
tokens that nobody has signed.
"""

import base64
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import parse_qs, urlparse

HOST = os.environ["ENDPOINT"].removeprefix("sb://").partition(":")[0]
SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
AUDIENCE = "https://management.azure.com"
NAMESPACE = ("-g", "group", "--namespace-name", sys.argv[1])


class Identity(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        resource = parse_qs(urlparse(self.path).query).get("resource", [AUDIENCE])[0].rstrip("/")
        until = int(time.time()) + 7200
        parts = [{"alg": "RS256", "typ": "JWT"}, {"aud": resource, "exp": until}]
        encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
        token = ".".join([*encoded, "bm9ib2R5"])
        answer = {"access_token": token, "expires_on": str(until), "resource": resource, "token_type": "Bearer"}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass


def write_settings(folder):
    places = {
        "resource_manager": f"https://{HOST}",
        "management": f"https://{HOST}",
        "active_directory": "https://127.0.0.1",
        "active_directory_resource_id": AUDIENCE,
    }
    lines = "".join(f"endpoint_{name} = {value}\n" for name, value in places.items())
    (folder / "clouds.config").write_text(f"[embedded]\n{lines}")
    (folder / "config").write_text("[cloud]\nname = embedded\n[core]\ncollect_telemetry = no\n")
    user = {"name": "systemAssignedIdentity", "type": "servicePrincipal", "assignedIdentityInfo": "MSI"}
    known = {"id": SUBSCRIPTION, "name": "judge", "state": "Enabled", "isDefault": True, "environmentName": "embedded"}
    known |= {"tenantId": SUBSCRIPTION, "homeTenantId": SUBSCRIPTION, "managedByTenants": [], "user": user}
    profile = {"installationId": SUBSCRIPTION, "subscriptions": [known]}
    (folder / "azureProfile.json").write_text(json.dumps(profile))


def az(*words, fails=""):
    """What a command prints; with `fails` it has to fail with these words."""
    command = [sys.executable, "-m", "azure.cli", *words, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if fails:
        assert done.returncode and fails in done.stderr, f"{words} said {(done.stdout + done.stderr)[-300:]}"
        return None
    assert done.returncode == 0, f"{words} ended with {done.returncode}: {done.stderr[-300:]}"
    return json.loads(done.stdout) if done.stdout.strip() else None


def namespaces():
    names = [one["name"] for one in az("servicebus", "namespace", "list")]
    assert sys.argv[1] in names, names
    found = az("servicebus", "namespace", "show", "-g", "group", "-n", sys.argv[1])
    assert found["sku"]["name"] == "Standard" and HOST in found["serviceBusEndpoint"], found
    assert not az("servicebus", "namespace", "exists", "--name", sys.argv[1])["nameAvailable"]


def queues():
    made = az("servicebus", "queue", "create", *NAMESPACE, "-n", "made", "--max-delivery-count", "4",
              "--lock-duration", "PT30S", "--enable-session", "true")  # fmt: skip
    assert (made["maxDeliveryCount"], made["lockDuration"], made["requiresSession"]) == (4, "PT30S", True), made
    az("servicebus", "queue", "update", *NAMESPACE, "-n", "made", "--max-delivery-count", "6")
    assert az("servicebus", "queue", "show", *NAMESPACE, "-n", "made")["maxDeliveryCount"] == 6
    assert "made" in [one["name"] for one in az("servicebus", "queue", "list", *NAMESPACE)]
    az("servicebus", "queue", "delete", *NAMESPACE, "-n", "made")
    az("servicebus", "queue", "show", *NAMESPACE, "-n", "made", fails="NotFound")


def topics():
    az("servicebus", "topic", "create", *NAMESPACE, "-n", "news")
    below = (*NAMESPACE, "--topic-name", "news")
    az("servicebus", "topic", "subscription", "create", *below, "-n", "german", "--max-delivery-count", "3")
    rule = (*below, "--subscription-name", "german", "-n", "large")
    az("servicebus", "topic", "subscription", "rule", "create", *rule, "--filter-type", "SqlFilter",
       "--filter-sql-expression", "amount > 1000")  # fmt: skip
    found = az("servicebus", "topic", "subscription", "rule", "show", *rule)
    assert found["sqlFilter"]["sqlExpression"] == "amount > 1000", found
    assert az("servicebus", "topic", "show", *NAMESPACE, "-n", "news")["subscriptionCount"] == 1
    az("servicebus", "topic", "delete", *NAMESPACE, "-n", "news")


def keys():
    rule = ("servicebus", "namespace", "authorization-rule")
    az(*rule, "create", *NAMESPACE, "-n", "senders", "--rights", "Send")
    before = az(*rule, "keys", "list", *NAMESPACE, "-n", "senders")
    assert f"sb://{HOST}" in before["primaryConnectionString"], before["primaryConnectionString"].split(";")[0]
    after = az(*rule, "keys", "renew", *NAMESPACE, "-n", "senders", "--key", "PrimaryKey")
    assert before["primaryKey"] != after["primaryKey"] and before["secondaryKey"] == after["secondaryKey"]
    az(*rule, "delete", *NAMESPACE, "-n", "senders")
    assert [one["name"] for one in az(*rule, "list", *NAMESPACE)] == ["RootManageSharedAccessKey"]


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Identity)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        write_settings(Path(folder))
        os.environ |= {
            "AZURE_CONFIG_DIR": folder,
            "REQUESTS_CA_BUNDLE": os.environ["CA_FILE"],
            "IDENTITY_ENDPOINT": f"http://127.0.0.1:{server.server_port}/",
            "IDENTITY_HEADER": "unused",
        }
        for scenario in (namespaces, queues, topics, keys):
            error = None
            try:
                scenario()
            except (AssertionError, LookupError, TypeError, ValueError, subprocess.SubprocessError) as failure:
                error = f"{type(failure).__name__}: {failure}"
            print(json.dumps({"scenario": scenario.__name__, "error": error}), flush=True)
    server.shutdown()


if __name__ == "__main__":
    main()
