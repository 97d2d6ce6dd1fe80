"""Every command of the command line by every exit code of the contract: how the code comes about, where that is proven,
or why it cannot come about. `test_exit_codes.py` runs and checks the table."""

from collections.abc import Mapping
from dataclasses import dataclass

from sbpair.core.outcome import Exit


@dataclass(frozen=True)
class Run:
    """This line ends with the code. `fault`: of local-secondary while it runs; `stdin` is sent to it."""

    line: str
    stdin: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Stopped:
    """This line ends with the code when the signal comes while it waits for namespaces that say nothing."""

    line: str


@dataclass(frozen=True)
class Proven:
    """A test of another module starts the process and expects the code: `file::function` below tests/."""

    test: str


@dataclass(frozen=True)
class Mistake:
    """A line of `test_mistakes.MISTAKES`."""

    line: str


@dataclass(frozen=True)
class Never:
    """Why the command does not end with the code, or does in the very way that is proven for another one."""

    why: str


Cell = Run | Stopped | Proven | Mistake | Never

ALL_OR_NOTHING = Never("what it does is done as a whole, or failed")
ASKS_NOBODY = Never("contacts no namespace")
ENDS_BY_ITSELF = Never("has ended before anybody could send it a signal; what comes earlier is tested for all at once")
NOTHING_TO_FIND = Never("neither looks for anything wrong nor shows what it would change")
AS_ARCHIVE = Never("one session of Spark serves all these commands; proven for `pipeline archive`")
IN_A_TASK = Never("comes home from a Spark task as it is raised there: tests/pipeline/source/test_datasource.py")
OF_ITS_COMMANDS = Never("ends with the code of a command that it runs, for which it is proven")
UNTIL_STOPPED = Never("goes on until a signal ends it, and says what it could not do in its report")


def row(  # one argument for each code of the contract, so that none can be left out
    command: str,
    *,
    ok: Cell,
    failed: Cell | None = None,
    usage: Cell | None = None,
    partial: Cell = ALL_OR_NOTHING,
    denied: Cell = ASKS_NOBODY,
    findings: Cell = NOTHING_TO_FIND,
    unreachable: Cell = ASKS_NOBODY,
    signals: Cell | tuple[Cell, Cell] = ENDS_BY_ITSELF,
    arguments: str = "",
) -> dict[Exit, Cell]:
    """The cells of a command. Every one fails where its output cannot be written, and refuses an unknown option."""
    interrupted, terminated = signals if isinstance(signals, tuple) else (signals, signals)
    return {
        Exit.OK: ok,
        Exit.FAILED: failed or Run(f"{command} {arguments} --outfile line/below"),
        Exit.USAGE: usage or Run(f"{command} --no-such-option"),
        Exit.PARTIAL: partial,
        Exit.DENIED: denied,
        Exit.FINDINGS: findings,
        Exit.UNREACHABLE: unreachable,
        Exit.INTERRUPTED: interrupted,
        Exit.TERMINATED: terminated,
    }


def _local(command: str, ok: Cell, *, arguments: str = "", usage: Cell | None = None) -> dict[Exit, Cell]:
    return row(command, ok=ok, arguments=arguments, usage=usage)


def _spark(
    command: str,
    ok: Cell,
    arguments: str,
    *,
    usage: Cell | None = None,
    partial: Cell = ALL_OR_NOTHING,
    findings: Cell = NOTHING_TO_FIND,
    asks: Cell = ASKS_NOBODY,
    signals: Cell | tuple[Cell, Cell] = AS_ARCHIVE,
) -> dict[Exit, Cell]:
    return row(
        command,
        ok=ok,
        arguments=arguments,
        usage=usage,
        partial=partial,
        denied=asks,
        findings=findings,
        unreachable=asks,
        signals=signals,
    )


def _of_entity(
    command: str,
    *,
    ok: Cell,
    arguments: str = "orders",
    usage: Cell | None = None,
    partial: Cell = ALL_OR_NOTHING,
    findings: Cell = NOTHING_TO_FIND,
) -> dict[Exit, Cell]:
    """Of a command that works on an entity of a namespace."""
    return row(
        command,
        ok=ok,
        arguments=f"{arguments} --pair right",
        usage=usage,
        partial=partial,
        denied=Run(f"{command} {arguments} --pair refused"),
        findings=findings,
        unreachable=Run(f"{command} {arguments} --pair gone --timeout 2s"),
        signals=Stopped(f"{command} {arguments} --pair mute"),
    )


