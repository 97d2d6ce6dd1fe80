"""Drawn pairings, and what is looked at and changed in a pair: what `tests.runtime.lives` lives through."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sbpair.core.access import NamespaceAccess
from sbpair.core.entities import EntityStatus, NamespaceFacts, QueueSettings, Tier
from sbpair.core.errors import ConnectionLostError
from sbpair.core.inspection.plan import plan_cleanup, plan_provision
from sbpair.core.message import MessageState
from sbpair.core.pairing import DOCUMENTED_SETTINGS, Pair, SendAvailabilityOptions, Side
from sbpair.core.rewrite import compose, for_backlog
from sbpair.runtime.browse import peeking
from sbpair.runtime.failover.pairing import PairedNamespaces, PairingContext
from sbpair.runtime.inspection.application import verify
from sbpair.runtime.inspection.apply import Applying, apply, check_fresh
from sbpair.runtime.inspection.backlog import find_queues, read_backlog
from sbpair.runtime.inspection.gather import GatherScope, gather
from sbpair.runtime.inspection.usage import CountedMessaging, Usage, counted_admin
from tests.fakes import EPOCH
from tests.runtime.inspection.admin_fake import Lies, LyingAdmin
from tests.runtime.lives import Life, Namespace, Told, short

SENDS = ("send", "send", "send", "schedule", "cancel", "limit", "receive", "peek")


def a_pair(life: Life, **options: Any) -> Pair:
    dice = life.dice
    return Pair(
        name="test",
        primary=NamespaceAccess("contoso", "contoso.servicebus.windows.net"),
        secondary=NamespaceAccess("fabrikam", "fabrikam.servicebus.windows.net"),
        entities=dice.choice(((), ("orders",), ("ORDERS", "Invoices", "gone"))),
        options=SendAvailabilityOptions(backlog_queue_count=dice.choice((1, 2, 3)), **options),
    )


async def a_pairing(life: Life, folder: Path) -> None:
    dice = life.dice
    primary, secondary = life.namespace("contoso"), life.namespace("fabrikam")
    primary.add_queue("Orders")
    primary.add_queue("invoices", topic=True)
    primary.max_message_bytes = dice.choice((1_000, 256 * 1024))
    secondary.max_message_bytes = dice.choice((1_500, 256 * 1024))
    pair = a_pair(
        life,
        failover_interval_seconds=dice.choice((0.0, 0.0, 20.0)),
        ping_interval_seconds=dice.choice((15.0, 60.0)),
        enable_syphon=life.chance(0.3),
    )
    create = life.chance(0.4)
    for path in pair.backlog_paths():
        if not create or life.chance(0.5):
            secondary.add_queue(path.upper() if life.chance(0.2) else path)
    life.trouble(primary, primary, secondary, operations=SENDS, most=5)
    if life.chance(0.5):
        life.later(dice.choice((10.0, 50.0)), lambda: life.later(80.0, partial(primary.heal, primary.go_dark())))
    context = PairingContext(
        primary=primary.messaging(),
        secondary=secondary.messaging(),
        clock=life.clock,
        observer=life.observer,
        retries=dice.choice((0, 0, 2)),
        hold_sessions=dice.choice((None, True, False)),
        draw=dice.random,
    )

    async def live() -> Any:
        pairing = await PairedNamespaces.open(pair, context, secondary_admin=secondary.admin(), create_missing=create)
        if life.chance(0.2):
            pairing.keep_verifying(lambda: ["orders"])
        await asyncio.gather(*(one_sender(life, pairing, number) for number in range(dice.choice((1, 3)))))
        life.say(f"state {short(pairing.state())} {pairing.backlog_queues} {short(pairing.verification)}")
        if life.chance(0.3):
            await asyncio.sleep(70.0)
        if life.chance(0.2):
            await pairing.fault(ConnectionLostError("told so"), dice.choice([*Side]))
        await pairing.close(dice.choice((None, None, *Side)), wait_seconds=dice.choice((0.0, 5.0)))
        await pairing.close()
        return pairing.state()

    await life.result(live())
    life.left_in(primary, secondary)


async def one_sender(life: Life, pairing: PairedNamespaces, number: int) -> None:
    dice = life.dice
    entity = dice.choice(("orders", "ORDERS", "invoices", "gone"))
    sender = pairing.sender(entity, partitioned=dice.choice((None, None, True, False)))
    numbers: list[int] = []

    def message(turn: object, at: float | None = None) -> bytes:
        return compose(
            body=bytes(dice.choice((1, 400, 1_300))),
            message_id=f"{number}-{turn}",
            session_id=dice.choice((None, None, "a", "A", "b")),
            scheduled_at=at,
        )

    for turn in range(dice.choice((3, 9))):
        await asyncio.sleep(dice.choice((0.0, 0.1, 5.0, 25.0)))
        kind, timeout = dice.randrange(14), dice.choice((None, 0.5, 5.0, 70.0))
        batch = [message(f"{turn}-{part}") for part in range(dice.choice((1, 1, 4)))]

        async def act(kind: int = kind, turn: int = turn, timeout: Any = timeout, batch: Any = batch) -> Any:
            if kind == 0:
                done = await sender.schedule([message(turn, EPOCH + 1e6)], timeout_seconds=timeout)
                numbers.extend(done.sequence_numbers)
                return done
            if kind == 1:
                return await sender.cancel_scheduled(numbers[-1:] or [99], timeout_seconds=timeout)
            if kind == 2:
                many = sender.send_all(
                    batch, overlap=2, timeout_seconds=timeout, retry_seconds=dice.choice((0.0, 40.0))
                )
                return [one async for one in many]
            if kind == 3:
                return pairing.force_failover(entity)
            if kind == 4:
                return pairing.fail_back(entity)
            if kind == 5:
                return await pairing.verify(dice.choice((None, ["orders", "gone"])))
            if kind == 6:
                return await sender.send_within(batch, 50.0, stop=life.stop)
            if kind == 7:
                return pairing.state()
            return await sender.send(batch if len(batch) > 1 else batch[0], timeout_seconds=timeout)

        try:
            life.say(f"sender {number} {kind} = {short(await act())} {sender.state}")
        except Exception as error:  # noqa: BLE001 - it is what became of it
            accepted = getattr(error, "accepted", None), getattr(error, "uncertain", None)
            life.say(f"sender {number} {kind} raised {short(error)} {accepted}")
    if life.chance(0.5):
        await sender.close()


class TieredAdmin(LyingAdmin):
    async def namespace(self) -> NamespaceFacts:
        return replace(await super().namespace(), tier=self._namespace.tier)


def a_side(life: Life, name: str, pair: Pair, other: str) -> Namespace:
    """A namespace with backlog queues of several pairs, and entities, in all spellings."""
    dice = life.dice
    found = life.namespace(name)
    found.tier = dice.choice([*Tier])
    paths = [f"{other}/x-servicebus-transfer/{index}" for index in range(6)]
    paths += [f"{name}/x-servicebus-transfer/0", "third/x-servicebus-transfer/1", "Orders", "invoices", "other/queue"]
    for path in paths:
        if life.chance(0.55):
            settings = dice.choice(
                (
                    DOCUMENTED_SETTINGS,
                    DOCUMENTED_SETTINGS,
                    QueueSettings(),
                    replace(DOCUMENTED_SETTINGS, status=dice.choice([*EntityStatus])),
                    replace(DOCUMENTED_SETTINGS, lock_duration_seconds=10.0),
                )
            )
            spelled = life.spelled(path)
            found.add_queue(spelled, settings, topic=path in ("Orders", "invoices") and life.chance(0.4))
            for number in range(dice.choice((0, 0, 0, 1, 3, 1_200 if life.chance(0.1) else 2))):
                payload = for_backlog(compose(body=b"x", message_id=f"m{number}"), dice.choice(("orders", "GONE")))
                if life.chance(0.3):
                    found.put_dead_letter(spelled, payload, "Why")
                else:
                    found.put(spelled, payload)
                    [*found.queue(spelled).messages.values()][-1].state = dice.choice(
                        (*MessageState, MessageState.ACTIVE)
                    )
    return found


def lies(life: Life, namespace: Namespace) -> Lies:
    known, dice = [*namespace.entities], life.dice

    def some() -> set[str]:
        return {path for path in known if life.chance(0.15)}

    ghost = [queue.facts() for queue in namespace.entities.values() if life.chance(0.1) and not queue.is_topic]
    return Lies(
        unlisted=some(),
        ghosts=ghost,
        twice=life.chance(0.2),
        counted_empty=some(),
        updated_at=dict.fromkeys(some(), EPOCH + 9),
        counted_more={path: [dice.choice((1, 3)) for _ in range(dice.choice((1, 4)))] for path in sorted(some())},
    )


async def a_look(life: Life, folder: Path) -> None:
    """All that is asked of a pair: its backlog, its snapshot, plans for it, and what an application needs."""
    dice = life.dice
    pair = a_pair(life)
    primary, secondary = a_side(life, "contoso", pair, "fabrikam"), a_side(life, "fabrikam", pair, "contoso")
    usage = Usage()
    told = Told(TieredAdmin(primary, lies(life, primary)), "primary.admin", life.say)
    admin = counted_admin(Told(TieredAdmin(secondary, lies(life, secondary)), "secondary.admin", life.say), usage)
    messaging: Any = CountedMessaging(secondary.messaging(), usage)
    life.trouble(primary, secondary, operations=("admin", "admin", "peek", "limit"), most=3)
    manage = dice.choice((None, admin, admin))
    timeout_seconds = dice.choice((2.0, 10.0))

    async def backlog() -> Any:
        found = await find_queues(pair, messaging=messaging, admin=manage, timeout_seconds=timeout_seconds)
        life.say(f"found {short(found)}")
        paths = dice.choice((None, None, [path.upper() for path in pair.backlog_paths()[:1]]))
        return await read_backlog(
            pair,
            found,
            messaging=messaging,
            admin=manage,
            clock=life.clock,
            timeout_seconds=timeout_seconds,
            only=paths,
            recount=life.chance(0.7),
        )

    async def plans() -> Any:
        snapshot = await gather(
            pair,
            primary=told,
            secondary=admin,
            clock=life.clock,
            observer=life.observer,
            peek=dice.choice((None, peeking(messaging))),
            scope=dice.choice([*GatherScope]),
            tolerant=life.chance(0.8),
            credits_per_second=dice.choice((None, 5.0, 100.0)),
            concurrency=dice.choice((1, 8)),
        )
        life.say(f"snapshot {short(snapshot)}")
        if life.chance(0.6):
            plan = plan_provision(snapshot, pair, update=life.chance(0.6))
        else:
            plan = plan_cleanup(snapshot, pair)
        life.say(f"plan {short(plan)}")
        for path in [*secondary.entities]:
            kind = dice.randrange(12)
            if kind == 0:
                del secondary.entities[path]
            elif kind == 1:
                secondary.put(path, compose(body=b"new", message_id="new"))
            elif kind == 2:
                await secondary.admin().update_queue(path, QueueSettings())
        try:
            await check_fresh(plan, admin=admin, clock=life.clock)
        except Exception as error:  # noqa: BLE001 - it is what became of it
            life.say(f"not fresh: {short(error)}")
        return await apply(
            plan,
            admin=admin,
            clock=life.clock,
            observer=life.observer,
            peek=dice.choice((None, peeking(messaging))),
            log=lambda line: life.say(f"log {short(line)}"),
            how=Applying(
                concurrency=dice.choice((1, 8)),
                protected=dice.choice(((), ("*/0",), ("CONTOSO/*/1",))),
                context=dice.choice((None, {"who": "me"})),
            ),
        )

    def on_queue(path: str, error: object) -> None:
        life.say(f"queue {path} {short(error)}")

    def on_entity(path: str, most: int) -> None:
        life.say(f"entity {path} {most}")

    await life.result(backlog())
    await life.result(plans())
    secondary.max_message_bytes = dice.choice((1_000, 256 * 1024))
    await life.result(
        verify(
            pair,
            primary=primary.messaging(),
            secondary=messaging,
            entities=("orders", "Invoices", "gone"),
            clock=life.clock,
            on_queue=on_queue,
            on_entity=on_entity,
        )
    )
    life.say(short(usage))
    life.left_in(primary, secondary)


STORIES = {"pairing": (a_pairing, 96), "look": (a_look, 96)}
