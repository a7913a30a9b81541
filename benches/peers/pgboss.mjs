// pg-boss: one queue with the policy that keeps the jobs of each key one at a time and in order.
import { setTimeout } from "node:timers/promises";
import { PgBoss } from "pg-boss";
import { args, Judge, report } from "./common.mjs";

const { url, guilds, perGuild, workers } = args();
const judge = new Judge(guilds, perGuild);
const boss = new PgBoss({ connectionString: url, max: workers + 2 });
boss.on("error", (error) => {
  console.error(error);
  process.exit(1);
});
await boss.start();
await boss.createQueue("operations", { policy: "key_strict_fifo" });

const began = performance.now();
for (let n = 0; n < perGuild; n += 1) {
  const batch = [];
  for (let guild = 0; guild < guilds; guild += 1) {
    batch.push({ data: { guild, n }, singletonKey: `guild-${guild}` });
  }
  await boss.insert("operations", batch);
}
// One job at a time for each worker, each completed separately: jobs that are completed together are repeated together
// after a crash. `work` pauses for half a second after each job, so the workers call `fetch` themselves.
let done = false;
judge.done.then(() => (done = true));
const work = async () => {
  while (!done) {
    const [job] = await boss.fetch("operations");
    if (job === undefined) {
      await setTimeout(10);
      continue;
    }
    judge.begin(job.data);
    judge.end(job.data);
    await boss.complete("operations", job.id);
  }
};
await Promise.all(Array.from({ length: workers }, work));
report(judge, guilds * perGuild, began);
await boss.stop({ graceful: false });
process.exit(0);
