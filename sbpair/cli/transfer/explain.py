"""`sbpair explain`: why one message lies where it lies."""

from typing import Annotated

import typer

from sbpair.cli.context import load_settings
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.dead_letters import call_verb
from sbpair.cli.transfer.entity_ref import EntityArgument, NamespaceOptions, find_entity_ref
from sbpair.render.result import CommandResult, table_of


@command(output="core.transfer.explained:ExplainedMessage")
def explain(
    options: Options,
    entity: EntityArgument,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", min=1, help="Sequence number, as `dlq peek` or `entity peek` shows it.")
    ],
    *,
    on: NamespaceOptions,
    dlq: Annotated[bool, typer.Option(help="A dead letter.")] = False,
) -> CommandResult:
    """Explain one message: where it came from, why it lies there, what stands before it, and what to do next.

    Also which rule took it, what its time to live means now, whether it is locked, who could take it, and others with
    its MessageId. What cannot be known is named as such. Takes nothing. Needs Listen; Manage tells more.

    \b
    Examples:
      sbpair explain orders 4711 --dlq
      sbpair explain contoso-weu:news/Subscriptions/audit 12 -o json
    """
    from dataclasses import replace

    from sbpair.core.transfer.explained import MessageFact
    from sbpair.operations.explain import ExplainRequest, explain_message

    place = find_entity_ref(load_settings(options), on, entity)
    request = ExplainRequest(place.path, number, dlq, options.timeout_seconds(30.0))
    found = call_verb(options, place, explain_message, request)
    shown = [one if one.known else replace(one, text=f"not known: {one.text}") for one in found.statements]
    return CommandResult(
        "explain",
        found,
        (table_of(MessageFact, shown),),
        notes=(f"Message {number} of {place}: {found.because}.",),
        summary=f"Next: {found.command}",
        closing=True,
    )
