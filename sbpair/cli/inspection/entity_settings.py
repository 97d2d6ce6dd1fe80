"""The settings of an entity and the parts of a rule, as options of `sbpair entity create`."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Self

import typer

from sbpair.cli.options import OptionSet
from sbpair.core.durations import parse_duration
from sbpair.core.entities import CORRELATION_FIELDS, SETTINGS_OF, EntityKind, EntitySettings, RuleFacts
from sbpair.core.errors import UsageError
from sbpair.core.redact import quoted

_NEVER = "never"


class _Takes(StrEnum):
    """What an option of a setting takes; a number or a text is named by its unit or noun."""

    DURATION = "DURATION"
    DURATION_OR_NEVER = "DURATION or never"
    MEGABYTES = "MB"
    KILOBYTES = "KB"
    COUNT = "N"
    ENTITY = "ENTITY"
    TEXT = "TEXT"
    ON = "on"
    """Nothing: it switches the setting on."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class _Setting:
    """One option, and the field of `EntitySettings` that it is about."""

    option: str
    field: str
    takes: _Takes
    help: str

    @property
    def flag(self) -> str:
        return f"--{self.option.replace('_', '-')}"

    @property
    def parameter(self) -> inspect.Parameter:
        kind: Any = str | None
        given: dict[str, Any] = {"metavar": self.takes.value.partition(" ")[0], "show_default": False}
        if self.takes in (_Takes.ON, _Takes.OFF):
            kind, given = bool, {}
        elif self.takes in (_Takes.MEGABYTES, _Takes.KILOBYTES, _Takes.COUNT):
            kind = int | None
            given["min"] = 1
        return inspect.Parameter(
            self.option,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[kind, typer.Option(self.flag, help=self.help, **given)],
            default=False if kind is bool else None,
        )

    def value_of(self, given: Any) -> Any:
        """The setting's value.

        Raises:
            UsageError: a duration that is none.
        """
        if self.takes is _Takes.OFF:
            return False
        if self.takes is _Takes.DURATION_OR_NEVER and given.lower() == _NEVER:
            return None
        if self.takes not in (_Takes.DURATION, _Takes.DURATION_OR_NEVER):
            return given
        try:
            return parse_duration(given)
        except UsageError as error:
            raise UsageError(f"{self.flag}: {error.message} Nothing was changed.") from None


_T = _Takes
SETTINGS = (
    _Setting(
        "max_size", "max_size_in_megabytes", _T.MEGABYTES, "Size of a queue or topic: 1024 to 5120; Premium to 81920."
    ),
    _Setting("max_message_size", "max_message_size_in_kilobytes", _T.KILOBYTES, "Largest message; Premium only."),
    _Setting(
        "ttl",
        "default_message_time_to_live_seconds",
        _T.DURATION_OR_NEVER,
        "Default time to live of messages, e.g. 14d; never.",
    ),
    _Setting("lock", "lock_duration_seconds", _T.DURATION, "Lock duration of a message, up to 5m."),
    _Setting("max_deliveries", "max_delivery_count", _T.COUNT, "Deliveries before a message is dead-lettered."),
    _Setting("sessions", "requires_session", _T.ON, "Messages are handed out by session."),
    _Setting(
        "duplicate_detection",
        "duplicate_detection_history_time_window_seconds",
        _T.DURATION,
        "Drop messages whose MessageId came within this time, e.g. 10m.",
    ),
    _Setting("partitioned", "enable_partitioning", _T.ON, "Partition the queue or topic; not on Premium."),
    _Setting("express", "enable_express", _T.ON, "Keep messages in memory first; not on Premium."),
    _Setting(
        "dead_letter_expired",
        "dead_lettering_on_message_expiration",
        _T.ON,
        "Dead-letter messages whose time to live is over.",
    ),
    _Setting(
        "drop_filter_errors",
        "dead_lettering_on_filter_evaluation_exceptions",
        _T.OFF,
        "Drop, not dead-letter, messages for which a rule's filter fails.",
    ),
    _Setting("forward_to", "forward_to", _T.ENTITY, "Send every message on to this queue or topic."),
    _Setting(
        "forward_dead_letters_to",
        "forward_dead_lettered_messages_to",
        _T.ENTITY,
        "Send dead letters on to this queue or topic.",
    ),
    _Setting(
        "auto_delete",
        "auto_delete_on_idle_seconds",
        _T.DURATION_OR_NEVER,
        "Delete the entity when it was idle for so long; at least 5m.",
    ),
    _Setting("unbatched", "enable_batched_operations", _T.OFF, "No batched operations of the service."),
    _Setting("metadata", "user_metadata", _T.TEXT, "A note that stays with the entity, up to 1,024 characters."),
)
"""Every setting that an option sets; what is not given is the service's default."""


@dataclass(frozen=True, slots=True)
class SettingOptions(OptionSet):
    """The settings that were given, by their options' names."""

    given: Mapping[str, Any]

    @classmethod
    def parameters(cls) -> Iterator[inspect.Parameter]:
        return (setting.parameter for setting in SETTINGS)

    @classmethod
    def taken_from(cls, values: dict[str, Any]) -> Self:
        taken = {setting.option: values.pop(setting.option) for setting in SETTINGS}
        return cls({option: value for option, value in taken.items() if value not in (None, False)})

    def of_kind(self, kind: EntityKind) -> EntitySettings:
        """The settings of an entity of that kind.

        Raises:
            UsageError: one that its kind does not have, or a duration that is none.
        """
        values: dict[str, Any] = {}
        for setting in SETTINGS:
            if setting.option not in self.given:
                continue
            if setting.field not in SETTINGS_OF[kind]:
                raise UsageError(f"A {kind.value} has no {setting.flag}. Nothing was changed.")
            values[setting.field] = setting.value_of(self.given[setting.option])
        if "duplicate_detection" in self.given:
            values["requires_duplicate_detection"] = True
        return EntitySettings(**values)

    def refuse_for_a_rule(self) -> None:
        """A rule has none of them.

        Raises:
            UsageError: one was given.
        """
        for setting in SETTINGS:
            if setting.option in self.given:
                raise UsageError(f"A rule has no {setting.flag}. Nothing was changed.")


def rule_of_options(name: str, sql: str | None, correlation: Sequence[str], action: str | None) -> RuleFacts:
    """A rule as the options describe it.

    Raises:
        UsageError: both kinds of filter, or a value without a name.
    """
    if sql is not None and correlation:
        raise UsageError("A rule has --filter or --correlation, not both. Nothing was changed.")
    if not correlation:
        return RuleFacts(name, sql or "1=1", action=action)
    own: dict[str, str] = {}
    properties: dict[str, str] = {}
    for text in correlation:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(f"--correlation takes NAME=VALUE, not {text!r}. Nothing was changed.")
        if key.lower().startswith("user."):
            properties[key[len("user.") :]] = value
        elif key.lower() in CORRELATION_FIELDS:
            own[key.lower()] = value
        else:
            raise UsageError(
                f"--correlation: there is no {quoted(key if value else text)} of a message. Nothing was changed.",
                hint=f"There is {', '.join(CORRELATION_FIELDS)}; an application property is user.NAME.",
            )
    return RuleFacts(
        name, None, correlation=tuple(own.items()), properties=tuple(sorted(properties.items())), action=action
    )
