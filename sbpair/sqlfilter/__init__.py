"""Service Bus SQL: the language of subscription rules and of every `--where`; pure."""
