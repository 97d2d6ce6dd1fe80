"""An estimate as a page: the total, what it is made of, what moves it, every line of the arithmetic."""

from collections.abc import Sequence
from decimal import Decimal

from sbpair.core.billing import to_cents
from sbpair.core.cost import Estimate, Workload
from sbpair.core.prices import PriceTable
from sbpair.core.scenarios import Alternative, by_size, tornado
from sbpair.render.page import Bar, Bars, Card, Cards, Line, Lines, Page, Text, Tone
from sbpair.render.result import Table


def estimate_page(
    pair: str | None, workload: Workload, prices: PriceTable, found: Estimate, extra: Decimal, lines: Table
) -> Page:
    """One estimate. `extra` is what the pairing adds, `lines` its arithmetic."""
    currency = found.currency
    amounts = [Bar(meter.value, float(amount), _money(amount, currency)) for meter, amount in found.by_meter().items()]
    kinds = [Bar(kind.value, count, f"{count:,}") for kind, count in found.by_kind().items()]
    return Page(
        f"Cost of {pair}" if pair else "Cost of a pair",
        [
            Cards(
                [
                    Card("A month", _money(found.total, currency), found.month.label),
                    Card("The pairing adds", _money(extra, currency)),
                    Card("Operations", f"{found.operation_count:,}", "billed, in the month"),
                ]
            ),
            Bars("Money by meter", amounts),
            Bars("Operations by kind", kinds),
            _moves(workload, prices, found.total),
            _sizes(workload, prices),
            Table("Arithmetic", lines.columns, lines.rows),
            Text("Assumptions", found.assumptions),
        ],
        lead=f"{_money(found.total, currency)} a month at list prices dated {found.prices_dated}.",
        facts=(("Prices", f"{prices.region}, {found.prices_source}"), ("Month", found.month.label)),
    )


def comparison_page(rows: Table, alternatives: Sequence[Alternative], best: Alternative | None, summary: str) -> Page:
    """Alternatives side by side, cheapest first."""
    bars = [
        Bar(
            one.name,
            float(one.total),
            _money(one.total, one.estimate.currency),
            tone=Tone.GOOD if one is best else Tone.WARN if one.problems else Tone.PLAIN,
        )
        for one in alternatives
    ]
    return Page(
        "Cost: alternatives",
        [
            Bars("A month", bars),
            Table("Alternatives", rows.columns, rows.rows),
            Text("Assumptions", alternatives[0].estimate.assumptions),
        ],
        lead=summary,
    )


def sensitivity_page(workload: Workload, prices: PriceTable, now: Decimal, sentences: Sequence[str]) -> Page:
    """What moves the bill, and the steps of 64 KB."""
    return Page(
        "Cost: what moves the bill",
        [_moves(workload, prices, now), _sizes(workload, prices), Text("Break-even", sentences)],
        lead=f"{_money(now, prices.currency)} a month as given.",
        facts=(("Prices", f"{prices.region}, {prices.source}, dated {prices.dated}"), ("Month", workload.month.label)),
    )


def _moves(workload: Workload, prices: PriceTable, now: Decimal) -> Bars:
    bars = [
        Bar(
            swing.name,
            float(max(swing.half, swing.double)),
            f"{to_cents(swing.half):,} to {to_cents(swing.double):,}",
            start=float(min(swing.half, swing.double)),
        )
        for swing in tornado(workload, prices)
    ]
    return Bars("What moves the bill", bars, note="Each input halved and doubled by itself.", baseline=float(now))


def _sizes(workload: Workload, prices: PriceTable) -> Lines:
    points = [(float(point.size_bytes), float(point.total)) for point in by_size(workload, prices)]
    note = "Messages are billed in steps of 64 KB."
    return Lines("By message size", [Line("total", points)], "KB", prices.currency, note, _kilobytes)


def _kilobytes(size_bytes: float) -> str:
    return f"{size_bytes / 1024:.0f}"


def _money(amount: Decimal, currency: str) -> str:
    return f"{to_cents(amount):,} {currency}"
