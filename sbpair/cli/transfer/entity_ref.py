"""Which entity of which namespace: `ENTITY`, or `NAMESPACE:ENTITY`, for the commands that work on any of them."""

import shlex
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sbpair.cli import suggestions
from sbpair.cli.asking import LOCAL_PAIR, named, will_ask
from sbpair.cli.context import Stop, load_settings, run_async
from sbpair.cli.options import Options, OptionSet
from sbpair.core.access import AuthMethod, NamespaceAccess
from sbpair.core.entities import EntityKind
from sbpair.core.errors import EntityDisabledError, EntityNotFoundError, InvalidNameError, ServiceError, UsageError
from sbpair.core.names import SUBSCRIPTIONS, Names, check_entity_path, same_name, split_source, subscription_of
from sbpair.core.pairing import Side

if TYPE_CHECKING:
    from sbpair.ports import Ends
    from sbpair.settings import Settings

T = TypeVar("T")
EntityArgument = Annotated[
    str,
    typer.Argument(
        metavar="ENTITY",
        help="A queue, or TOPIC/Subscriptions/NAME; NAMESPACE:ENTITY for one of another namespace.",
        autocompletion=suggestions.entities,
    ),
]


def namespace_option(text: str) -> typer.models.OptionInfo:
    """`--namespace`, with the help of one command."""
    option: typer.models.OptionInfo = typer.Option(
        "--namespace", metavar="NAME", help=text, autocompletion=suggestions.configured_namespaces
    )
    return option


NamespaceAuthOption = Annotated[
    AuthMethod | None,
    typer.Option(help="Credential for a namespace that is not configured.", show_default="configured"),
]


@dataclass(frozen=True, slots=True)
class NamespaceOptions(OptionSet):
    """Options that name the namespace of an entity."""

    namespace: Annotated[
        str | None, namespace_option("Name or host of the entity's namespace. Default: a side of a pair.")
    ] = None
    pair: Annotated[
        str | None,
        typer.Option(
            help="Pair whose side the entity is on.", show_default="the only pair", autocompletion=suggestions.pairs
        ),
    ] = None
    side: Annotated[Side, typer.Option(help="Side of the pair.")] = Side.PRIMARY
    auth: NamespaceAuthOption = None


@dataclass(frozen=True, slots=True)
class EntityRef:
    """An entity of a namespace."""

    access: NamespaceAccess
    path: str
    environment: str | None
    named: bool
    """Somebody said which namespace it is on; otherwise it is the one that is there."""

    def __str__(self) -> str:
        return f"{self.path} on {self.namespace}"

    @property
    def namespace(self) -> str:
        """What sentences call its namespace."""
        return named(self.access, self.environment)

    @property
    def is_subscription(self) -> bool:
        return subscription_of(self.path) is not None

    def on_same_namespace(self, other: "EntityRef") -> bool:
        return self.access.host == other.access.host


def find_entity_ref(
    settings: "Settings", on: NamespaceOptions, text: str, beside: EntityRef | None = None
) -> EntityRef:
    """The entity that was named. `beside`: without a namespace of its own it is on that one's.

    Raises:
        UsageError: no path of an entity, two namespaces for one entity, or a namespace that cannot be found out.
    """
    name, colon, path = text.rpartition(":")
    path = _checked(path)
    if colon and on.namespace is not None and beside is None and name != on.namespace:
        raise UsageError(f"{text!r} and --namespace {on.namespace} name two namespaces. Give one of them.")
    named = True
    if colon:
        access = settings.named_namespace(name, on.auth)
    elif beside is not None:
        access = beside.access
    else:
        access, named = find_namespace(settings, on)
    return EntityRef(access, path, settings.environment_of(access), named)


def find_namespace(settings: "Settings", on: NamespaceOptions) -> tuple[NamespaceAccess, bool]:
    """The namespace that the options mean, and whether somebody named it (see `EntityRef.named`).

    Raises:
        ConfigurationError: it cannot be found out.
    """
    if on.namespace is not None:
        return settings.named_namespace(on.namespace, on.auth), True
    chosen, access = settings.side_in_use(on.pair, on.side)
    return access, on.pair is not None or settings.get("default_pair") is not None or chosen == LOCAL_PAIR


