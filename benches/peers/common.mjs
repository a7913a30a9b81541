// What both peers are asked to do: for every guild so many jobs, one at a time and in order.
export function args() {
  const [url, guilds, perGuild, workers] = process.argv.slice(2);
  return { url, guilds: Number(guilds), perGuild: Number(perGuild), workers: Number(workers ?? 10) };
}

// Sees to it that each guild's jobs come in order, and says when all have come.
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

// One JSON object, as the benchmark reads it. Seconds run from the first submit to the last job's end.
export function report(judge, jobs, began) {
  const seconds = (performance.now() - began) / 1000;
  console.log(JSON.stringify({ per_s: jobs / seconds, order_violations: judge.violations }));
}
