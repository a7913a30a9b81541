'use strict';
// oceanic.js against the simulator.

const { Client } = require('oceanic.js');

const { Adapted } = require('./adapted.js');
const { flow } = require('./flow.js');
const { Sim } = require('./sim.js');
const { run } = require('./steps.js');

class Oceanic extends Adapted {
  constructor(origin) {
    super();
    this.origin = origin;
  }

  connect(token) {
    const client = new Client({
      auth: `Bot ${token}`,
      rest: { baseURL: `${this.origin}/api/v10` },
      gateway: { intents: ['GUILDS', 'GUILD_MESSAGES', 'GUILD_MESSAGE_REACTIONS', 'MESSAGE_CONTENT'] },
    });
    return this.start(client, (message, user, { emoji }) => [message.id, user.id, emoji.name]);
  }

  async send(channelId, content, file) {
    const message = await this.client.rest.channels.createMessage(channelId, { content, files: [file] });
    return { id: message.id, url: message.attachments.first().url };
  }

  react(channelId, messageId, emoji) {
    return this.client.rest.channels.createReaction(channelId, messageId, emoji);
  }

  async close() {
    this.client.disconnect(false);
  }
}

async function main(origin) {
  const failures = await run('oceanic', flow(new Sim(origin), new Oceanic(origin)));
  // A client that a failed step left behind would keep the process alive.
  process.exit(failures === 0 ? 0 : 1);
}

main(process.argv[2]);
