// Consumes events from RabbitMQ: checks their order, skips duplicates, gives up on what fails.
//
//     npm install amqplib
//     node consumer.mjs amqp://guest:guest@127.0.0.1:5672/%2F             all partitions, shared with other consumers
//     node consumer.mjs amqp://guest:guest@127.0.0.1:5672/%2F 'member.#'   a queue of its own, for these events
//
// It prints one JSON line for each event. A real consumer stores the last position of each stream in the same transaction as the
// effect of the event; this one has it in memory.

import amqp from "amqplib";

const EXCHANGE = "guildhall.events";
const QUEUES = Array.from({ length: 32 }, (_, number) => `guildhall.events.p${String(number).padStart(2, "0")}`);
const ATTEMPTS = 3;

// The last position of each stream: the events of one guild.
const lastPositions = new Map();

// "new", "duplicate" or "gap" for an event, whose position is remembered.
function check(headers) {
  const stream = headers["guildhall-stream"];
  if (stream === undefined) return "new"; // Interactions have no order.
  const epoch = Number(headers["guildhall-epoch"]);
  const counter = Number(headers["guildhall-counter"]);
  const last = lastPositions.get(stream);
  if (last && (epoch < last.epoch || (epoch === last.epoch && counter <= last.counter))) return "duplicate";
  lastPositions.set(stream, { epoch, counter });
  if (!last) return "new"; // Events before it were consumed by an earlier process.
  return counter === (epoch === last.epoch ? last.counter + 1 : 1) ? "new" : "gap";
}

// What the bot does with an event.
async function handle(event) {
  console.log(JSON.stringify({ event: event.event_type, id: event.event_id, guild: event.guild_id }));
}

const [url, pattern] = process.argv.slice(2);
if (!url) {
  console.error("usage: consumer.mjs AMQP_URL [PATTERN]");
  process.exit(2);
}
const connection = await amqp.connect(url);
const channel = await connection.createChannel();
await channel.prefetch(10);

// One message after the other: amqplib would start them at the same time.
let before = Promise.resolve();
function onMessage(message) {
  if (message) before = before.then(() => consume(message));
}

async function consume(message) {
  const { messageId, headers } = message.properties;
  const found = check(headers);
  if (found === "gap") console.error(`events are missing before ${messageId} of ${headers["guildhall-stream"]}`);
  if (found === "duplicate") return channel.ack(message);
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    try {
      await handle(JSON.parse(message.content));
      return channel.ack(message);
    } catch (error) {
      // It is retried in place, so that later events of the guild wait.
      console.error(`attempt ${attempt} of ${messageId} failed: ${error}`);
    }
  }
  // Into the queue of dead letters: guildhall broker dlq list
  channel.reject(message, false);
}

let queues = QUEUES;
if (pattern) {
  const { queue } = await channel.assertQueue("", { exclusive: true });
  await channel.bindQueue(queue, EXCHANGE, pattern);
  queues = [queue];
}
for (const queue of queues) await channel.consume(queue, onMessage);
console.log(JSON.stringify({ ready: queues[0] }));
