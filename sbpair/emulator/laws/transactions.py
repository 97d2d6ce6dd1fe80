"""Transactions: what they span, how long they last."""

from sbpair.emulator.laws.law import Law, documented

_TRANSACTIONS = documented("Overview of Service Bus transaction processing")


class Transactions:
    transaction_seconds = Law[float](
        "A transaction that is open for 2 minutes is rolled back.",
        _TRANSACTIONS,
        "broker/transactions.py Transactions.declare",
        strict=120.0,
        other=60.0,
    )
