// The typed corpus with @azure/service-bus: `corpus.mjs send QUEUE FILE` and `corpus.mjs read COUNT QUEUE...`.
import { readFileSync } from "node:fs";
import { ServiceBusClient } from "@azure/service-bus";
import rhea from "rhea";

const { types } = rhea;
const WAIT = 20000;

// Beyond 2^53 rhea takes and gives the eight bytes of a long.
function long(text, signed) {
  const number = BigInt(text);
  if (number >= BigInt(Number.MIN_SAFE_INTEGER) && number <= BigInt(Number.MAX_SAFE_INTEGER)) return Number(number);
  const bytes = Buffer.alloc(8);
  if (signed) bytes.writeBigInt64BE(number);
  else bytes.writeBigUInt64BE(number);
  return bytes;
}

const bits = (text, size) => (size === 4 ? Buffer.from(text, "hex").readFloatBE() : Buffer.from(text, "hex").readDoubleBE());

function built([kind, text]) {
  switch (kind) {
    case "null": return null;
    case "boolean": return types.wrap_boolean(text === "true");
    case "long": return types.wrap_long(long(text, true));
    case "ulong": return types.wrap_ulong(long(text, false));
    case "float": return types.wrap_float(bits(text, 4));
    case "double": return types.wrap_double(bits(text, 8));
    case "timestamp": return types.wrap_timestamp(Number(text));
    case "uuid": return types.wrap_uuid(Buffer.from(text.replaceAll("-", ""), "hex"));
    case "binary": return types.wrap_binary(Buffer.from(text, "hex"));
    case "char": return types.wrap_char(Number(text));
    case "string": return types.wrap_string(text);
    case "symbol": return types.wrap_symbol(text);
    case "list": return types.wrap_list(text.map(built));
    case "map": return types.wrap_map(Object.fromEntries(text.map(([key, value]) => [key, built(value)])));
    default: return types[`wrap_${kind}`](Number(text));
  }
}

function message(one) {
  return {
    body: "data" in one ? Buffer.from(one.data, "hex") : built(one.value),
    bodyType: "data" in one ? "data" : "value",
    properties: { messageId: one.id, ...one.fields },
    applicationProperties: Object.fromEntries(Object.entries(one.properties).map(([name, value]) => [name, built(value)])),
  };
}

function view(value) {
  if (value === null || value === undefined) return null;
  if (Buffer.isBuffer(value) || value instanceof Uint8Array) return ["bytes", Buffer.from(value).toString("hex")];
  if (value instanceof Date) return ["date", value.getTime()];
  if (Array.isArray(value)) return value.map(view);
  // A boolean that was sent in its long form comes as 0 or 1.
  if (typeof value === "boolean") value = Number(value);
  if (typeof value === "number") {
    const bytes = Buffer.alloc(8);
    bytes.writeDoubleBE(value);
    return ["number", bytes.toString("hex")];
  }
  if (typeof value === "object") {
    return Object.fromEntries(Object.keys(value).sort().map((key) => [key, view(value[key])]));
  }
  return [typeof value, String(value)];
}

const seen = (received) => {
  const raw = received._rawAmqpMessage;
  const { to, subject, replyTo, correlationId, contentType } = received;
  return [raw.bodyType, view(raw.body), view(raw.applicationProperties ?? {}), [to, subject, replyTo, correlationId, contentType].map(view)];
};

const [what, ...rest] = process.argv.slice(2);
const client = new ServiceBusClient(process.env.CONNECTION, { retryOptions: { maxRetries: 1, timeoutInMs: 20000 } });
if (what === "send") {
  const sender = client.createSender(rest[0]);
  for (const one of JSON.parse(readFileSync(rest[1], "utf8"))) await sender.sendMessages(message(one));
} else {
  for (const queue of rest.slice(1)) {
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete", skipParsingBodyAsJson: true });
    for (let left = Number(rest[0]); left > 0; ) {
      const taken = await receiver.receiveMessages(left, { maxWaitTimeInMs: WAIT });
      if (taken.length === 0) break;
      left -= taken.length;
      for (const one of taken) console.log(JSON.stringify({ queue, id: one.messageId, view: seen(one) }));
    }
    await receiver.close();
  }
}
await client.close();
