"""When a message that is gone may have expired, by its own time to live and by its queue's, whichever ends first."""

import pytest

from sbpair.core.entities import EntityFacts, EntityKind, QueueSettings
from sbpair.core.inspection.contents import FoundNamespace
from sbpair.core.inspection.promotion import ExpectedMessage, PromotionClaim, PromotionEvidence, promotion_report

NOW, SENT = 1_790_000_000.0, 1_789_999_000.0


def claimed(
    *, expires_at: float | None = None, lives_seconds: float | None = None, archived: bool = True, keeps: bool = False
) -> tuple[PromotionClaim, str]:
    settings = QueueSettings(
        default_message_time_to_live_seconds=lives_seconds, dead_lettering_on_message_expiration=keeps
    )
    gone = ExpectedMessage("Orders", "a", SENT, "saved.jsonl", archived, expires_at)
    now = FoundNamespace("contoso", None, NOW, (EntityFacts(EntityKind.QUEUE, "orders", settings),))
    (one,) = promotion_report(PromotionEvidence({}, (gone,), None, now, (), {}, undisturbed=True)).claims
    return one.claim, one.evidence


@pytest.mark.parametrize(
    ("own", "queue", "ago"),
    [
        (NOW - 60, None, "1m"),
        (NOW, None, "0s"),
        (NOW + 600, 700.0, "5m"),  # the queue's ended first
        (NOW - 60, 10_000.0, "1m"),
    ],
)
def test_a_time_to_live_that_has_ended_explains_it(own: float, queue: float | None, ago: str) -> None:
    claim, evidence = claimed(expires_at=own, lives_seconds=queue)
    assert claim is PromotionClaim.UNACCOUNTED
    assert f"its time to live ended {ago} ago" in evidence


def test_otherwise_it_is_lost() -> None:
    assert claimed(expires_at=NOW + 1, lives_seconds=1001.0)[0] is PromotionClaim.LOST
    assert claimed()[0] is PromotionClaim.LOST
    assert claimed(expires_at=NOW - 60, keeps=True)[0] is PromotionClaim.LOST, "it would be a dead letter"
    assert claimed(archived=False)[1].endswith("its own time to live is not known, and may have ended")
