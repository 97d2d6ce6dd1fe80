"""What several drains, kills and the network between them may do to the order within a session, and what not."""

import os
import subprocess
import sys

import pytest

from tests.simulation.test_simulation import LIMIT_SECONDS, ROOT

_HISTORY = """
from dataclasses import replace
from tests.simulation import plan as plans
from tests.simulation.world import live

drains = {drains}
plan = plans.draw({seed}, 0.02)
plan = plans.narrow_several(replace(plan, durable=False, senders=0, partitioned=False), drains=drains, syphons=0)
apart = plans.Trouble(1.0, "part", 40.0, "primary", 0, "sending", 1)
killed = plans.Trouble(1.0, "crash", 0.0, "primary", 0, "sending", 1)
plan = replace(
    plan, lock_seconds=5.0, sessions=1, body_bytes=(10,), latency_seconds=0.01, slow_share=0.0,
    bursts=(plans.Burst(2.0, 2),), troubles=(apart, killed),
)
lived = live(plan, follow=print)
print("failure", lived.failure)
"""


@pytest.mark.parametrize(("drains", "seed"), [(1, 0), (2, 1)])
def test_what_was_on_its_way_at_a_kill_may_come_again_behind_its_successor(drains: int, seed: int) -> None:
    """The shortest history: m1 and m2 are on the wire when their drain dies, and the wire holds them for longer than
    their locks last. The next drain, or the other one, gets both and sends them; then what the first one sent arrives.
    Nobody can call it back, and the primary knows nothing of the lock on the secondary."""
    ran = subprocess.run(
        [sys.executable, "-c", _HISTORY.format(drains=drains, seed=seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert "failure None" in ran.stdout, ran.stdout[-2000:] + ran.stderr
    lines = [line.split()[1:] for line in ran.stdout.splitlines()]
    came = [
        key for what, key, *_ in (line for line in lines if len(line) > 2) if what == "arrived" and key in ("m1", "m2")
    ]
    assert came == ["m1", "m2", "m1", "m2"], "first in their order, and both again"
