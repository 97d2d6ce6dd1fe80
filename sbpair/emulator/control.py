"""Client of a running emulator's fault control endpoint, for the command line and for scripts in other processes."""

import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from typing import Any

from sbpair.engine.auth import make_sas_token

_TOKEN_SECONDS = 300
_MOST_BYTES = 16 * 1024 * 1024


class ControlError(Exception):
    """The emulator could not be asked, or refused; the text says which."""


class FaultControl:
    """Lists and changes the faults of one namespace over HTTPS.

    `endpoint` is the emulator's control port, `host:port`; `ca_file` its authority; the key is one of the namespace
    with the Manage right.

    Raises:
        ControlError: the authority's file cannot be used.
    """

    def __init__(self, endpoint: str, namespace: str, *, ca_file: str, key_name: str, key: str) -> None:
        self._resource = f"https://{endpoint}/$emulator/faults"
        self._url = f"https://{endpoint}/{namespace}/$emulator"
        try:
            trusting = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file))
        except OSError as error:
            raise ControlError(f"the certificate authority {ca_file} cannot be used: {error}") from error
        # The token goes to the emulator and nowhere else: through no proxy, and along with no redirect.
        self._opener = urllib.request.build_opener(trusting, urllib.request.ProxyHandler({}), _NoRedirects())
        self._key = (key_name, key)

    def list(self) -> "list[dict[str, Any]]":
        found = self._ask("GET", "/faults").get("value")
        if not isinstance(found, list):
            raise ControlError(f"{self._url} does not answer as an emulator does")
        return found

    def add(self, text: str) -> dict[str, Any]:
        """Add a fault in its text form, e.g. `throttle:entity=orders,for=30s`."""
        return self._ask("POST", "/faults", {"text": text})

    def remove(self, fault_id: str) -> None:
        self._ask("DELETE", f"/faults/{fault_id}")

    def fail_over(self, alias: str) -> str:
        """Have an alias lead to the other namespace of its pair; that namespace's name."""
        return str(self._ask("POST", f"/failover/{alias}").get("namespace", ""))

    def clear(self) -> None:
        self._ask("DELETE", "/faults")

    def _ask(self, method: str, tail: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        token = make_sas_token(self._resource, *self._key, time.time() + _TOKEN_SECONDS)
        request = urllib.request.Request(
            self._url + tail,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": token, "Content-Type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=10) as answer:
                text = answer.read(_MOST_BYTES)
            return _object(text)
        except urllib.error.HTTPError as error:
            raise ControlError(_message_of(error.read(_MOST_BYTES)) or str(error)) from error
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(f"no answer from {self._url}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise ControlError(f"{self._url} does not answer as an emulator does") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other, and none that an emulator gives."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Do not follow."""


def _object(text: bytes) -> dict[str, Any]:
    """The JSON object of an answer; empty for none. ValueError for anything else."""
    read = json.loads(text) if text else {}
    if not isinstance(read, dict):
        raise ValueError("not an object")
    return read


def _message_of(body: bytes) -> str:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""
    return _COSTUME.sub("", message)


_COSTUME = re.compile(r"^SubCode=\d+\. | To know more visit .*$", re.DOTALL)
"""What the resource manager puts around a sentence, which says nothing about a fault."""
