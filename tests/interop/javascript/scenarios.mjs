// Scenarios of the JavaScript client against a namespace. Usage: node scenarios.mjs NAME, connection string in CONNECTION.
// Prints one JSON value: what the client saw. The Python test that starts it makes the entities and judges the answer.
import { ServiceBusClient, ServiceBusAdministrationClient, delay } from "@azure/service-bus";
import assert from "node:assert/strict";

const connection = process.env.CONNECTION;

async function withClient(work) {
  const client = new ServiceBusClient(connection, { retryOptions: { maxRetries: 1, timeoutInMs: 10000 } });
  try {
    return await work(client);
  } finally {
    await client.close();
  }
}

async function take(receiver, count, maxWaitTimeInMs = 5000) {
  const taken = [];
  while (taken.length < count) {
    const batch = await receiver.receiveMessages(count - taken.length, { maxWaitTimeInMs });
    if (batch.length === 0) break;
    taken.push(...batch);
  }
  return taken;
}

const plain = (message) => ({
  messageId: message.messageId,
  body: message.body,
  properties: message.applicationProperties,
  sessionId: message.sessionId,
  subject: message.subject,
  deliveryCount: message.deliveryCount,
  state: message.state,
});

const scenarios = {
  async sendAndComplete(client) {
    const sender = client.createSender("plain");
    await sender.sendMessages({ body: { hello: "world" }, messageId: "one", subject: "s", applicationProperties: { n: 1, t: "ü", b: true } });
    const receiver = client.createReceiver("plain");
    const [message] = await take(receiver, 1);
    await receiver.completeMessage(message);
    const rest = await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 });
    return { seen: plain(message), rest: rest.length };
  },

  async batch(client) {
    const sender = client.createSender("plain");
    const batch = await sender.createMessageBatch();
    for (let i = 0; i < 100; i++) assert(batch.tryAddMessage({ body: `b${i}`, messageId: `b${i}` }));
    await sender.sendMessages(batch);
    await sender.sendMessages(Array.from({ length: 50 }, (_, i) => ({ body: i, messageId: `l${i}` })));
    const receiver = client.createReceiver("plain", { receiveMode: "receiveAndDelete" });
    const messages = await take(receiver, 150);
    return { count: messages.length, first: plain(messages[0]), last: plain(messages[149]), limit: batch.maxSizeInBytes };
  },

  async settle(client) {
    const sender = client.createSender("plain");
    await sender.sendMessages(["abandon", "defer", "dead"].map((name) => ({ body: name, messageId: name })));
    const receiver = client.createReceiver("plain");
    const messages = await take(receiver, 3);
    const byName = Object.fromEntries(messages.map((m) => [m.messageId, m]));
    await receiver.abandonMessage(byName.abandon, { touched: "yes" });
    await receiver.deferMessage(byName.defer);
    await receiver.deadLetterMessage(byName.dead, { deadLetterReason: "why", deadLetterErrorDescription: "because", extra: 7 });
    const [again] = await take(receiver, 1);
    await receiver.renewMessageLock(again);
    await receiver.completeMessage(again);
    const [deferred] = await receiver.receiveDeferredMessages([byName.defer.sequenceNumber]);
    await receiver.completeMessage(deferred);
    const deadReceiver = client.createReceiver("plain", { subQueueType: "deadLetter" });
    const [dead] = await take(deadReceiver, 1);
    await deadReceiver.completeMessage(dead);
    return {
      again: plain(again),
      deferred: plain(deferred),
      dead: { ...plain(dead), reason: dead.deadLetterReason, description: dead.deadLetterErrorDescription },
    };
  },

  async peekAndSchedule(client) {
    const sender = client.createSender("plain");
    const soon = new Date(Date.now() + 2000);
    const [kept, cancelled] = await sender.scheduleMessages(
      [{ body: "later", messageId: "later" }, { body: "never", messageId: "never" }], soon);
    await sender.cancelScheduledMessages(cancelled);
    const receiver = client.createReceiver("plain");
    const peeked = await receiver.peekMessages(10);
    const [message] = await take(receiver, 1, 8000);
    await receiver.completeMessage(message);
    return { peeked: peeked.map(plain), message: plain(message), kept: kept.toString(), onTime: Date.now() >= soon.getTime() };
  },

  async sessions(client) {
    const sender = client.createSender("sessions");
    await sender.sendMessages(["a", "b", "a", "b"].map((s, i) => ({ body: i, messageId: `m${i}`, sessionId: s })));
    const named = await client.acceptSession("sessions", "a");
    await named.setSessionState({ step: 3 });
    const state = await named.getSessionState();
    const before = named.sessionLockedUntilUtc;
    await delay(1100);
    await named.renewSessionLock();
    const renewed = named.sessionLockedUntilUtc > before;
    const first = await take(named, 2);
    for (const message of first) await named.completeMessage(message);
    const next = await client.acceptNextSession("sessions");
    const second = await take(next, 2);
    for (const message of second) await next.completeMessage(message);
    let refused = null;
    try { await client.acceptSession("sessions", "a"); } catch (error) { refused = error.code; }
    await named.close();
    await next.close();
    return { state, renewed, first: first.map((m) => m.body), nextId: next.sessionId, second: second.map((m) => m.body), refused };
  },

  async rules(client) {
    const manager = client.createRuleManager("topic", "filtered");
    await manager.deleteRule("$Default");
    // Without sqlParameters: this client drops them here, only its administration client sends them.
    await manager.createRule("big", { sqlExpression: "amount > 10" });
    await manager.createRule("red", { applicationProperties: { colour: "red" } });
    const names = [];
    for await (const rule of manager.listRules()) names.push(rule.name);
    const sender = client.createSender("topic");
    await sender.sendMessages([
      { body: "small", messageId: "1", applicationProperties: { amount: 5 } },
      { body: "large", messageId: "2", applicationProperties: { amount: 50 } },
      { body: "red", messageId: "3", applicationProperties: { amount: 1, colour: "red" } },
    ]);
    const receiver = client.createReceiver("topic", "filtered", { receiveMode: "receiveAndDelete" });
    const messages = await take(receiver, 2);
    return { names: names.sort(), bodies: messages.map((m) => m.body).sort() };
  },

  async subscribe(client) {
    const sender = client.createSender("plain");
    const seen = [];
    const receiver = client.createReceiver("plain", { maxAutoLockRenewalDurationInMs: 10000 });
    const done = new Promise((resolve, reject) => {
      receiver.subscribe(
        { processMessage: async (m) => { seen.push(m.body); if (seen.length === 20) resolve(); }, processError: async (a) => reject(a.error) },
        { maxConcurrentCalls: 5 });
    });
    await sender.sendMessages(Array.from({ length: 20 }, (_, i) => ({ body: i, messageId: `s${i}` })));
    await done;
    await receiver.close();
    return seen.sort((a, b) => a - b);
  },

  async errors(client) {
    const codes = {};
    try { await client.createSender("missing").sendMessages({ body: 1 }); } catch (error) { codes.missing = error.code; }
    try { await client.createSender("plain").sendMessages({ body: "x".repeat(300 * 1024) }); } catch (error) { codes.large = error.code; }
    try { await client.createSender("sessions").sendMessages({ body: 1 }); } catch (error) { codes.sessionless = error.code; }
    return codes;
  },
};

