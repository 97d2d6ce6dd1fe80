"""Preparers: decorators that make resources before a test, hand them over as keyword arguments, and remove them after.

A preparer wraps the next one or the test. Each gets the keyword arguments of those outside of it; the test gets those
it has parameters for. A cached resource is made once per process and stays.
"""

import functools
import inspect
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

Arguments = dict[str, Any]
Test = Callable[..., Any]

CREDENTIAL_SCOPE = "https://management.azure.com/.default"
NAMESPACE_PARAMETER = "servicebus_namespace"


@dataclass
class FakeResource:
    """A resource that is but a name."""

    name: str
    id: str


class AzureMgmtPreparer:
    """The base of all preparers; `create_resource` and `remove_resource` are for those that inherit."""

    _cached: ClassVar[dict[tuple[Any, ...], Arguments]] = {}

    def __init__(
        self,
        name_prefix: str = "",
        random_name_length: int = 75,
        *,
        random_name_enabled: bool = False,
        client_kwargs: Arguments | None = None,
        **ignored: Any,
    ) -> None:
        self.name_prefix = name_prefix
        self.random_name_enabled = random_name_enabled
        self.random_name_length = random_name_length
        self.client_kwargs = client_kwargs or {}
        self.is_live = True
        self.resource: Any = None
        self.resource_random_name: str | None = None
        self.resource_moniker: str | None = None
        self.test_class_instance: object = None
        self.cache_key: tuple[Any, ...] | None = None

    @property
    def moniker(self) -> str:
        """The name recordings would show."""
        return self.resource_moniker or self.name_prefix

    def set_cache(self, enabled: bool, *key: Any) -> None:
        """Whether one resource serves all tests that ask with the same key."""
        self.cache_key = (type(self), self.name_prefix, *map(str, key)) if enabled else None

    def create_resource(self, name: str, **kwargs: Any) -> Arguments:
        """Make the resource; what it returns becomes arguments of the test."""
        return {}

    def remove_resource(self, name: str, **kwargs: Any) -> None:
        """Remove the resource."""

    def create_mgmt_client(self, kind: Callable[..., Any], base_url: str = "", **kwargs: Any) -> Any:
        """A client of the resource manager."""
        from devtools_testutils import get_credential

        return kind(
            get_credential(),
            "00000000-0000-0000-0000-000000000000",
            base_url=base_url,
            credential_scopes=[CREDENTIAL_SCOPE],
            **self.client_kwargs,
        )

    def __call__(self, inner: Test) -> Test:
        if inspect.iscoroutinefunction(inner):

            async def run_async(instance: object, **kwargs: Any) -> None:
                with self._prepared(instance, kwargs) as arguments:
                    await inner(instance, **_accepted(inner, arguments))

            return functools.update_wrapper(run_async, inner)

        def run(instance: object, **kwargs: Any) -> None:
            with self._prepared(instance, kwargs) as arguments:
                inner(instance, **_accepted(inner, arguments))

        return functools.update_wrapper(run, inner)

    @contextmanager
    def _prepared(self, instance: object, arguments: Arguments) -> Iterator[Arguments]:
        self.test_class_instance = instance
        name = self._name()
        made = self._cached.get(self._full_key(arguments)) if self.cache_key else None
        if made is None:
            made = self.create_resource(name, **arguments)
            if self.cache_key:
                self._cached[self._full_key(arguments)] = made
        try:
            yield arguments | made
        finally:
            if not self.cache_key:
                self.remove_resource(name, **arguments)

    def _full_key(self, arguments: Arguments) -> tuple[Any, ...]:
        """A resource depends on those it lives in as well."""
        parents = [getattr(arguments[name], "name", "") for name in sorted(arguments) if "servicebus" in name]
        return (*(self.cache_key or ()), *parents)

    def _name(self) -> str:
        if getattr(self, "parameter_name", "") == NAMESPACE_PARAMETER:
            return os.environ["LIVE_SUITE_NAMESPACE"]
        if self.resource_random_name:
            return self.resource_random_name
        if not self.random_name_enabled:
            return self.name_prefix or "group"
        length = self.random_name_length - len(self.name_prefix)
        return self.name_prefix + secrets.token_hex(16)[: max(length, 1)]


def PowerShellPreparer(prefix: str, **names: str) -> Callable[[Test], Test]:
    """Hands over what a deployment script would have put into the environment."""
    known: dict[str, str] = json.loads(os.environ["LIVE_SUITE_VALUES"])
    values = {name: known.get(name, fallback) for name, fallback in names.items()}

    def decorate(test: Test) -> Test:
        accepted = _accepted(test, values)
        if inspect.iscoroutinefunction(test):

            async def run_async(instance: object) -> Any:
                return await test(instance, **accepted)

            return _without_signature(run_async, test)

        def run(instance: object) -> Any:
            return test(instance, **accepted)

        return _without_signature(run, test)

    return decorate


def _accepted(test: Test, arguments: Arguments) -> Arguments:
    """Those arguments the test (or the next preparer, which takes all) has parameters for."""
    parameters = inspect.signature(test, follow_wrapped=False).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(arguments)
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in arguments.items() if name in names}


def _without_signature(run: Test, test: Test) -> Test:
    """Give the wrapper the test's name and marks but not its parameters, which pytest would look up as fixtures."""
    functools.update_wrapper(run, test)
    del run.__wrapped__  # type: ignore[attr-defined]
    return run
