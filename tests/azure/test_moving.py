"""A move step by step, on links that are written anew and answer as they are told: what is asked in which order, and
what is known of the messages afterwards."""

import asyncio
import re
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from sbpair.amqp.sections import Section, build
from sbpair.azure.errors import WireError
from sbpair.azure.mover import AzureMover, _move, _through
from sbpair.azure.receiver import UPDATE
from sbpair.core import errors
from sbpair.core.encoded import EncodedMessage
from sbpair.core.rewrite import compose
from tests.azure.support import message

TRANSACTION, LIMIT = b"t", 400


class Asked:
    """What was asked for, and an answer for each kind of it: None, an error, or one that does not come."""

    def __init__(self, **answers: Any) -> None:
        self.log: list[str] = []
        self.answers = answers
        self.coordinator = self
        self.max_message_bytes, self.max_batch_bytes = LIMIT, 0

    async def answer(self, name: str) -> None:
        self.log.append(name)
        for _ in range(3 if name.startswith("send") else 0):
            await asyncio.sleep(0)
        answer = self.answers.get(name.partition(" ")[0])
        if answer is ...:
            await asyncio.Event().wait()
        if isinstance(answer, BaseException):
            raise answer

    async def sending_to(self, entity: str) -> "Asked":
        await self.answer("open")
        return self

    async def declare(self) -> bytes:
        await self.answer("declare")
        return TRANSACTION

    def discharge(self, transaction: bytes, *, fail: bool) -> Any:
        assert transaction == TRANSACTION
        name = "roll-back" if fail else "commit"
        return SimpleNamespace(confirmed=self.answer(name), answered=self.answers.get("answered", False))

    def send(self, payload: bytes, message_format: int, state: Any) -> Any:
        return SimpleNamespace(confirmed=self.answer(f"send {message_format}"))

    async def take(self, transaction: bytes) -> None:
        assert transaction == TRANSACTION
        await self.answer("take")

    async def drop(self) -> None:
        self.log.append("drop")


