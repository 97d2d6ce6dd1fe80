"""Queues, topics and what happens to a message inside them. Knows message bytes, but neither links nor frames."""
