'use strict';
// Named steps, each reported on one line.

/** Timeout of a step: a step that takes this long is stuck and fails. */
const STEP_LIMIT_MS = 60_000;

/** Runs steps in order. After a `needed` one has failed, the others are reported as not reached. */
async function run(label, steps) {
  let stopped = null;
  let failures = 0;
  for (const { title, body, needed } of steps) {
    const problem = stopped ? `not reached, since ${stopped} failed` : await attempt(body);
    if (problem === null) {
      console.log(`ok ${label}: ${title}`);
    } else {
      failures += 1;
      console.log(`FAILED ${label}: ${title}: ${problem}`);
      if (needed) stopped ??= JSON.stringify(title);
    }
  }
  return failures;
}

async function attempt(body) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done after ${STEP_LIMIT_MS / 1000} s`)), STEP_LIMIT_MS);
  });
  try {
    await Promise.race([body(), limit]);
    return null;
  } catch (error) {
    return describe(error);
  } finally {
    clearTimeout(timer);
  }
}

function describe(error) {
  const kind = error instanceof Error && error.name !== 'Error' ? `${error.name}: ` : '';
  return `${kind}${error?.message ?? error}`.replaceAll(/\s*\n\s*/g, ' ').slice(0, 600);
}

/** Returns the next event that `wanted` accepts, with all its arguments. */
function next(emitter, event, wanted = () => true) {
  return new Promise(resolve => {
    const listener = (...values) => {
      if (!wanted(...values)) return;
      emitter.off(event, listener);
      resolve(values);
    };
    emitter.on(event, listener);
  });
}

module.exports = { run, next };