async def moved(wire: Asked, *payloads: bytes, seconds: float = 60.0) -> Any:
    """What it raises."""
    received: Any = [SimpleNamespace(sequence_number=number, payload=b"") for number in range(len(payloads))]
    ends = "contoso", "Orders"
    try:
        await _move(
            wire, received, payloads, "Parked", wire.take, wire.drop, ends=ends, timeout_seconds=seconds  # type: ignore[arg-type]
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - what the test looks at
        return error
    return None


SMALL = message("m")
BEFORE = ["open", "declare", "send 0", "take"]


async def test_what_is_sent_is_taken_and_then_committed() -> None:
    wire = Asked()
    assert await moved(wire, SMALL) is None
    assert wire.log == [*BEFORE, "commit"]


async def test_what_is_as_large_as_the_link_takes_goes_and_more_asks_for_nothing() -> None:
    spare = LIMIT - len(build(data=bytes(300)))
    wire = Asked()
    assert await moved(wire, build(data=bytes(300 + spare))) is None
    wire = Asked()
    error = await moved(wire, SMALL, build(data=bytes(301 + spare)))
    assert isinstance(error, errors.MessageTooLargeError)
    assert f"Parked on contoso: {LIMIT + 1} bytes exceed its limit of {LIMIT}" in str(error)
    assert wire.log == ["open"]


@pytest.mark.parametrize("failing", ["open", "declare", "send", "take"])
@pytest.mark.parametrize("condition", ["com.microsoft:timeout", "com.microsoft:server-busy"])
async def test_what_fails_before_the_commit_is_rolled_back_and_certain(failing: str, condition: str) -> None:
    """Also what would leave a doubt outside a transaction."""
    wire = Asked(**{failing: WireError(condition, "no")})
    error = await moved(wire, SMALL)
    assert isinstance(error, errors.OperationTimeoutError | errors.ServerBusyError)
    assert "move messages of Orders to Parked on contoso" in str(error)
    assert not error.uncertain
    done = {"open": 1, "declare": 2, "send": 4, "take": 4}[failing]
    assert wire.log == BEFORE[:done] + (["roll-back"] if done > 2 else [])


async def test_a_refused_send_is_told_before_a_refused_take_and_a_roll_back_that_fails_is_not_told() -> None:
    wire = Asked(send=WireError("amqp:not-found", "gone"), take=WireError("amqp:internal-error", "x"))
    wire.answers["roll-back"] = OSError("cut")
    error = await moved(wire, SMALL)
    assert (type(error), error.entity) == (errors.EntityNotFoundError, "Parked")
    assert wire.log[-1] == "roll-back"
    lost = errors.LocksLostError("lost", entity="Orders", lost=(0,))
    assert await moved(Asked(take=lost), SMALL) is lost


async def test_a_commit_answers_for_both_ends() -> None:
    for condition, said, kind, entity in (
        ("amqp:not-found", "the entity '/orders' is gone", errors.EntityNotFoundError, "Orders"),
        ("amqp:not-found", "the entity 'parked' is gone", errors.EntityNotFoundError, "Parked"),
        ("com.microsoft:server-busy", "the entity '/orders' is busy", errors.ServerBusyError, "Parked"),
    ):
        wire = Asked(commit=WireError(condition, said), answered=True)
        error = await moved(wire, SMALL)
        assert (type(error), error.entity, error.uncertain) == (kind, entity, False)
        assert wire.log == [*BEFORE, "commit"]


@pytest.mark.parametrize("answer", [OSError("cut"), ...])
async def test_after_a_commit_that_nobody_answered_the_connection_is_given_up(answer: Any) -> None:
    wire = Asked(commit=answer)
    error = await moved(wire, SMALL, SMALL, seconds=0.1 if answer is ... else 60.0)
    assert isinstance(error, errors.LocksLostError)
    assert (error.lost, error.uncertain, error.entity) == ((0, 1), True, "Orders")
    assert wire.log[-2:] == ["commit", "drop"]


async def test_a_time_that_is_up_before_the_commit_leaves_no_doubt() -> None:
    wire = Asked(declare=...)
    error = await moved(wire, SMALL, seconds=0.05)
    assert (type(error), error.uncertain, wire.log) == (errors.OperationTimeoutError, False, ["open", "declare"])


def test_what_is_moved_from_a_partition_is_bound_to_it_where_there_is_room() -> None:
    taken, payload = (compose(body=body, message_id="m", partition_key="k") for body in (b"taken", b"payload"))
    link, received = SimpleNamespace(max_message_bytes=LIMIT), SimpleNamespace(sequence_number=1 << 48, payload=taken)
    bound = _through(received, payload, link)  # type: ignore[arg-type]
    assert EncodedMessage(bound).entry(Section.MESSAGE_ANNOTATIONS, "x-opt-via-partition-key") == "k"
    assert b"payload" in bound
    for limit, expected in ((len(bound), bound), (len(bound) - 1, payload)):
        link.max_message_bytes = limit
        assert _through(received, payload, link) == expected  # type: ignore[arg-type]
    received.sequence_number = (1 << 48) - 1
    link.max_message_bytes = LIMIT
    assert _through(received, payload, link) is payload  # type: ignore[arg-type]


class Completing(AzureMover):
    """Settlements of a transaction, each with its answer."""

    def __init__(self, by_token: BaseException | None = None) -> None:
        nothing: Any = lambda *_: None  # noqa: E731
        super().__init__("contoso", "Orders", nothing, nothing, session_id=None, open_seconds=1.0, make_sender=nothing)
        self.by_token, self.asked = by_token, list[Any]()

    async def _request(self, wire: Any, operation: str, body: Any, **_: Any) -> Any:
        self.asked.append((operation, body.transaction_id, dict(body)))
        if self.by_token is not None:
            raise self.by_token

    async def complete(self, deliveries: dict[int, BaseException | None], tokens: dict[int, Any]) -> Any:
        def settle(answer: BaseException | None, state: Any, outcome: str) -> Awaitable[None]:
            async def answered() -> None:
                self.asked.append(outcome)
                if answer is not None:
                    raise answer

            return answered()

        wire: Any = SimpleNamespace(settle=settle, array=list)
        try:
            await self._complete(wire, TRANSACTION, deliveries, tokens)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - what the test looks at
            return error
        return None


async def test_what_is_taken_is_completed_by_deliveries_and_by_tokens_in_the_transaction() -> None:
    made = Completing()
    assert await made.complete({0: None, 2: None}, {1: "token"}) is None
    body = {"disposition-status": "completed", "lock-tokens": ["token"]}
    assert made.asked[:2] == ["accepted", "accepted"]
    assert made.asked[2] == (UPDATE, TRANSACTION, body)
    made = Completing()
    assert await made.complete({0: None}, {}) is None
    assert made.asked == ["accepted"], "no tokens are nothing to ask for"


async def test_locks_that_are_lost_are_named_and_a_refusal_in_a_transaction_is_certain() -> None:
    lost, late = WireError("com.microsoft:message-lock-lost", "x"), WireError("com.microsoft:timeout", "x")
    error = await Completing().complete({0: None, 2: lost}, {1: "token"})
    assert (type(error), error.lost, error.entity, error.__cause__) == (errors.LocksLostError, (2,), "Orders", lost)
    error = await Completing(lost).complete({0: None}, {1: "a", 3: "b"})
    assert (type(error), error.lost) == (errors.LocksLostError, (1, 3))
    for error in (await Completing().complete({0: late}, {}), await Completing(late).complete({}, {0: "a"})):
        assert (type(error), error.uncertain) == (errors.OperationTimeoutError, False)
        assert re.search("complete messages of Orders on contoso", str(error))


async def test_why_a_transaction_cannot_begin_is_told_of_its_namespace() -> None:
    def cut() -> Any:
        raise OSError("cut")

    made = Completing()
    made._make_sdk = cut
    with pytest.raises(errors.ConnectionLostError, match="Could not begin a transaction on contoso: cut") as raised:
        await made.why_not()
    assert raised.value.entity == "Orders"
