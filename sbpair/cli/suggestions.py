"""What completion offers for a value: names out of the configuration, the state of a running emulator, and the code.

Somebody waits at a prompt: nobody is contacted, no secret is read, nothing slow is imported, and where something cannot
be read nothing is offered.
"""

import difflib
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import typer

from sbpair.core.errors import SbpairError

if TYPE_CHECKING:
    from sbpair.settings import Settings


def pairs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the configured pairs, without those that are on the command line already."""
    settings = _settings(ctx)
    given = ctx.params.get("pairs") or ()
    return _matching([name for name in settings.pair_names() if name not in given] if settings else [], incomplete)


def configured_namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the namespaces that the configuration names."""
    settings = _settings(ctx)
    if settings is None:
        return []
    keys = [f"pairs.{pair}.{side}.namespace" for pair in settings.pair_names() for side in ("primary", "secondary")]
    return _matching(sorted({str(name) for key in keys if (name := settings.get(key))}), incomplete)


def misspelt_namespace(ctx: typer.Context) -> str | None:
    """A configured namespace that looks like one on the command line that is none of them."""
    known = configured_namespaces(ctx, "")
    given = [value.partition(":")[0] for value in ctx.params.values() if isinstance(value, str)]
    near = (difflib.get_close_matches(one, known, n=1, cutoff=_ALIKE) for one in given if one not in known)
    return next((found[0] for found in near if found), None)


_ALIKE = 0.8


def entities(ctx: typer.Context, incomplete: str) -> list[str]:
    """Queues and topics that the configuration names for the pair in use."""
    given = ctx.params.get("entity") or ()
    return _matching([name for name in known_entities(ctx) if name not in given], incomplete)


def pairs_and_entities(ctx: typer.Context, incomplete: str) -> list[str]:
    """For a first argument that is either."""
    return [*pairs(ctx, incomplete), *entities(ctx, incomplete)]


def backlog_indexes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Indexes of the backlog queues of the pair in use."""
    from sbpair.core.pairing import DEFAULT_BACKLOG_QUEUE_COUNT

    settings, pair = _settings(ctx), _pair(ctx)
    if settings is None or pair is None:
        return []
    count = settings.get(f"pairs.{pair}.backlog_queues") or DEFAULT_BACKLOG_QUEUE_COUNT
    return _matching(map(str, range(count)), incomplete)


def check_codes(incomplete: str) -> list[tuple[str, str]]:
    """Codes of the audit's checks with their titles."""
    from sbpair.core.inspection.audit import CHECKS

    return [(check.code, check.title) for check in CHECKS if check.code.startswith(incomplete)]


def emulated_namespaces(incomplete: str) -> list[str]:
    """Names of the embedded namespaces that run for this user."""
    from sbpair.settings.state import emulator_state

    try:
        state = emulator_state(os.environ)
    except SbpairError:
        return []
    return _matching(state.connection_string_files if state else (), incomplete)


def parts_of_list(known: Iterable[str], incomplete: str) -> list[str]:
    """Continuations of a list with commas: `path,re` becomes `path,reason`."""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [f"{before}{comma}{one}" for one in known if one.startswith(last) and one not in taken]


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def known_entities(ctx: typer.Context) -> list[str]:
    """Queues and topics that the configuration names for the pair in use."""
    settings, pair = _settings(ctx), _pair(ctx)
    return list((settings.get(f"pairs.{pair}.entities") if settings else None) or ())


def _pair(ctx: typer.Context) -> str | None:
    """Name of the pair on the command line, else of the one that is used without a name."""
    settings = _settings(ctx)
    if settings is None:
        return None
    names = settings.pair_names()
    # An option that still waits for its value ends the parsing: the arguments before it are left where they were.
    for given in (ctx.params.get("pair"), ctx.params.get("first"), *ctx.args):
        if given in names:
            return str(given)
    configured = [name for name in names if name != "local"] or list(names)
    return settings.get("default_pair") or (configured[0] if len(configured) == 1 else None)


def _settings(ctx: typer.Context) -> "Settings | None":
    """The configuration, also one named by --config; read once for each question of the shell."""
    if "settings" not in ctx.meta:
        from sbpair.settings import load

        try:
            ctx.meta["settings"] = load(config=next(_config_options(ctx), None))
        except (SbpairError, OSError):
            ctx.meta["settings"] = None
    settings: Settings | None = ctx.meta["settings"]
    return settings


def _config_options(ctx: typer.Context) -> Iterator[Any]:
    """Values of --config, those after the command's name first."""
    context: Any = ctx
    while context is not None:
        if context.params.get("config") is not None:
            yield context.params["config"]
        context = context.parent