async function administration() {
  const admin = new ServiceBusAdministrationClient(connection);
  const properties = await admin.getNamespaceProperties();
  await admin.createQueue("made/by-js", { maxDeliveryCount: 3, lockDuration: "PT30S", requiresSession: true });
  const queue = await admin.getQueue("made/by-js");
  await admin.updateQueue({ ...queue, maxDeliveryCount: 7 });
  const changed = await admin.getQueue("made/by-js");
  const runtime = await admin.getQueueRuntimeProperties("made/by-js");
  await admin.createTopic("made-topic");
  await admin.createSubscription("made-topic", "sub");
  const sql = (sqlExpression, name, value) => ({ sqlExpression, sqlParameters: { [name]: value } });
  await admin.createRule("made-topic", "sub", "r", sql("x = @one", "@one", 1), sql("SET y = @two", "@two", "2"));
  const rule = await admin.getRule("made-topic", "sub", "r");
  const names = [];
  for await (const one of admin.listQueues()) names.push(one.name);
  await admin.deleteQueue("made/by-js");
  const exists = await admin.queueExists("made/by-js");
  return {
    name: properties.name, sku: properties.messagingSku, queue, changed: changed.maxDeliveryCount,
    active: runtime.activeMessageCount, rule: { filter: rule.filter, action: rule.action }, names, exists,
  };
}

const name = process.argv[2];
const answer = name === "administration" ? await administration() : await withClient(scenarios[name]);
console.log(JSON.stringify(answer));
