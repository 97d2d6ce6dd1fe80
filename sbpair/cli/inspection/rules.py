"""`sbpair rules test` and `rules unmatched`."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from sbpair import operations
from sbpair.cli.context import system_clock
from sbpair.cli.failover.send import named_values, open_input
from sbpair.cli.inspection.entity_commands import DRY_RUN, asked_of, make_change
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import EntityOptions, call_at
from sbpair.core.errors import UsageError
from sbpair.core.inspection.entity import Changed
from sbpair.core.names import subscription_path
from sbpair.core.redact import quoted
from sbpair.core.rewrite import TEXT_FIELDS
from sbpair.core.rules import MOST_SQL_CHARACTERS, TestedRule, Unmatched, UnmatchedMessage
from sbpair.operations.lines import InputFormat, properties_of, record_of, to_payload
from sbpair.render.result import CommandResult, concluded, table_of
from sbpair.sqlfilter.expressions import Constant
from sbpair.sqlfilter.parser import parse_filter
from sbpair.sqlfilter.values import FilterSyntaxError

UnmatchedPrinted = Unmatched | Changed


@command(output="core.rules:TestedMessage")
def test(
    options: Options,
    of: EntityOptions,
    message: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A message as for `sbpair send`: JSON, or a line of `peek -o jsonl`."),
    ] = None,
    property_: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME=VALUE",
            help="Of the message, also beside FILE: country=DE, amount=7 (a number), id='7' (a text), sys.Label=new; "
            "repeatable.",
        ),
    ] = None,
) -> CommandResult:
    """Say which subscriptions of a topic take a message, by which rule, what its action changes, and why others do not.

    ENTITY is the topic. Nothing is sent. For each rule that does not take it, the parts of its filter that are false or
    unknown are named with what the message has. A message that no subscription takes is dropped by the service: exit
    code 5. Needs Manage.

    \b
    Examples:
      sbpair rules test news --property country=DE --property sys.Label=invoice
      sbpair rules test contoso-weu:news --message message.json -o json
    """
    place = of.find(options)
    request = operations.TestRulesRequest(place.path, _payload(message, property_ or ()))
    found = call_at(options, place, operations.test_rules, request)
    return concluded(found, table_of(TestedRule, found.rules))


def _payload(file: Path | None, properties: Sequence[str]) -> bytes:
    text = b"{}"
    if file is not None:
        with open_input(file) as opened:
            text = opened.read().strip()
    if properties:
        record = record_of(text)
        if "payload_base64" in record:
            raise UsageError(f"{file} has the exact bytes of a message: --property cannot be added to it.")
        user = dict(properties_of(record))
        for name, value in named_values(properties).items():
            if not name.lower().startswith("sys."):
                user[name.removeprefix("user.")] = _value(value)
            elif (field := _SYSTEM.get(name[4:].lower())) is not None:
                record[field] = value
            else:
                known = ", ".join(f"sys.{one}" for one in _SYSTEM)
                raise UsageError(f"--property: {quoted(name)} cannot be set.", hint=f"There is {known}.")
        text = json.dumps(record | {"application_properties": user}).encode()
    return to_payload(text, InputFormat.JSONL, now=system_clock().now().timestamp())


_SYSTEM = {name.replace("_", ""): name for name in TEXT_FIELDS} | {"label": "subject"}


def _value(text: str) -> object:
    """As the language of rules writes it, or else a text."""
    with suppress(FilterSyntaxError):
        match parse_filter(text, {}):
            case Constant(str() | int() | float() as value):
                return value
    return text


@command(output="cli.inspection.rules:UnmatchedPrinted", asks=True, dry_run=DRY_RUN)
def unmatched(
    options: Options,
    of: EntityOptions,
    archive: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Look through these archives for messages to the topic; repeatable."),
    ] = None,
    browse: Annotated[
        str | None,
        typer.Option("--browse", metavar="ENTITY", help="Look through the messages of this queue or subscription."),
    ] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Maximum number of messages.")] = 10_000,
    create: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Create or update subscription NAME for messages that no other gets."),
    ] = None,
) -> CommandResult:
    """Find what no subscription of a topic takes, and create a subscription for it.

    ENTITY is the topic. What no rule takes is a filter: where each of them is false or unknown. It has to fit the
    service's 1,024 characters. `sbpair audit --namespace` says when the catch-all is out of date; the same command with
    --create updates it. Disabled subscriptions take nothing and do not count. Exit code 5: there are such messages, or
    --dry-run found something to create. Needs Manage.

    \b
    Examples:
      sbpair rules unmatched news
      sbpair rules unmatched news --archive archive/
      sbpair rules unmatched news --browse news-copy --limit 1000 -o json
      sbpair rules unmatched news --create nobody --dry-run
    """
    if create is not None:
        if archive or browse is not None:
            raise UsageError("--create looks through no messages: no --archive and no --browse. Nothing was changed.")
        place = of.to_write(options)
        asked = asked_of(options, place) | {"path": subscription_path(place.path, create)}
        request = operations.CatchAllRequest(**asked)
        return make_change(options, place, operations.create_catch_all, request)
    if options.dry_run or options.yes:
        raise UsageError("--dry-run and --yes are for --create: without it nothing is changed.")
    place = of.find(options)
    looking = operations.UnmatchedRequest(place.path, tuple(archive or ()), browse, limit)
    found = call_at(options, place, operations.find_unmatched, looking)
    notes = [note for note in (found.problem, *found.notes) if note]
    if found.filter is not None and not found.nothing_left:
        notes.append(f"The filter has {len(found.filter):,} of {MOST_SQL_CHARACTERS:,} characters.")
    table = table_of(UnmatchedMessage, found.messages)
    if found.looked_at is None:
        table = table_of(Unmatched, [found], show=("topic", "filter", "catch_all"))
    return concluded(found, table, notes=tuple(notes))
