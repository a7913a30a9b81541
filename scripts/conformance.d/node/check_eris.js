'use strict';
// eris against the simulator. It speaks https only, so the simulator must serve it, and Node must trust its certificate
// (NODE_EXTRA_CA_CERTS).

const { Agent } = require('node:https');
const Eris = require('eris');

const { Adapted } = require('./adapted.js');
const { flow } = require('./flow.js');
const { Sim } = require('./sim.js');
const { run } = require('./steps.js');

class ErisClient extends Adapted {
  constructor(origin) {
    super();
    this.url = new URL(origin);
  }

  connect(token) {
    // eris has no option for the port.
    const agent = new Agent({ keepAlive: true });
    agent.defaultPort = Number(this.url.port);
    const client = new Eris.Client(`Bot ${token}`, {
      intents: ['guilds', 'guildMessages', 'guildMessageReactions', 'messageContent'],
      rest: { agent, baseURL: '/api/v10', domain: this.url.hostname },
    });
    return this.start(client, (message, emoji, user) => [message.id, user.id, emoji.name]);
  }

  async send(channelId, content, { name, contents }) {
    const message = await this.client.createMessage(channelId, content, { name, file: contents });
    return { id: message.id, url: message.attachments[0].url };
  }

  react(channelId, messageId, emoji) {
    return this.client.addMessageReaction(channelId, messageId, emoji);
  }

  async close() {
    this.client.disconnect({ reconnect: false });
  }
}

async function main(origin) {
  const failures = await run('eris', flow(new Sim(origin), new ErisClient(origin)));
  // A client that a failed step left behind would keep the process alive.
  process.exit(failures === 0 ? 0 : 1);
}

main(process.argv[2]);
