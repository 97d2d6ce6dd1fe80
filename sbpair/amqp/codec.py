"""AMQP 1.0 values, both ways: the functions that everybody else calls."""

from typing import Any

from sbpair.amqp.decoding import MAX_DEPTH, MAX_ITEMS, Buffer, decode, decode_all, skip
from sbpair.amqp.encoding import encode, encode_into
from sbpair.amqp.types import Described, Ulong

__all__ = [
    "MAX_DEPTH",
    "MAX_ITEMS",
    "Buffer",
    "decode",
    "decode_all",
    "describe",
    "encode",
    "encode_into",
    "skip",
]


def describe(code: int, fields: list[Any]) -> Described:
    """The composite (AMQP 1.0 §1.4) with this ulong as descriptor; fields may leave out trailing nulls."""
    return Described(Ulong(code), fields)
