'use strict';
// What oceanic.js and eris share: the names of their events, and their caches.

const { ReceivedEvents } = require('./flow.js');
const { next } = require('./steps.js');

/** A client of one of them, as the flow uses it; sending differs. */
class Adapted {
  constructor() {
    this.received = new ReceivedEvents();
    this.client = null;
  }

  /** Connects; `reactionOf` reads `[message, user, emoji]` from the arguments of the library's event. */
  async start(client, reactionOf) {
    this.client = client;
    client.on('error', error => console.log(`  client error: ${error.message ?? error}`));
    client.on('messageCreate', ({ content }) => this.received.record('message', content));
    client.on('messageReactionAdd', (...values) => this.received.record('reaction', ...reactionOf(...values)));
    client.on('interactionCreate', async interaction => {
      await interaction.createMessage({ content: 'Hello' });
      this.received.record('answered', interaction.id);
    });
    client.on('shardResume', () => this.received.record('resumed'));
    const ready = next(client, 'ready');
    await client.connect();
    await ready;
  }

  ownId() {
    return this.client.user.id;
  }

  guildNames() {
    return this.client.guilds.map(({ id, name }) => [id, name]);
  }
}

module.exports = { Adapted };
