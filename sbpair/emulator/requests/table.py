"""All management operations by name."""

from sbpair.emulator.auth import LISTEN, SEND
from sbpair.emulator.requests import batch_delete, deferred, disposition, locks, peek, rules, schedule, sessions
from sbpair.emulator.requests.call import Operation

OPERATIONS = {
    "com.microsoft:peek-message": Operation(peek.peek_message, LISTEN),
    "com.microsoft:renew-lock": Operation(locks.renew_lock, LISTEN),
    "com.microsoft:schedule-message": Operation(schedule.schedule_message, SEND),
    "com.microsoft:cancel-scheduled-message": Operation(schedule.cancel_scheduled_message, SEND),
    "com.microsoft:receive-by-sequence-number": Operation(deferred.receive_by_sequence_number, LISTEN),
    "com.microsoft:update-disposition": Operation(disposition.update_disposition, LISTEN),
    "com.microsoft:renew-session-lock": Operation(sessions.renew_session_lock, LISTEN),
    "com.microsoft:get-session-state": Operation(sessions.get_session_state, LISTEN),
    "com.microsoft:set-session-state": Operation(sessions.set_session_state, LISTEN),
    "com.microsoft:get-message-sessions": Operation(sessions.get_message_sessions, LISTEN),
    "com.microsoft:add-rule": Operation(rules.add_rule, LISTEN),
    "com.microsoft:remove-rule": Operation(rules.remove_rule, LISTEN),
    "com.microsoft:enumerate-rules": Operation(rules.enumerate_rules, LISTEN),
    "com.microsoft:batch-delete-messages": Operation(batch_delete.delete_messages, LISTEN),
}
