'use strict';
// A discord.js client of the simulator, and a gate that keeps it from reconnecting.

const { Client, Events, GatewayIntentBits } = require('discord.js');

/** Where REST calls go: to the simulator, or through a proxy. */
function restOrigin(origin) {
  return process.env.REST_ORIGIN ?? origin;
}

function newClient(origin, options = {}) {
  const client = new Client({
    intents: [
      GatewayIntentBits.Guilds,
      GatewayIntentBits.GuildMembers,
      GatewayIntentBits.GuildMessages,
      GatewayIntentBits.MessageContent,
    ],
    rest: { api: `${restOrigin(origin)}/api` },
    ...options,
  });
  // Without a listener an `error` event would end the process; the waiting step reports what is missing.
  client.on(Events.Error, error => console.log(`  client error: ${error.message}`));
  client.on(Events.ShardError, error => console.log(`  shard error: ${error.message}`));
  return client;
}

/**
 * Keeps a disconnected shard from opening a new connection until the gate opens: the shard first requests its session,
 * and waits for it.
 */
function holdReconnect(client) {
  const options = client.ws._ws.options;
  const retrieve = options.retrieveSessionInfo;
  let open;
  const opened = new Promise(resolve => (open = resolve));
  let away = false;
  client.once(Events.ShardReconnecting, () => (away = true));
  options.retrieveSessionInfo = async shardId => {
    if (away) await opened;
    return retrieve(shardId);
  };
  return {
    open() {
      options.retrieveSessionInfo = retrieve;
      open();
    },
  };
}

module.exports = { holdReconnect, newClient };
