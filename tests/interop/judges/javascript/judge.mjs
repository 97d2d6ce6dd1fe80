// Scenarios of @azure/service-bus against a namespace, whose connection string is in CONNECTION. A JSON line each.
import assert from "node:assert/strict";
import { ServiceBusClient } from "@azure/service-bus";

const client = new ServiceBusClient(process.env.CONNECTION, { retryOptions: { maxRetries: 1, timeoutInMs: 15000 } });
const WAIT = 15000;

async function send(entity, ...messages) {
  const sender = client.createSender(entity);
  await sender.sendMessages(messages);
  await sender.close();
}

async function take(receiver, count) {
  const taken = [];
  while (taken.length < count) {
    const more = await receiver.receiveMessages(count - taken.length, { maxWaitTimeInMs: WAIT });
    assert.notEqual(more.length, 0, `${taken.length} of ${count} messages received`);
    taken.push(...more);
  }
  return taken;
}

const scenarios = {
  async "send, receive and settle"() {
    await send("orders", ...["0", "1", "2", "3"].map((body) => ({ body })));
    const receiver = client.createReceiver("orders");
    const taken = await take(receiver, 4);
    await receiver.renewMessageLock(taken[0]);
    await receiver.completeMessage(taken[0]);
    await receiver.abandonMessage(taken[1]);
    await receiver.deferMessage(taken[2]);
    await receiver.deadLetterMessage(taken[3], { deadLetterReason: "bad" });
    const [deferred] = await receiver.receiveDeferredMessages(taken[2].sequenceNumber);
    await receiver.completeMessage(deferred);
    await receiver.completeMessage((await take(receiver, 1))[0]);
    await receiver.close();
  },

  async "dead letters"() {
    const receiver = client.createReceiver("orders", { subQueueType: "deadLetter" });
    const [message] = await take(receiver, 1);
    assert.equal(message.deadLetterReason, "bad");
    await receiver.completeMessage(message);
    await receiver.close();
  },

  async "peek, receive and delete"() {
    await send("orders", { body: "a" }, { body: "b" });
    const receiver = client.createReceiver("orders", { receiveMode: "receiveAndDelete" });
    assert.equal((await receiver.peekMessages(5)).length, 2);
    await take(receiver, 2);
    await receiver.close();
  },

  async "schedule and cancel"() {
    const sender = client.createSender("orders");
    const later = new Date(Date.now() + 3600000);
    await sender.cancelScheduledMessages(await sender.scheduleMessages({ body: "later" }, later));
    await sender.close();
  },

  async sessions() {
    await send("sessions", { body: "x", sessionId: "blue" });
    const receiver = await client.acceptNextSession("sessions");
    await receiver.setSessionState("state");
    assert.equal(await receiver.getSessionState(), "state");
    await receiver.renewSessionLock();
    await receiver.completeMessage((await take(receiver, 1))[0]);
    await receiver.close();
  },

  async topic() {
    await send("events", { body: "t" });
    const receiver = client.createReceiver("events", "all");
    await receiver.completeMessage((await take(receiver, 1))[0]);
    await receiver.close();
  },
};

for (const [scenario, run] of Object.entries(scenarios)) {
  let error = null;
  try {
    await run();
  } catch (failure) {
    error = String(failure);
  }
  console.log(JSON.stringify({ scenario, error }));
}
await client.close();
