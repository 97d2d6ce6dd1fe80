"""What a read does to the process it runs in, which is somebody else's."""

import gc

import pytest

from sbpair.pipeline.source.reader import uncollected


@pytest.mark.parametrize("is_enabled", [True, False])
def test_cycles_are_looked_for_afterwards_where_they_were_before(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with pytest.raises(ValueError, match="a row"), uncollected():
            assert not gc.isenabled()
            raise ValueError("a row")
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
