'use strict';
// What every client library does with the simulator. The libraries differ in their client, which a check_*.js adapts.

const assert = require('node:assert/strict');
const { EventEmitter } = require('node:events');
const { setTimeout: pause } = require('node:timers/promises');

const FILE = { name: 'tide table.txt', contents: Buffer.from('high water 06:12\nlow water 12:30\n') };

/** Records the events of a client, so that a step can search them and wait for them. */
class ReceivedEvents {
  constructor() {
    this.events = [];
    this.changed = new EventEmitter();
  }

  record(...what) {
    this.events.push(what.join(' '));
    this.changed.emit('received');
  }

  count(...what) {
    return this.events.filter(event => event === what.join(' ')).length;
  }

  /** Waits for an event that is recorded already, or that comes. */
  async wait(...what) {
    while (this.count(...what) === 0) await new Promise(resolve => this.changed.once('received', resolve));
  }
}

/**
 * Returns the steps for a `client`, which has:
 *
 * - `connect(token)`: returns when the client is ready and has its guilds
 * - `ownId()`, `guildNames()`: the bot's id, and `[id, name]` of each guild, as the client knows them
 * - `send(channelId, content, file)`: sends a message with a file; returns its id and the file's URL
 * - `react(channelId, messageId, emoji)`
 * - `close()`
 *
 * and whose `received` has `message CONTENT`, `reaction MESSAGE USER EMOJI`, `answered INTERACTION` after it has
 * responded "Hello" to an interaction, and `resumed`.
 */
function flow(sim, client) {
  const { received } = client;
  const scene = { bot: null, guild: null, channel: null, message: null };

  async function logsIn() {
    await sim.post('/sim/guilds', { name: 'Zürich 市場 🏛', members: 2 });
    const { bots, guilds } = await sim.state();
    scene.bot = bots[0];
    scene.guild = guilds.at(-1);
    scene.channel = scene.guild.channels[0].id;
    await client.connect(scene.bot.token);
    assert.equal(client.ownId(), scene.bot.user_id);
  }

  async function receivesGuilds() {
    const { guilds } = await sim.state();
    assert.deepEqual(client.guildNames().sort(), guilds.map(({ id, name }) => [id, name]).sort());
  }

  function say(content) {
    return sim.post('/sim/messages', { channel_id: scene.channel, content });
  }

  async function receivesMessage() {
    await say('hello from a user');
    await received.wait('message', 'hello from a user');
  }

  /** Returns messages of the channel, from the simulator and not from the client's cache. */
  function stored(path = '') {
    return sim.rest(scene.bot.token, `/channels/${scene.channel}/messages${path}`);
  }

  async function sendsFile() {
    const { id, url } = await client.send(scene.channel, 'with a file', FILE);
    scene.message = id;
    const { content, attachments } = await stored(`/${id}`);
    assert.equal(content, 'with a file');
    assert.deepEqual(attachments.map(attachment => attachment.size), [FILE.contents.length]);
    assert.equal(url.split('?')[0], attachments[0].url);
    assert.equal(await sim.text(new URL(url).pathname), FILE.contents.toString());
  }

  async function reacts() {
    await client.react(scene.channel, scene.message, '🌊');
    await sim.post('/sim/reactions', { channel_id: scene.channel, message_id: scene.message, emoji: '🌊' });
    await received.wait('reaction', scene.message, scene.guild.owner_id, '🌊');
    const { reactions } = await stored(`/${scene.message}`);
    assert.deepEqual(reactions.map(({ emoji, count, me }) => [emoji.name, count, me]), [['🌊', 2, true]]);
  }

  async function answersCommand() {
    const where = { guild_id: scene.guild.id, channel_id: scene.channel };
    const fired = await sim.post('/sim/commands', { ...where, name: 'greet' });
    await received.wait('answered', fired.id);
    const [newest] = await stored('?limit=1');
    assert.equal(newest.content, 'Hello');
    assert.equal(newest.interaction_metadata.id, fired.id);
  }

  async function resumes() {
    const before = await sim.score();
    // The gateway is silent for a moment, so that the client misses the message.
    await sim.post('/sim/gateway/faults', { kind: 'disconnect', code: 4000, hold_ms: 300 });
    await say('missed');
    await received.wait('message', 'missed');
    await received.wait('resumed');
    await say('after the resume');
    await received.wait('message', 'after the resume');
    const after = await sim.score();
    assert.equal(after.resumes - before.resumes, 1, 'resumes seen by the simulator');
    assert.equal(after.identifies - before.identifies, 0, 'identifies seen by the simulator');
    assert.equal(received.count('message', 'missed'), 1, 'the message arrived more than once');
  }

  async function heartbeats() {
    const before = await sim.score();
    await sim.post('/sim/gateway/faults', { kind: 'heartbeat_request' });
    // The simulator counts a heartbeat when it sends the ACK.
    while ((await sim.score()).heartbeats === before.heartbeats) await pause(50);
    await say('after the ACK');
    await received.wait('message', 'after the ACK');
    const after = await sim.score();
    assert.equal(after.identifies - before.identifies, 0, 'identifies seen by the simulator');
    assert.equal(after.resumes - before.resumes, 0, 'resumes seen by the simulator');
  }

  async function logsOut() {
    await client.close();
  }

  return [
    { title: 'logs in', body: logsIn, needed: true },
    { title: 'receives every guild', body: receivesGuilds },
    { title: 'receives a message of a user', body: receivesMessage },
    { title: 'sends a message with a file', body: sendsFile, needed: true },
    { title: 'reacts, and receives the reaction of a user', body: reacts },
    { title: 'responds to a slash command', body: answersCommand },
    { title: 'sends a heartbeat on request, and goes on after the ACK', body: heartbeats },
    { title: 'resumes after a disconnect, missing nothing', body: resumes },
    { title: 'logs out', body: logsOut },
  ];
}

module.exports = { flow, ReceivedEvents };
