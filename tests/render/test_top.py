"""The screen of `sbpair top` on a machine that is slow to open and to close it."""

import asyncio

from sbpair.operations.watching import Watched
from sbpair.render.top import TopApp


async def test_a_read_and_the_clock_that_come_while_the_screen_closes_are_no_error() -> None:
    app = TopApp(Watched(), asyncio.Event(), 10.0)
    async with app.run_test(size=(80, 14)):
        await app.query_one("#head").remove()
        app.redraw()
        app._redraw_around()