_DRILL = "cli/failover/test_drill.py::test_"
_DEAD = "cli/transfer/test_dead_letters.py::test_"
_ENTITY = "cli/inspection/test_entity.py::test_"
_RULES = "cli/inspection/test_rules.py::test_"
_EVACUATE = "cli/transfer/test_evacuate.py::test_"
_EDIT = "cli/transfer/test_edit.py::test_"
_TRIAGE = "cli/transfer/test_triage.py::test_"
_SESSIONS = "cli/transfer/test_sessions.py::test_"
_INCIDENT = "cli/transfer/test_incident.py::test_"
_MESSAGE = "cli/transfer/test_message.py::test_"
_MOVE = "cli/transfer/test_move.py::test_"
_SPARK = "pipeline/test_command_line.py::"
_FLEET = "cli/inspection/test_provision_cleanup.py::"

TABLE: Mapping[str, Mapping[Exit, Cell]] = {
    "demo": row(
        "demo",
        ok=Proven("cli/test_demo.py::test_the_command_proves_it"),
        partial=Never("either everything is proven or it failed"),
        denied=Never("the keys are those of its own namespaces"),
        findings=Never("a finding of its audit makes it fail"),
        unreachable=Never("its namespaces are in its own process"),
        signals=Proven("cli/test_demo.py::test_a_signal_ends_it_and_leaves_nothing_behind"),
    ),
    "emulator": row(
        "emulator",
        ok=Run("emulator --not-emulated"),
        usage=Proven("cli/test_emulator.py::test_refusals"),
        signals=(Proven("cli/test_emulator.py::test_it_leaves_no_state_behind"), Proven("cli/conftest.py::local")),
    ),
    "emulator env": _local("emulator env", Run("emulator env local-primary")),
    "emulator fault list": _local("emulator fault list", Run("emulator fault list local-primary")),
    "emulator fault add": _local(
        "emulator fault add",
        Run("emulator fault add local-primary throttle:entity=nobody,for=1ms"),
        arguments="local-primary dark",
        usage=Run("emulator fault add local-primary nonsense"),
    ),
    "emulator failover": _local(
        "emulator failover",
        Proven(
            "stories/test_evacuation.py::test_what_a_geo_dr_failover_left_behind_comes_home_by_what_the_tool_prints"
        ),
        arguments="contoso",
        usage=Run("emulator failover 'no name'"),
    ),
    "emulator fault clear": _local(
        "emulator fault clear", Run("emulator fault clear local-primary"), arguments="local-primary"
    ),
    "provision": row(
        "provision",
        ok=Proven(f"{_FLEET}test_provision_plans_applies_and_then_has_nothing_to_do"),
        failed=Mistake("provision right --plan-out line/below"),
        partial=Proven(f"{_FLEET}test_partial_failure_names_every_queue"),
        denied=Mistake("provision wrong-key"),
        findings=Proven(f"{_FLEET}test_provision_plans_applies_and_then_has_nothing_to_do"),
        unreachable=Mistake("provision dead"),
        signals=Stopped("provision mute"),
    ),
    "audit": row(
        "audit",
        ok=Proven("cli/inspection/test_audit.py::test_missing_queues_are_findings_and_no_findings_are_0"),
        failed=Mistake("audit right --snapshot-out line/below"),
        usage=Mistake("audit twice"),
        partial=Run("audit right", fault="http-status:status=400"),
        denied=Proven("cli/inspection/test_audit.py::test_a_refused_credential_ends_with_4"),
        findings=Proven("cli/inspection/test_audit.py::test_missing_queues_are_findings_and_no_findings_are_0"),
        unreachable=Proven(
            "cli/inspection/test_audit.py::test_an_unreachable_namespace_ends_with_6_and_is_unknown_to_nagios"
        ),
        signals=Stopped("audit mute"),
    ),
    "cleanup": row(
        "cleanup",
        ok=Proven(f"{_FLEET}test_cleanup_shows_then_deletes_only_what_is_empty"),
        arguments="right",
        usage=Proven(f"{_FLEET}test_options_of_cleanup_that_contradict_each_other"),
        partial=Proven(f"{_FLEET}test_cleanup_shows_then_deletes_only_what_is_empty"),
        denied=Mistake("cleanup wrong-key --yes"),
        findings=Proven(f"{_FLEET}test_cleanup_shows_then_deletes_only_what_is_empty"),
        unreachable=Run("cleanup gone"),
        signals=Stopped("cleanup mute"),
    ),
    "peek": row(
        "peek",
        ok=Proven(
            "cli/transfer/test_ping_peek.py::test_peek_shows_the_oldest_of_all_queues_and_says_that_there_is_more"
        ),
        failed=Proven("cli/transfer/test_ping_peek.py::test_a_queue_that_is_missing_makes_the_rest_partial"),
        usage=Mistake("peek unset"),
        partial=Proven("cli/transfer/test_ping_peek.py::test_a_queue_that_is_missing_makes_the_rest_partial"),
        denied=Mistake("peek wrong-key"),
        unreachable=Mistake("peek dead"),
        signals=Stopped("peek mute"),
    ),
    "drain": row(
        "drain",
        ok=Run("drain right --queue 0 --queue local-primary/x-servicebus-transfer/1"),
        failed=Mistake("drain right --ledger line/below"),
        usage=Mistake("drain right --ledger line"),
        partial=Run("drain astray --timeout 2s"),
        denied=Mistake("drain wrong-key"),
        findings=Run("drain stranded --dry-run"),
        unreachable=Mistake("drain dead --timeout 1s"),
        signals=Stopped("drain mute"),
    ),
    "dlq list": _of_entity(
        "dlq list",
        ok=Run("dlq list orders --pair right"),
        partial=Never("an entity that cannot be browsed is left out and named, as it is proven for `peek`"),
        findings=Proven(f"{_TRIAGE}a_namespace_is_told_by_cause_and_a_second_look_tells_what_is_new"),
    ),
    "entity peek": _of_entity("entity peek", ok=Run("entity peek orders --pair right --body")),
    "dlq peek": _of_entity("dlq peek", ok=Run("dlq peek orders --pair right --body")),
    "dlq resubmit": _of_entity(
        "dlq resubmit",
        arguments="orders --yes",
        ok=Run("dlq resubmit orders --pair right --yes"),
        usage=Run("dlq resubmit news/Subscriptions/audit --pair right --yes"),
        partial=Proven(f"{_DEAD}what_a_destination_would_refuse_or_drop_stays_with_the_reason"),
        findings=Proven(f"{_DEAD}a_dry_run_tells_the_same_and_changes_nothing"),
    ),
    "message show": _of_entity(
        "message show",
        arguments="orders 1",
        ok=Proven(f"{_MESSAGE}one_message_is_shown_and_another_number_is_refused"),
        usage=Run("message show orders 999 --pair right"),
    ),
    "message dead-letter": _of_entity(
        "message dead-letter",
        arguments="orders 1 --yes",
        ok=Proven(f"{_MESSAGE}one_message_is_dead_lettered_and_the_others_stay_as_they_were"),
        usage=Run("message dead-letter orders 999 --pair right --yes"),
        partial=Never("what another receiver has locked is left as a drain leaves it, where that is proven"),
        findings=Proven(f"{_MESSAGE}one_message_is_dead_lettered_and_the_others_stay_as_they_were"),
    ),
    "message complete": _of_entity(
        "message complete",
        arguments="orders 1 --no-archive --yes",
        ok=Proven(f"{_MESSAGE}one_message_of_any_state_is_deleted_and_kept_in_an_archive"),
        usage=Run("message complete orders 1 --pair right --yes"),
        partial=Never("what another receiver has locked is left as a drain leaves it, where that is proven"),
        findings=Proven(f"{_MESSAGE}a_dry_run_finds_the_message_and_changes_nothing"),
    ),
    "message reschedule": _of_entity(
        "message reschedule",
        arguments="orders 1 2h --yes",
        ok=Proven(f"{_MESSAGE}a_scheduled_message_gets_another_time_and_is_there_once"),
        usage=Run("message reschedule orders 999 2h --pair right --yes"),
        partial=Never("a message that is scheduled no more is left as a move leaves it, where that is proven"),
        findings=Proven(f"{_MESSAGE}a_dry_run_finds_the_message_and_changes_nothing"),
    ),
    "undefer": _of_entity(
        "undefer",
        arguments="orders --yes",
        ok=Run("undefer orders --pair right --yes"),
        usage=Run("undefer news/Subscriptions/audit --pair right --yes"),
        partial=Never("what cannot be had stays deferred and is left as a move leaves it, where that is proven"),
        findings=Proven(f"{_MESSAGE}deferred_messages_become_active_in_their_queue_and_nothing_else_is_received"),
    ),
    "explain": _of_entity(
        "explain",
        arguments="orders 1",
        ok=Proven(f"{_SESSIONS}a_message_is_explained_with_what_stands_before_it"),
        usage=Run("explain orders 999 --pair right"),
    ),
    "session list": _of_entity(
        "session list", ok=Proven(f"{_SESSIONS}sessions_are_listed_with_what_they_hold_and_who_is_locked")
    ),
    "session show": _of_entity(
        "session show",
        arguments="orders s",
        ok=Proven(f"{_SESSIONS}a_state_is_shown_set_and_cleared_and_messages_stay"),
        partial=Proven(f"{_SESSIONS}a_session_that_a_receiver_holds_is_not_changed"),
    ),
    "session set-state": _of_entity(
        "session set-state",
        arguments="orders s x --yes",
        ok=Proven(f"{_SESSIONS}a_state_is_shown_set_and_cleared_and_messages_stay"),
        findings=Proven(f"{_SESSIONS}a_state_is_shown_set_and_cleared_and_messages_stay"),
    ),
    "session clear": _of_entity(
        "session clear",
        arguments="orders s --yes",
        ok=Proven(f"{_SESSIONS}a_state_is_shown_set_and_cleared_and_messages_stay"),
        usage=Proven(f"{_SESSIONS}a_session_that_a_receiver_holds_is_not_changed"),
        findings=Proven(f"{_SESSIONS}a_dry_run_clears_nothing"),
    ),
    "incident": row(
        "incident",
        ok=Proven(f"{_INCIDENT}the_script_has_the_commands_and_runs_none"),
        usage=Proven(f"{_INCIDENT}it_asks_before_it_drains_and_refuses_where_nobody_answers"),
        partial=OF_ITS_COMMANDS,
        denied=OF_ITS_COMMANDS,
        findings=OF_ITS_COMMANDS,
        unreachable=OF_ITS_COMMANDS,
        signals=OF_ITS_COMMANDS,
    ),
    "dlq purge": _of_entity(
        "dlq purge",
        arguments="orders --no-archive --yes",
        ok=Run("dlq purge orders --pair right --no-archive --yes"),
        usage=Run("dlq purge orders --pair right --yes"),
        partial=Never("what another receiver has locked is left as a drain leaves it, where that is proven"),
        findings=Proven(f"{_DEAD}purging_for_good_takes_what_matches_only"),
    ),
    "evacuate": row(
        "evacuate",
        arguments="local-primary local-secondary --yes",
        ok=Proven(f"{_EVACUATE}a_standard_namespace_moves_into_a_premium_one_with_all_it_holds"),
        usage=Proven(f"{_EVACUATE}what_is_in_the_way_is_said_and_nothing_is_touched"),
        partial=Proven(f"{_EVACUATE}what_cannot_be_received_is_left_with_the_reason"),
        denied=Never("its first request is that of `entity list`, where a refusal is proven"),
        findings=Proven(f"{_EVACUATE}a_standard_namespace_moves_into_a_premium_one_with_all_it_holds"),
        unreachable=Never("its first request is that of `entity list`, where silence is proven"),
        signals=Never("it waits as `entity list` and `move` do, where signals are proven"),
    ),
    "entity list": _of_entity("entity list", arguments="'*'", ok=Run("entity list --pair right")),
    "entity show": _of_entity("entity show", ok=Run("entity show orders --pair right")),
    "entity create": _of_entity(
        "entity create",
        arguments="made --yes",
        ok=Proven(f"{_ENTITY}a_queue_is_created_with_every_setting_shown_disabled_and_deleted"),
        usage=Run("entity create made --pair right --filter x --yes"),
        findings=Run("entity create made --pair right --dry-run"),
    ),
    "entity delete": _of_entity(
        "entity delete",
        arguments="orders --yes",
        ok=Proven(f"{_ENTITY}a_queue_is_created_with_every_setting_shown_disabled_and_deleted"),
        usage=Proven(f"{_ENTITY}what_holds_messages_is_not_deleted_unless_told"),
        findings=Proven(f"{_ENTITY}what_holds_messages_is_not_deleted_unless_told"),
    ),
    "entity set-status": _of_entity(
        "entity set-status",
        arguments="orders Active --yes",
        ok=Run("entity set-status orders Active --pair right --yes"),
        findings=Run("entity set-status orders Disabled --pair right --dry-run"),
    ),
    "rules test": _of_entity(
        "rules test",
        arguments="news --property a=1",
        ok=Proven(f"{_RULES}what_the_rules_say_is_what_the_namespace_delivers"),
        usage=Run("rules test news --pair right --property a"),
        findings=Proven(f"{_RULES}what_the_rules_say_is_what_the_namespace_delivers"),
    ),
    "rules unmatched": _of_entity(
        "rules unmatched",
        arguments="news",
        ok=Proven(f"{_RULES}messages_of_an_entity_and_of_an_archive_are_looked_through"),
        usage=Run("rules unmatched news --pair right --yes"),
        findings=Proven(f"{_RULES}messages_of_an_entity_and_of_an_archive_are_looked_through"),
    ),
    "move": _of_entity(
        "move",
        arguments="orders parked --yes",
        ok=Proven(f"{_MOVE}a_dry_run_of_a_move_changes_nothing_and_a_filter_leaves_the_rest"),
        usage=Run("move orders orders --pair right --yes"),
        partial=Proven(f"{_MOVE}scheduled_messages_keep_their_time_and_what_is_due_soon_stays"),
        findings=Proven(f"{_MOVE}a_dry_run_of_a_move_changes_nothing_and_a_filter_leaves_the_rest"),
    ),
    "copy": _of_entity(
        "copy",
        arguments="orders parked --yes",
        ok=Proven(f"{_MOVE}a_copy_leaves_all_where_it_is_and_its_ledger_doubles_nothing"),
        usage=Run("copy orders orders --pair right --yes"),
        partial=Never("what the destination would drop is left as a move leaves it, where that is proven"),
        findings=Proven(f"{_MOVE}a_copy_leaves_all_where_it_is_and_its_ledger_doubles_nothing"),
    ),
    "edit": _of_entity(
        "edit",
        arguments="orders 1 --yes",
        ok=Proven(f"{_EDIT}a_dead_letter_is_changed_and_goes_to_its_queue"),
        usage=Run("edit orders 99 --pair right --yes"),
        partial=Never("what the destination would drop is left as a move leaves it, where that is proven"),
        findings=Proven(f"{_EDIT}a_dead_letter_is_changed_and_goes_to_its_queue"),
    ),
    "purge": _of_entity(
        "purge",
        arguments="orders --no-archive --yes",
        ok=Run("purge orders --pair right --no-archive --yes"),
        usage=Run("purge orders --pair right --yes"),
        partial=Never("what another receiver has locked is left as a drain leaves it, where that is proven"),
        findings=Proven(f"{_MOVE}a_purged_queue_is_empty_and_its_archive_brings_all_back"),
    ),
    "report": row(
        "report",
        arguments="line",
        ok=Proven("cli/transfer/test_report.py::test_several_runs_of_one_ledger_are_one_incident"),
        usage=Run("report absent.jsonl"),
        findings=Proven("cli/transfer/test_report.py::test_a_changed_ledger_is_found"),
    ),
    "restore": row(
        "restore",
        ok=Proven("stories/test_restore.py::test_an_archive_goes_back_to_each_destination_in_order_and_once"),
        arguments="line --pair right",
        usage=Run("restore absent --pair right"),
        partial=Proven("stories/test_restore.py::test_a_destination_that_is_gone_leaves_its_messages_and_says_so"),
        denied=Proven("stories/test_restore.py::test_a_primary_that_refuses_or_is_away_is_the_reason_why_all_is_left"),
        findings=Proven("stories/test_restore.py::test_an_archive_goes_back_to_each_destination_in_order_and_once"),
        unreachable=Proven(
            "stories/test_restore.py::test_a_primary_that_refuses_or_is_away_is_the_reason_why_all_is_left"
        ),
        signals=Never("ends after the batches under way, by the same means as `drain`"),
    ),
    "syphon": row(
        "syphon",
        ok=Never("ends by a signal only, and the code is the signal's"),
        failed=Run("syphon right --ledger line/below"),
        usage=Proven("cli/transfer/test_syphon.py::test_usage_errors"),
        partial=UNTIL_STOPPED,
        denied=UNTIL_STOPPED,
        findings=UNTIL_STOPPED,
        unreachable=UNTIL_STOPPED,
        signals=(
            Proven("cli/transfer/test_syphon.py::test_two_of_them_share_the_work"),
            Proven(
                "cli/transfer/test_syphon.py::test_it_brings_home_what_lies_there_and_what_comes_and_reports_at_the_end"
            ),
        ),
    ),
    "exporter": row(
        "exporter",
        ok=Never("ends by a signal only, and the code is the signal's"),
        failed=Never("what cannot be read has no samples, and is in /healthz"),
        usage=Proven("cli/inspection/test_exporter.py::test_what_makes_no_sense_is_refused"),
        partial=UNTIL_STOPPED,
        denied=UNTIL_STOPPED,
        findings=UNTIL_STOPPED,
        unreachable=UNTIL_STOPPED,
        signals=(
            Proven("cli/inspection/test_exporter.py::test_what_is_beyond_the_most_entities_is_counted"),
            Proven("cli/inspection/test_exporter.py::test_it_serves_figures_of_what_can_be_read"),
        ),
    ),
    "top": row(
        "top",
        ok=Proven("cli/inspection/test_top.py::test_from_the_pairs_down_to_a_message_and_back"),
        failed=Never("what cannot be read is marked, with the reason"),
        usage=Proven("cli/inspection/test_top.py::test_what_is_no_terminal_or_makes_no_sense_is_refused"),
        partial=Never("what cannot be read is marked, with the reason"),
        denied=Never("what cannot be read is marked, with the reason"),
        findings=Never("it is looked at until somebody leaves it"),
        unreachable=Never("what cannot be read is marked, with the reason"),
        signals=Proven("cli/inspection/test_top.py::test_a_signal_ends_it_and_gives_the_terminal_back"),
    ),
    "gateway": row(
        "gateway",
        ok=Proven("gateway/test_command.py::test_it_serves_tells_and_stops"),
        failed=Never("of a gateway that takes no messages: `gateway status`, whose words its `/ready` has"),
        usage=Proven("gateway/test_command.py::test_what_makes_no_sense_is_refused"),
        partial=UNTIL_STOPPED,
        denied=UNTIL_STOPPED,
        findings=UNTIL_STOPPED,
        unreachable=Proven("gateway/test_command.py::test_the_status_of_a_gateway_that_is_not_there"),
        signals=Proven("gateway/test_command.py::test_it_serves_tells_and_stops"),
    ),
    "replicate send": row(
        "replicate send",
        ok=Proven("cli/replication/test_replicate.py::test_what_is_sent_is_processed_once_in_order_and_shown"),
        failed=Run("replicate send right nowhere --session-id s", stdin="one\n"),
        usage=Proven("cli/replication/test_replicate.py::test_a_raw_line_needs_a_session"),
        partial=Run("replicate send right parcels", stdin='{"body": "1", "session_id": "s"}\n{broken\n'),
        denied=Never("a message that both sides refuse has failed; its line says why"),
        findings=Run("replicate send half parcels --session-id s --timeout 3s", stdin="one\n"),
        unreachable=Never("a message that reaches neither side has failed; its line says why"),
        signals=Stopped("replicate send mute parcels --session-id s --timeout 1s"),
    ),
    "replicate consume": row(
        "replicate consume",
        ok=Proven("cli/replication/test_replicate.py::test_what_is_sent_is_processed_once_in_order_and_shown"),
        failed=Run("replicate consume right nowhere --exec true --journal sqlite:j.db --until-idle 1s"),
        usage=Run("replicate consume right parcels --journal sqlite:j.db"),
        partial=Proven(
            "cli/replication/test_replicate.py::test_a_command_that_fails_ends_in_the_dead_letter_queues_and_in_status"
        ),
        denied=Run("replicate consume refused parcels --exec true --journal sqlite:j.db --until-idle 1s"),
        unreachable=Run("replicate consume gone parcels --exec true --journal sqlite:j.db --until-idle 1s"),
        signals=Stopped("replicate consume mute parcels --exec true --journal sqlite:j.db"),
    ),
    "replicate status": row(
        "replicate status",
        ok=Run("replicate status --journal sqlite:j.db"),
        usage=Run("replicate status --journal redis:host"),
        denied=Never("a file is readable or not; Cosmos DB's refusal is a failure of the journal"),
        findings=Proven(
            "cli/replication/test_replicate.py::test_a_session_that_waits_for_a_missing_message_is_stuck_and_can_be_let_go"
        ),
        unreachable=Run("replicate status --journal sqlite:/no/such/folder/j.db"),
    ),
    "replicate provision": row(
        "replicate provision",
        ok=Proven("cli/replication/test_replicate.py::test_provision_says_what_is_wrong_with_what_exists"),
        arguments="right parcels",
        denied=Run("replicate provision refused parcels"),
        findings=Proven("cli/replication/test_replicate.py::test_provision_says_what_is_wrong_with_what_exists"),
        unreachable=Run("replicate provision gone parcels"),
        signals=Stopped("replicate provision mute parcels"),
    ),
    "send": row(
        "send",
        ok=Proven(
            "cli/failover/test_send.py::test_while_the_primary_is_dark_messages_go_to_the_backlog_and_home_again"
        ),
        failed=Proven("cli/failover/test_send.py::test_an_entity_that_is_not_there_fails_every_line"),
        usage=Proven("cli/failover/test_send.py::test_usage_errors"),
        partial=Run("send right orders --input jsonl", stdin='{"body": "1"}\n{broken\n'),
        denied=Proven("cli/test_mistakes.py::test_a_refused_credential_is_never_diverted"),
        findings=Run("send half orders --failover-interval 0 --retry-for 0", stdin="one\n"),
        unreachable=Run("send gone orders --retry-for 0 --timeout 5s", stdin="one\n"),
        signals=Stopped("send mute orders"),
    ),
    "drill": row(
        "drill",
        ok=Proven(f"{_DRILL}it_proves_without_a_trace_and_a_history_has_it"),
        failed=Proven(f"{_DRILL}a_fault_that_does_not_do_what_is_expected_is_not_proved"),
        usage=Mistake("drill --embedded --fault nothing"),
        partial=Proven(f"{_DRILL}a_killed_drill_is_cleaned_up_by_the_next_at_every_step"),
        denied=Run("drill refused orders --yes"),
        findings=Run("drill right orders --dry-run"),
        unreachable=Run("drill gone orders --yes --timeout 2s"),
        signals=Stopped("drill mute orders --yes"),
    ),
    "ping": row(
        "ping",
        ok=Proven(
            "cli/transfer/test_ping_peek.py::test_ping_measures_every_backlog_queue_and_says_which_credential_it_used"
        ),
        failed=Proven("cli/transfer/test_ping_peek.py::test_a_missing_entity_is_a_failure_of_its_own"),
        usage=Mistake("ping right or~ders"),
        partial=Run("ping right orders nowhere -c 1"),
        denied=Proven("cli/transfer/test_ping_peek.py::test_ping_of_a_denied_entity_ends_with_4"),
        unreachable=Proven(
            "cli/transfer/test_ping_peek.py::test_ping_of_a_dark_namespace_ends_with_6_and_nagios_is_critical"
        ),
        signals=Proven("cli/transfer/test_ping_peek.py::test_a_signal_ends_ping_with_130_or_143"),
    ),
    "cost": _local("cost", Run("cost right --messages-per-day 1000"), usage=Mistake("cost --prices nothing.yaml")),
    "discover": row(
        "discover",
        arguments="local-secondary",
        ok=Run("discover local-secondary"),
        usage=Run("discover --resource-group g"),
        partial=Never("a namespace that could not be read ends it with 4 or 6, as it does `status`"),
        denied=Proven("cli/inspection/test_discover.py::test_a_wrong_key_is_4_and_nothing_is_said_of_what_is_there"),
        unreachable=Proven(
            "cli/inspection/test_discover.py::test_a_namespace_that_does_not_answer_is_6_and_nothing_is_said_of_it"
        ),
        signals=Stopped("discover"),
    ),
    "status": row(
        "status",
        ok=Proven("cli/inspection/test_status.py::test_both_sides_backlog_age_and_what_a_drain_takes"),
        arguments="right",
        usage=Proven("cli/inspection/test_status.py::test_options_that_do_not_go_together"),
        partial=Run("status right --interval 0", fault="http-status:status=400"),
        denied=Proven("cli/inspection/test_status.py::test_a_refused_credential_is_4_and_nothing_is_called_empty"),
        findings=Proven("cli/inspection/test_status.py::test_no_backlog_queue_at_all_is_a_finding"),
        unreachable=Proven("cli/inspection/test_status.py::test_an_unreachable_side_is_6_and_the_other_one_is_shown"),
        signals=Proven("cli/inspection/test_status.py::test_a_signal_ends_the_watching"),
    ),
    "doctor": row(
        "doctor",
        ok=Proven("cli/inspection/test_doctor.py::test_everything_well_is_0_and_every_right_is_found"),
        failed=Run("doctor right", fault="http-status:status=400"),
        usage=Run("doctor nobody"),
        partial=Never("every check is a row; any error of one ends it with that error's code, else 1"),
        denied=Proven("cli/inspection/test_doctor.py::test_a_refused_credential_is_4"),
        unreachable=Proven("cli/inspection/test_doctor.py::test_a_dark_side_is_6_and_says_what_to_do"),
        signals=Stopped("doctor mute"),
    ),
    "pipeline archive": _spark(
        "pipeline archive",
        Proven(f"{_SPARK}test_taking_into_an_archive_and_asking_what_became_of_it"),
        "right --archive there",
        usage=Run("pipeline archive right --archive there --dlq --with-dlq"),
        partial=Never("messages left in their queue: proven on the job, tests/pipeline/test_archive.py"),
        findings=Never("a dry run needs Spark: proven on the job, tests/pipeline/test_archive.py"),
        asks=IN_A_TASK,
        signals=(
            Proven(f"{_SPARK}test_ctrl_c_ends_a_job_at_once_and_leaves_nothing_completed_that_is_not_in_the_archive"),
            Never("SIGTERM cancels the job where Ctrl-C does: sbpair.pipeline.spark.session"),
        ),
    ),
    "pipeline follow": _spark(
        "pipeline follow",
        Proven("pipeline/test_follow.py::test_the_command_ends_in_good_order"),
        "right --archive there",
        usage=Run("pipeline follow right --archive there --dlq --with-dlq"),
        partial=Never("messages left in their queue: as `pipeline archive` reports them"),
        asks=Never("it makes the plan of `pipeline archive`"),
        signals=Proven("pipeline/test_follow.py::test_the_command_ends_in_good_order"),
    ),
    "pipeline replay": _spark(
        "pipeline replay",
        Never("needs Spark: proven on the job, tests/pipeline/test_replay.py"),
        "right --archive nowhere --ledger there",
        usage=Run("pipeline replay right --archive nowhere --ledger there"),
        partial=Never("refused messages: proven on the job, tests/pipeline/test_replay.py"),
        findings=Never("a dry run needs Spark: proven on the job, tests/pipeline/test_replay.py"),
        asks=IN_A_TASK,
    ),
    "pipeline reconcile": _spark(
        "pipeline reconcile",
        Never("no finding needs Spark: proven on the job, tests/pipeline/test_reconcile.py"),
        "nowhere",
        usage=Run("pipeline reconcile nowhere"),
        findings=Proven(f"{_SPARK}test_taking_into_an_archive_and_asking_what_became_of_it"),
    ),
    "pipeline analyze": _spark(
        "pipeline analyze",
        Never("needs Spark: proven on the job, tests/pipeline/analysis/test_analyze.py"),
        "nowhere",
        usage=Run("pipeline analyze nowhere"),
    ),
    "pipeline replication-audit": row(
        "pipeline replication-audit",
        ok=Proven("cli/replication/test_replication_audit.py::test_findings_end_with_5_and_none_with_0"),
        failed=Proven("cli/replication/test_replication_audit.py::test_what_cannot_be_read_is_told"),
        usage=Proven("cli/replication/test_replication_audit.py::test_what_cannot_be_read_is_told"),
        findings=Proven("cli/replication/test_replication_audit.py::test_findings_end_with_5_and_none_with_0"),
        unreachable=Proven("cli/replication/test_replication_audit.py::test_what_cannot_be_read_is_told"),
        signals=AS_ARCHIVE,
    ),
    "pipeline trend": _local(
        "pipeline trend",
        Proven("core/inspection/test_trend.py::test_the_command_needs_no_java"),
        arguments="nowhere",
        usage=Run("pipeline trend nowhere"),
    ),
    "diff": row(
        "diff",
        ok=Proven("cli/inspection/test_diff.py::test_what_is_ignored_is_counted"),
        arguments="local-primary local-primary",
        usage=Proven("cli/inspection/test_diff.py::test_what_cannot_be_compared_is_refused"),
        denied=Never("its requests are those of `entity list`, where a refusal is proven"),
        findings=Proven("cli/inspection/test_diff.py::test_two_files_differ_by_entities_settings_and_rules"),
        unreachable=Never("its requests are those of `entity list`, where silence is proven"),
        signals=Never("it waits as `entity list` does, where signals are proven"),
    ),
    "promotion report": row(
        "promotion report",
        ok=Proven("cli/inspection/test_promotion.py::test_what_is_gone_back_and_fewer_is_said_with_a_command_for_each"),
        arguments="--ledger nowhere",
        failed=Never("reads only, and what cannot be read has a code of its own"),
        usage=Proven("cli/inspection/test_promotion.py::test_what_makes_no_sense_is_refused"),
        partial=Never("an entity that cannot be browsed is in the report: operations/test_promotion.py"),
        denied=Never("its first request is that of `entity list`, where a refusal is proven"),
        findings=Proven(
            "cli/inspection/test_promotion.py::test_what_is_gone_back_and_fewer_is_said_with_a_command_for_each"
        ),
        unreachable=Never("its first request is that of `entity list`, where silence is proven"),
        signals=Never("it waits as `entity list` does, where signals are proven"),
    ),
    "export": row(
        "export",
        ok=Run("export alerts --dir exported"),
        arguments="alerts",
        findings=Proven("cli/test_export.py::test_a_dry_run_says_what_would_be_written_and_writes_nothing"),
    ),
    "config show": _local("config show", Run("config show")),
    "config check": _local("config check", Run("config check")),
    "config schema": _local("config schema", Run("config schema")),
    "config use": _local("config use", Run("config use right"), arguments="right"),
    "schema": _local("schema", Run("schema audit"), usage=Run("schema audti")),
    "completion": _local("completion", Run("completion bash"), arguments="bash"),
    "help": _local("help", Run("help exit-codes"), arguments="exit-codes"),
    "cheat": _local("cheat", Run("cheat drain"), arguments="drain"),
}
