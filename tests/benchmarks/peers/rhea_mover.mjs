// Moves a backlog with rhea: an order as JSON on stdin, what it cost as JSON on stdout.

import fs from "node:fs";
import rhea from "rhea";

const order = JSON.parse(fs.readFileSync(0, "utf8"));
const OURS = ["x-ms-path", "x-ms-sessionid", "x-ms-timetolive", "x-ms-scheduledenqueuetimeutc"];
const ca = [fs.readFileSync(order.ca_file)];

function connected(side) {
  const container = rhea.create_container();
  const connection = container.connect({
    host: side.host, port: side.port, transport: "tls", ca, username: "anonymous", sasl_init_hostname: side.host, reconnect: false,
  });
  return new Promise((resolve, reject) => {
    connection.once("connection_open", () => resolve(connection));
    for (const wrong of ["connection_error", "disconnected", "session_error"]) {
      connection.on(wrong, (context) => reject(context.error ?? context.connection.error ?? new Error(wrong)));
    }
  });
}

async function authorized(side) {
  const connection = await connected(side);
  const sender = connection.open_sender("$cbs");
  const receiver = connection.open_receiver({ source: { address: "$cbs" }, target: { address: "answers" } });
  await Promise.all([new Promise((done) => sender.once("sendable", done)), new Promise((done) => receiver.once("receiver_open", done))]);
  for (const [path, token] of Object.entries(side.tokens)) {
    const answer = new Promise((done) => receiver.once("message", (context) => done(context.message)));
    sender.send({
      message_id: path,
      reply_to: "answers",
      application_properties: { operation: "put-token", type: "servicebus.windows.net:sastoken", name: `amqps://${side.host}/${path}` },
      body: token,
    });
    const status = (await answer).application_properties["status-code"];
    if (status < 200 || status > 299) throw new Error(`${path}: ${status}`);
  }
  return connection;
}

function restored(message) {
  const properties = { ...message.application_properties };
  for (const name of OURS) delete properties[name];
  const { message_id, subject, content_type, correlation_id, body } = message;
  return { message_id, subject, content_type, correlation_id, body, application_properties: properties };
}

const began = process.cpuUsage();
const [home, away] = await Promise.all([authorized(order.primary), authorized(order.secondary)]);
const sender = home.open_sender(order.destination);
await new Promise((done) => sender.once("sendable", done));
const waiting = [];
const sent = new Map();
let left = order.messages;
await new Promise((done, fail) => {
  const send = () => {
    while (waiting.length && sender.sendable()) {
      const { message, delivery } = waiting.shift();
      sent.set(sender.send(restored(message)).id, delivery);
    }
  };
  sender.on("sendable", send);
  sender.on("rejected", (context) => fail(context.delivery.remote_state.error));
  sender.on("accepted", (context) => {
    sent.get(context.delivery.id).accept();
    sent.delete(context.delivery.id);
    left -= 1;
    if (left === 0) done();
  });
  for (const path of order.queues) {
    const receiver = away.open_receiver({ source: { address: path }, credit_window: order.window, autoaccept: false });
    receiver.on("receiver_error", (context) => fail(context.receiver.error));
    receiver.on("message", (context) => {
      waiting.push(context);
      send();
    });
  }
});
for (const connection of [home, away]) {
  await new Promise((done) => {
    connection.once("connection_close", done);
    connection.close();
  });
}
const used = process.cpuUsage(began);
console.log(JSON.stringify({ cpu_seconds: (used.user + used.system) / 1e6 }));
process.exit(0);
