// Scenarios of @azure/service-bus against a namespace, whose connection string is in CONNECTION. A JSON line each.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
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

  // After Microsoft's own live test of AMQP messages: every section and kind of body, on queues with and without sessions.
  async "AMQP messages"() {
    for (const [queue, sessionId] of [["orders", undefined], ["sessions", "amqp"]]) {
      for (const [bodyType, body] of [["data", "text"], ["value", { a: 1, b: [true, "x"] }], ["sequence", [1, "two", { three: 3 }]]]) {
        await annotated(queue, sessionId, bodyType, body);
      }
    }
  },
};

async function annotated(queue, sessionId, bodyType, body) {
  const sent = {
    body,
    bodyType,
    header: { deliveryCount: 0, durable: false, firstAcquirer: false, priority: 20, timeToLive: 100000 },
    footer: { propFooter: "foot" },
    messageAnnotations: { propMsgAnnotate: "annotation" },
    deliveryAnnotations: { propDelAnnot: 123 },
    applicationProperties: { propOne: 1, propTwo: "two", propThree: true, propFour: new Date(0) },
    properties: {
      contentEncoding: "application/json; charset=utf-8",
      correlationId: randomUUID(),
      messageId: randomUUID(),
      groupId: sessionId,
      to: "to",
      subject: "subject",
      replyTo: "replyTo",
      replyToGroupId: "replyToSessionId",
    },
  };
  const sender = client.createSender(queue);
  await sender.sendMessages(sent);
  await sender.close();
  const receiver = sessionId ? await client.acceptSession(queue, sessionId) : client.createReceiver(queue);
  const [received] = await take(receiver, 1);
  const raw = received._rawAmqpMessage;
  assert.equal(raw.bodyType, bodyType);
  assert.deepEqual(received.body, body);
  assert.equal(raw.footer.propFooter, "foot");
  assert.equal(raw.messageAnnotations.propMsgAnnotate, "annotation");
  assert.equal(raw.header.priority, 20);
  for (const name of ["correlationId", "messageId", "to", "subject", "replyTo", "replyToGroupId", "contentEncoding"]) {
    assert.equal(raw.properties[name], sent.properties[name], name);
  }
  assert.equal(raw.properties.groupId, sessionId);
  for (const [name, value] of Object.entries(sent.applicationProperties)) {
    // The client sends a date as a number.
    assert.equal(raw.applicationProperties[name], value instanceof Date ? value.getTime() : value, name);
  }
  await receiver.completeMessage(received);
  await receiver.close();
}

// Numbered messages to four sessions: each is sent until it is accepted, then said.
async function stream(count) {
  const sending = ["a", "b", "c", "d"].map(async (sessionId) => {
    const sender = client.createSender("sessions");
    for (let number = 0; number < count; ) {
      try {
        await sender.sendMessages({ body: `${sessionId}-${number}`, messageId: `${sessionId}-${number}`, sessionId });
        console.log(JSON.stringify({ accepted: `${sessionId}-${number}` }));
        number += 1;
      } catch (failure) {
        console.error(String(failure));
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }
    await sender.close();
  });
  await Promise.all(sending);
}

if (process.argv[2] === "stream") {
  await stream(Number(process.argv[3]));
  await client.close();
  process.exit(0);
}

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
