"""`pipeline replication-audit`: archives of both sides of active/active, held against its journal.

sources   what a task reads: messages out of archives, records out of the journal
audit     what the rows of some sessions say: the findings, in SQL; all of it, spread over tasks by session
"""
