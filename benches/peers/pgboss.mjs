// pg-boss: one queue with the policy that keeps the jobs of each key one at a time and in order.
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
await boss.work("operations", { localConcurrency: workers, batchSize: 1, pollingIntervalSeconds: 0.5 }, async ([job]) => {
  judge.begin(job.data);
  judge.end(job.data);
});
await judge.done;
report(judge, guilds * perGuild, began);
await boss.stop({ graceful: false });
process.exit(0);
