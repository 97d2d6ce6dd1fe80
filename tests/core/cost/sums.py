"""Lines of an estimate added up."""

from collections import Counter
from decimal import Decimal

from sbpair.core.cost.model import Estimate, Kind
from sbpair.core.prices import Meter


def by_kind(found: Estimate) -> dict[Kind, int]:
    """Operations of each kind that occurs."""
    counted: Counter[Kind] = Counter()
    for line in found.operations:
        counted[line.kind] += line.count
    return dict(counted)


def by_meter(found: Estimate) -> dict[Meter, Decimal]:
    """Money of each meter that occurs."""
    return {
        meter: sum((line.amount for line in found.charges if line.meter is meter), Decimal(0))
        for meter in {line.meter for line in found.charges}
    }
