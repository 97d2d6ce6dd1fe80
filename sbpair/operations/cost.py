"""`estimate_cost`: what a pair costs a month, line by line. Contacts nothing, so it takes no ends."""

from collections.abc import Sequence

from sbpair.core.cost.model import Workload
from sbpair.core.cost.request import Choices, CostRequest, workload_of
from sbpair.core.cost.result import Compared, Estimated, compared, estimated
from sbpair.core.cost.usage import MeterUsage
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.pairing import Pair
from sbpair.core.prices import PriceTable, built_in

__all__ = ["Compared", "CostRequest", "Estimated", "compare_costs", "estimate_cost"]


def estimate_cost(
    request: CostRequest,
    *,
    pair: Pair | None = None,
    snapshot: Snapshot | None = None,
    prices: PriceTable | None = None,
    workload: Workload | None = None,
    billed: Sequence[MeterUsage] = (),
) -> Estimated:
    """Estimate what a month costs, each line with the rule behind it.

    Args:
        request: messages, sizes, outages, processes, ...
        pair: for its entities and backlog queues, where the request has none.
        snapshot: of an audit, for tiers, messaging units and what lies in the backlog.
        prices: None: the built-in list prices, which are dated.
        workload: instead of the request's own, for example from metrics.
        billed: what usage details say, to stand beside the estimate.

    Raises:
        UsageError: the prices lack a meter that is needed.
    """
    workload = workload or workload_of(request, pair, snapshot)
    name = pair.name if pair else None
    return estimated(workload, prices or built_in(), pair=name, snapshot=snapshot, billed=billed)


def compare_costs(
    request: CostRequest,
    *,
    pair: Pair | None = None,
    snapshot: Snapshot | None = None,
    prices: PriceTable | None = None,
    workload: Workload | None = None,
) -> Compared:
    """Every combination of the values that the request lists, and no pairing, cheapest first. Arguments as those of
    `estimate_cost`."""
    workload = workload or workload_of(request, pair, snapshot)
    choices = Choices(queues=request.queues, hosts=request.hosts, syphons=request.syphons, tiers=request.tiers)
    return compared(workload, prices or built_in(), choices)