@asynccontextmanager
async def open_places(source: EntityRef, target: EntityRef | None = None) -> "AsyncIterator[Ends]":
    """The open namespaces of one or two entities. An entity that does not exist is compared with those that do, where
    the credential may list them."""
    import asyncio

    from sbpair.connect import open_ends

    async with open_ends(source.access, None if target is None else target.access) as ends:
        try:
            yield ends
        except EntityDisabledError as error:
            path = split_source(error.entity or source.path)[0]
            place = source if target is None or same_name(path, source.path) else target
            error.hint = error.hint.replace("NAMESPACE:ENTITY", shlex.quote(f"{place.access.label}:{path}"))
            raise
        except EntityNotFoundError as error:
            missing = split_source(error.entity or source.path)[0]
            at_source = target is None or same_name(missing, source.path)
            topology = ends.topology if at_source else ends.target_topology
            if topology is None:
                raise
            try:
                async with asyncio.timeout(_LIST_SECONDS):
                    known = {one.path: one.kind for one in await topology.entities(rules=False)}
            except (ServiceError, TimeoutError):
                raise error from None
            error.entity = missing
            error.looking_like(known)
            if missing in Names(path for path, kind in known.items() if kind is EntityKind.TOPIC):
                error.hint = f"It is a topic. Name one of its subscriptions: {missing}/Subscriptions/NAME"
            elif missing.lower() in (source.access.label, source.access.host):
                error.hint = f"That is the name of a namespace: --namespace {missing}"
            raise error from None


def call_at(options: Options, place: EntityRef, verb: Callable[..., Coroutine[Any, Any, T]], request: Any) -> T:
    """What a verb returns for the open namespace of an entity."""

    async def work(stop: Stop) -> T:
        async with open_places(place) as ends:
            return await verb(ends, request, stop=stop)

    return run_async(options, work)


_LIST_SECONDS = 5.0


def _checked(path: str) -> str:
    queue, dead_letter = split_source(path)
    if dead_letter:
        raise UsageError(f"{path!r} is a dead-letter queue; name {queue!r}, and use `sbpair dlq`.")
    try:
        normal = check_entity_path(path)
    except InvalidNameError as error:
        raise UsageError(error.message, hint=error.hint) from error
    if subscription_of(normal) is None and SUBSCRIPTIONS in normal.lower().split("/"):
        raise UsageError(f"{path!r} is no path of a subscription: TOPIC/Subscriptions/NAME.")
    return normal


def entity_to_write(options: Options, settings: "Settings", on: NamespaceOptions, text: str) -> EntityRef:
    """As `find_entity_ref`. What writes wants to be told where, unless somebody is there who is asked; a dry run does
    not.

    Raises:
        UsageError: as that; or nobody named the namespace, and nobody can be asked.
    """
    place = find_entity_ref(settings, on, text)
    refuse_unnamed(options, place)
    return place


def refuse_unnamed(options: Options, place: EntityRef) -> None:
    """Raises UsageError for a place that nobody named, where it is written to and nobody can be asked."""
    if not (place.named or options.dry_run or will_ask(options)):
        raise UsageError(
            "No namespace was named, and this command writes. Nothing was done.",
            hint=f"Name it: --namespace {place.access.label}",
        )


@dataclass(frozen=True, slots=True)
class EntityOptions(OptionSet):
    """The entity that a command is about, and its namespace."""

    entity: EntityArgument
    namespace_options: NamespaceOptions

    def find(self, options: Options) -> EntityRef:
        """The entity. Raises: see `find_entity_ref`."""
        return find_entity_ref(load_settings(options), self.namespace_options, self.entity)

    def to_write(self, options: Options) -> EntityRef:
        """The same for a command that writes. Raises: see `entity_to_write`."""
        return entity_to_write(options, load_settings(options), self.namespace_options, self.entity)

    def and_target(self, options: Options, to: str | None) -> tuple[EntityRef, EntityRef]:
        """The same, and where its messages go again: where `to` says, otherwise to itself.

        Raises:
            UsageError: it is a subscription, to which nothing can be sent alone; or as `entity_to_write`.
        """
        from sbpair.operations.resubmit import own_destination

        settings, on = load_settings(options), self.namespace_options
        source = entity_to_write(options, settings, on, self.entity)
        if to is not None:
            return source, find_entity_ref(settings, on, to, source)
        return source, replace(source, path=own_destination(source.path))
