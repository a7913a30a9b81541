// The work of both peers: a number of jobs for every guild, one at a time and in order.
export function args() {
  const [url, guilds, perGuild, workers] = process.argv.slice(2);
  return { url, guilds: Number(guilds), perGuild: Number(perGuild), workers: Number(workers ?? 10) };
}

// Checks that each guild's jobs run in order, and resolves `done` after the last one.
export class Judge {
  constructor(guilds, perGuild) {
    this.next = new Array(guilds).fill(0);
    this.left = guilds * perGuild;
    this.violations = 0;
    this.running = new Set();
    this.done = new Promise((resolve) => (this.finish = resolve));
  }

  begin({ guild, n }) {
    if (this.running.has(guild) || this.next[guild] !== n) this.violations += 1;
    this.running.add(guild);
    this.next[guild] = n + 1;
  }

  end({ guild }) {
    this.running.delete(guild);
    this.left -= 1;
    if (this.left === 0) this.finish();
  }
}

// Prints one JSON object for the benchmark. The time runs from the first submission to the end of the last job.
export function report(judge, jobs, began) {
  const seconds = (performance.now() - began) / 1000;
  console.log(JSON.stringify({ per_s: jobs / seconds, order_violations: judge.violations }));
}
