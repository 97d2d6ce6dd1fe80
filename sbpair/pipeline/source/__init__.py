"""Spark's data sources `sbpair-backlog` and `servicebus`: their options, and what reads and writes behind them."""
