// graphile-worker: one named queue for each guild, which makes its jobs run one at a time and in order.
import { makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { args, Judge, report } from "./common.mjs";

const { url, guilds, perGuild, workers } = args();
const judge = new Judge(guilds, perGuild);
const quiet = () => () => {};
const { Logger } = await import("graphile-worker");
const logger = new Logger(quiet);
const pool = new pg.Pool({ connectionString: url, max: workers + 2 });
// graphile-worker requires these listeners.
const fail = (error) => {
  console.error(error);
  process.exit(1);
};
pool.on("error", fail);
pool.on("connect", (client) => client.on("error", fail));
const utils = await makeWorkerUtils({ pgPool: pool, logger });
await utils.migrate();

const began = performance.now();
for (let n = 0; n < perGuild; n += 1) {
  const batch = [];
  for (let guild = 0; guild < guilds; guild += 1) {
    batch.push({ identifier: "operation", payload: { guild, n }, queueName: `guild-${guild}` });
  }
  await utils.addJobs(batch);
}
const runner = await run({
  pgPool: pool,
  concurrency: workers,
  noHandleSignals: true,
  pollInterval: 100,
  logger,
  taskList: {
    operation: async (job) => {
      judge.begin(job);
      judge.end(job);
    },
  },
});
await judge.done;
report(judge, guilds * perGuild, began);
await runner.stop();
await utils.release();
await pool.end();
