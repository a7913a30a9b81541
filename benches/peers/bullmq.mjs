// BullMQ: a number of callers add jobs to one queue continuously, one by one or in batches, each over its own connection or
// all over one. The jobs are not executed.
import { Queue } from "bullmq";

const [url, callers, batch, guilds, seconds, connections] = process.argv.slice(2);
const { hostname: host, port } = new URL(url);
const open = () => new Queue("operations", { connection: { host, port: Number(port) } });
const queues = Array.from({ length: Number(connections) }, open);
await Promise.all(queues.map((queue) => queue.waitUntilReady()));
const [queue] = queues;

// The content of the operation that is submitted to Guildhall.
const job = (nth) => ({
  name: "assign_role",
  data: {
    guild_id: String(1300000000000000000n + BigInt(nth % Number(guilds))),
    user_id: String(1400000000000000000n + BigInt(nth)),
    role_id: "1300000000000000007",
  },
});

let nth = 0;
let done = 0;
const took = [];
const began = performance.now();
const ends = began + Number(seconds) * 1000;
const add = async (queue) => {
  while (performance.now() < ends) {
    const asked = performance.now();
    if (Number(batch) === 1) {
      const { name, data } = job(nth++);
      await queue.add(name, data);
    } else {
      await queue.addBulk(Array.from({ length: Number(batch) }, () => job(nth++)));
    }
    took.push(performance.now() - asked);
    done += Number(batch);
  }
};
await Promise.all(Array.from({ length: Number(callers) }, (_, caller) => add(queues[caller % queues.length])));
const lasted = (performance.now() - began) / 1000;
const kept = await queue.getWaitingCount();
if (kept < done) throw new Error(`added ${done} jobs, but only ${kept} wait`);
took.sort((one, other) => one - other);
const at = (share) => took[Math.floor((took.length - 1) * share)];
console.log(JSON.stringify({ per_s: done / lasted, p50_ms: at(0.5), p99_ms: at(0.99) }));
await queue.obliterate({ force: true });
await Promise.all(queues.map((queue) => queue.close()));
