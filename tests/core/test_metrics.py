"""One table of metrics: what can be written is in it, and what is in it can be written."""

import re
from pathlib import Path

from sbpair.core.metrics import series

PACKAGE = Path(__file__).parents[2] / "sbpair"
UNITS = "messages bytes seconds ratio calls credits sessions locks states messages_per_second restarts failures pauses"
THINGS = "entities queues findings checks connections tries accepted attempts sends left_out not_read"
OTHERS = "up enabled ready state month"
"""1 or 0, one of several, and money, whose unit is a label."""


def test_every_name_ends_in_its_unit_and_says_one_sentence() -> None:
    assert len(series()) > 60
    for name, one in series().items():
        assert one.name == name
        assert re.fullmatch(r"sbpair(_[a-z]+)+", name), name
        assert one.help.endswith("."), name
        assert name.removesuffix("_total").endswith(tuple(f"{UNITS} {THINGS} {OTHERS}".split())), name
        assert len(set(one.labels)) == len(one.labels)


def test_no_sample_is_written_that_is_not_in_the_table_and_each_name_of_it_is_written_somewhere() -> None:
    """By the source: names in full, and those of the syphon that are put together."""
    table = (PACKAGE / "core" / "metrics.py").read_text(encoding="utf-8")
    code = "".join(
        path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py") if path.name not in ("metrics.py",)
    )
    written = set(re.findall(r'(?:metric\(|Metric\(\s*|metric=|": )"(sbpair_\w+)"', code))
    written |= {f"sbpair_syphon_{name}" for name in re.findall(r'_gauge\("(\w+)"', code)}
    written |= {name for name in series() if name.startswith("sbpair_drill_")}  # a field's name with that beginning
    assert not written - set(series()), written - set(series())
    declared = set(re.findall(r'"(sbpair_\w+)"', table))
    assert not declared - written, declared - written
