"""Values that are made for every message: immutable to the type checker, and as cheap to make as any object.

A frozen dataclass sets each field by way of `object.__setattr__`, which costs a `Received` three times what the rest of
its making does.
"""

import dataclasses
from typing import TypeVar, dataclass_transform

_Value = TypeVar("_Value")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def value_class(kind: type[_Value]) -> type[_Value]:
    """A dataclass with slots, compared and hashed by its fields. Nobody may change one: mypy says who does."""
    return dataclasses.dataclass(slots=True, unsafe_hash=True)(kind)
