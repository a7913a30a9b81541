'use strict';
// discord.js against the simulator: what an ordinary bot does, and what it does when its connection breaks.

const assert = require('node:assert/strict');
const { setTimeout: pause } = require('node:timers/promises');
const {
  ActionRowBuilder,
  ApplicationCommandOptionType,
  ButtonBuilder,
  ButtonStyle,
  ChannelType,
  Events,
  OverwriteType,
  PermissionFlagsBits,
  Routes,
} = require('discord.js');

const { holdReconnect, newClient } = require('./client.js');
const { Sim } = require('./sim.js');
const { next, run } = require('./steps.js');

const sim = new Sim(process.argv[2]);

/** What the steps share: the client, the guild they work in and its text channels. */
const bot = { client: null, guild: null, channel: null, quiet: null };

async function login(client) {
  const { bots } = await sim.state();
  const ready = next(client, Events.ClientReady);
  await client.login(bots[0].token);
  await ready;
  assert.equal(client.user.id, bots[0].user_id);
  assert.equal(client.application.id, bots[0].application_id);
}

async function logsIn() {
  for (const name of ['Harbour', 'Mill & "Wheel" <3>', 'Zürich 市場 🏛']) {
    await sim.post('/sim/guilds', { count: 1, name, members: 5, channels: 3 });
  }
  bot.client = newClient(sim.origin);
  await login(bot.client);
  bot.guild = bot.client.guilds.cache.find(guild => guild.name === 'Harbour');
  assert.ok(bot.guild, 'the guild "Harbour" did not arrive');
  [bot.channel, bot.quiet] = textChannels(bot.guild);
  assert.ok(bot.quiet, 'the guild has fewer than two text channels');
}

function textChannels(guild) {
  return [...guild.channels.cache.filter(channel => channel.type === ChannelType.GuildText).values()];
}

async function receivesGuilds() {
  await assertGuilds(bot.client, () => 0);
}

/** Every guild of the simulator is in the client's cache, whole, and on the shard it belongs to. */
async function assertGuilds(client, shardOf) {
  const { guilds } = await sim.state();
  assert.equal(client.guilds.cache.size, guilds.length, 'number of guilds');
  for (const expected of guilds) {
    const guild = client.guilds.cache.get(expected.id);
    assert.ok(guild?.available, `guild ${expected.name} is not available`);
    assert.equal(guild.name, expected.name);
    assert.equal(guild.memberCount, expected.member_count, `members of ${expected.name}`);
    assert.deepEqual(names(guild.channels.cache), names(expected.channels), `channels of ${expected.name}`);
    assert.deepEqual(names(guild.roles.cache), names(expected.roles), `roles of ${expected.name}`);
    assert.ok(guild.members.me, `the bot's own member is missing in ${expected.name}`);
    assert.equal(guild.shardId, shardOf(guild), `shard of ${expected.name}`);
  }
}

function names(collection) {
  return [...collection.values()].map(({ id, name }) => `${id} ${name}`).sort();
}

async function fetchesMembers() {
  const expected = await sim.guild(bot.guild.id);
  const members = await bot.guild.members.fetch();
  assert.equal(members.size, expected.member_count);
  assert.ok(members.has(bot.client.user.id), 'the bot itself is missing');
}

async function managesRole() {
  const role = await bot.guild.roles.create({
    name: 'Keeper',
    colors: { primaryColor: 0x336699 },
    hoist: true,
    mentionable: true,
    permissions: [PermissionFlagsBits.ManageMessages],
    reason: 'conformance: schlüssel & more',
  });
  assert.equal(role.name, 'Keeper');
  assert.equal(role.colors.primaryColor, 0x336699);
  assert.ok(role.permissions.has(PermissionFlagsBits.ManageMessages));
  assert.ok((await roleNames()).includes('Keeper'), 'the simulator does not have the new role');

  await role.setName('Warden');
  const renamed = await roleNames();
  assert.ok(renamed.includes('Warden') && !renamed.includes('Keeper'), 'the simulator did not rename the role');

  const member = bot.guild.members.cache.find(candidate => !candidate.user.bot && candidate.id !== bot.guild.ownerId);
  assert.ok(member, 'the guild has no ordinary member');
  await member.roles.add(role);
  assert.ok((await rolesOf(member)).has(role.id), 'the role was not given');
  await member.roles.remove(role);
  assert.ok(!(await rolesOf(member)).has(role.id), 'the role was not taken');

  await role.delete('conformance');
  assert.ok(!(await roleNames()).includes('Warden'), 'the simulator still holds the deleted role');

  const { entries } = await bot.guild.fetchAuditLogs({ limit: 20 });
  const created = entries.find(entry => entry.targetId === role.id && entry.actionType === 'Create');
  assert.equal(created?.reason, 'conformance: schlüssel & more', 'the reason in the audit log');
}

async function roleNames() {
  return (await sim.guild(bot.guild.id)).roles.map(role => role.name);
}

async function rolesOf(member) {
  return (await bot.guild.members.fetch({ user: member.id, force: true })).roles.cache;
}

async function managesChannel() {
  const category = await bot.guild.channels.create({ name: 'Docks', type: ChannelType.GuildCategory });
  const channel = await bot.guild.channels.create({
    name: 'quay',
    type: ChannelType.GuildText,
    topic: 'ships & tides',
    parent: category,
    permissionOverwrites: [{ id: bot.guild.id, type: OverwriteType.Role, deny: [PermissionFlagsBits.SendMessages] }],
    reason: 'conformance',
  });
  assert.equal(channel.topic, 'ships & tides');
  assert.equal(channel.parentId, category.id);
  assert.ok(channel.permissionOverwrites.cache.get(bot.guild.id).deny.has(PermissionFlagsBits.SendMessages));
  assert.ok(await holdsChannel(channel.id), 'the simulator does not have the new channel');

  await channel.permissionOverwrites.edit(bot.guild.id, { SendMessages: true });
  const fresh = await bot.client.channels.fetch(channel.id, { force: true });
  assert.ok(fresh.permissionOverwrites.cache.get(bot.guild.id).allow.has(PermissionFlagsBits.SendMessages));
  await channel.setTopic('tides');
  await channel.delete();
  await category.delete();
  assert.ok(!(await holdsChannel(channel.id)), 'the simulator still holds the deleted channel');
}

async function holdsChannel(id) {
  return (await sim.guild(bot.guild.id)).channels.some(channel => channel.id === id);
}

async function managesMessage() {
  const embed = { title: 'A title', description: 'text' };
  const sent = await bot.channel.send({ content: 'first **words** ✨', embeds: [embed] });
  assert.equal(sent.content, 'first **words** ✨');
  assert.equal(sent.author.id, bot.client.user.id);
  assert.equal(sent.embeds[0].title, 'A title');

  const edited = await sent.edit('second words');
  assert.equal(edited.content, 'second words');
  assert.ok(edited.editedTimestamp, 'an edited message tells when');
  assert.equal(await contentOf(sent.id), 'second words');

  await sent.pin();
  const pins = await bot.channel.messages.fetchPins();
  assert.deepEqual(pins.items.map(pin => pin.message.id), [sent.id]);
  await sent.unpin();

  await sent.delete();
  await assert.rejects(contentOf(sent.id), { code: 10008 });
}

async function receivesUserEvents() {
  const joined = next(bot.client, Events.GuildMemberAdd, member => member.guild.id === bot.guild.id);
  await sim.post(`/sim/guilds/${bot.guild.id}/members`, { count: 1 });
  const [member] = await joined;
  const said = next(bot.client, Events.MessageCreate, message => message.content === 'hello from a user');
  await sim.post('/sim/messages', {
    guild_id: bot.guild.id,
    channel_id: bot.channel.id,
    user_id: member.id,
    content: 'hello from a user',
  });
  const [message] = await said;
  assert.equal(message.author.id, member.id);
  assert.equal(message.guildId, bot.guild.id);
  const left = next(bot.client, Events.GuildMemberRemove, gone => gone.id === member.id);
  await sim.delete(`/sim/guilds/${bot.guild.id}/members/${member.id}`);
  await left;
}

async function answersCommand() {
  await bot.client.application.commands.set(
    [
      {
        name: 'greet',
        description: 'Greets somebody',
        options: [{ name: 'who', description: 'Whom', type: ApplicationCommandOptionType.String, required: true }],
      },
    ],
    bot.guild.id,
  );

  const command = await fire('/sim/commands', {
    name: 'greet',
    options: [{ name: 'who', type: ApplicationCommandOptionType.String, value: 'Ada' }],
  });
  assert.ok(command.isChatInputCommand());
  assert.equal(command.commandName, 'greet');
  assert.equal(command.options.getString('who'), 'Ada');
  assert.equal(command.channelId, bot.channel.id);
  const { resource } = await command.reply({ content: 'Hello Ada', withResponse: true });
  assert.equal(resource.message.content, 'Hello Ada');
  const edited = await command.editReply('Hello again, Ada');
  assert.equal((await command.fetchReply()).content, 'Hello again, Ada');
  assert.equal(edited.id, resource.message.id);
  const followup = await command.followUp('And one more thing');
  const inChannel = await bot.channel.messages.fetch({ limit: 10, cache: false });
  assert.equal(inChannel.get(edited.id)?.content, 'Hello again, Ada', 'the reply stands in the channel');
  assert.equal(inChannel.get(followup.id)?.content, 'And one more thing', 'the followup stands in the channel');
  await command.deleteReply();
  await assert.rejects(command.fetchReply(), { code: 10008 });

  const twice = bot.client.rest.post(Routes.interactionCallback(command.id, command.token), {
    auth: false,
    body: { type: 4, data: { content: 'again' } },
  });
  await assert.rejects(twice, { code: 40060 });
}

async function answersDeferred() {
  const command = await fire('/sim/commands', {
    name: 'greet',
    options: [{ name: 'who', type: ApplicationCommandOptionType.String, value: 'Bo' }],
  });
  await command.deferReply();
  const reply = await command.editReply('Sorry for the wait, Bo');
  assert.equal(await contentOf(reply.id), 'Sorry for the wait, Bo');
}

/** What a message says by now, asked of the simulator. */
async function contentOf(id) {
  return (await bot.channel.messages.fetch({ message: id, force: true })).content;
}

async function answersComponents() {
  const row = new ActionRowBuilder().addComponents(
    new ButtonBuilder().setCustomId('open:1').setLabel('Open').setStyle(ButtonStyle.Primary),
  );
  const message = await bot.channel.send({ content: 'press', components: [row] });
  const button = await fire('/sim/buttons', { custom_id: 'open:1', message_id: message.id });
  assert.ok(button.isButton());
  assert.equal(button.customId, 'open:1');
  assert.equal(button.message.id, message.id);
  await button.update({ content: 'pressed', components: [] });
  assert.equal(await contentOf(message.id), 'pressed');

  const modal = await fire('/sim/modals', { custom_id: 'form:1' });
  assert.ok(modal.isModalSubmit());
  assert.equal(modal.customId, 'form:1');
  await modal.reply('thanks');
}

/** Lets a user do something in the steps' channel, and gives the interaction that the client makes of it. */
async function fire(path, body) {
  const arrived = [];
  const listener = interaction => arrived.push(interaction);
  bot.client.on(Events.InteractionCreate, listener);
  try {
    const { id } = await sim.post(path, { guild_id: bot.guild.id, channel_id: bot.channel.id, ...body });
    const found = arrived.find(interaction => interaction.id === id);
    return found ?? (await next(bot.client, Events.InteractionCreate, interaction => interaction.id === id))[0];
  } finally {
    bot.client.off(Events.InteractionCreate, listener);
  }
}

async function heartbeats() {
  const before = await sim.score();
  await sim.post('/sim/gateway/faults', { kind: 'heartbeat_request' });
  // The simulator counts a heartbeat when it sends the ACK.
  while ((await sim.score()).heartbeats === before.heartbeats) await pause(50);
  await sayAndHear('after the ACK');
  const after = await sim.score();
  assert.equal(after.identifies - before.identifies, 0, 'identifies seen by the simulator');
  assert.equal(after.resumes - before.resumes, 0, 'resumes seen by the simulator');
}

async function resumesAfterDisconnect() {
  await assertResumes({ kind: 'disconnect', code: 4000 });
}

async function resumesWhenToldTo() {
  await assertResumes({ kind: 'reconnect' });
}

/** After `fault`, what happens while the client is away arrives once, in order, and before RESUMED. */
async function assertResumes(fault) {
  const before = await sim.score();
  const words = [1, 2, 3].map(n => `${fault.kind} ${n}`);
  const [first, last] = [`${fault.kind} first`, `${fault.kind} last`];
  const received = [];
  const record = ({ t, d }) => {
    if (t === 'RESUMED') received.push(t);
    if (t === 'MESSAGE_CREATE' && d.content.startsWith(fault.kind)) received.push(d.content);
  };
  bot.client.on(Events.Raw, record);
  const gate = holdReconnect(bot.client);
  try {
    // The last event before the fault: a replay that starts too early repeats it.
    await sayAndHear(first);
    const gone = next(bot.client, Events.ShardReconnecting);
    await sim.post('/sim/gateway/faults', fault);
    await gone;
    for (const content of words) await say(content);
    const resumed = next(bot.client, Events.ShardResume);
    gate.open();
    await resumed;
    // Events keep their order, so a duplicate would have arrived before this one.
    await sayAndHear(last);
  } finally {
    gate.open();
    bot.client.off(Events.Raw, record);
  }
  assert.equal(received.join(', '), [first, ...words, 'RESUMED', last].join(', '));
  const after = await sim.score();
  assert.equal(after.resumes - before.resumes, 1, 'resumes seen by the simulator');
  assert.equal(after.identifies - before.identifies, 0, 'identifies seen by the simulator');
}

function say(content) {
  return sim.post('/sim/messages', { guild_id: bot.guild.id, channel_id: bot.channel.id, content });
}

async function sayAndHear(content) {
  const received = next(bot.client, Events.MessageCreate, message => message.content === content);
  await say(content);
  await received;
}

async function identifiesAnew() {
  const before = await sim.score();
  const shard = bot.client.ws.shards.get(0);
  const ready = next(shard, 'allReady');
  await sim.post('/sim/gateway/faults', { kind: 'invalid_session', resumable: false });
  await ready;
  const after = await sim.score();
  assert.equal(after.identifies - before.identifies, 1, 'identifies seen by the simulator');
  await sayAndHear('after the new session');
}

async function obeysRouteLimit() {
  await sim.put('/sim/limits/routes', {
    method: 'POST',
    path: '/channels/{channel.id}/messages',
    limit: 2,
    per_ms: 2000,
    algorithm: 'fixed',
  });
  const before = await sim.score();
  const words = Array.from({ length: 8 }, (_, n) => `paced ${n}`);
  await Promise.all(words.map(content => bot.quiet.send(content)));
  const held = await bot.quiet.messages.fetch({ limit: 20, cache: false });
  assert.deepEqual([...held.values()].map(message => message.content).reverse(), words);
  const after = await sim.score();
  assert.equal(after.rateLimited - before.rateLimited, 0, '429s given by the simulator');
}

/** Through a proxy with limits of its own: each of many calls at once arrives, exactly once. */
async function survivesBurst() {
  const route = 'POST /channels/{channel.id}/typing';
  const before = await sim.arrived(route);
  const channels = bot.client.guilds.cache.map(textChannels).flat();
  await Promise.all(Array.from({ length: 150 }, (_, n) => channels[n % channels.length].sendTyping()));
  assert.equal((await sim.arrived(route)) - before, 150, 'requests that arrived');
}

async function logsOut() {
  await bot.client.destroy();
}

async function runsTwoShards() {
  const client = newClient(sim.origin, { shards: [0, 1], shardCount: 2 });
  try {
    await login(client);
    await assertGuilds(client, guild => Number((BigInt(guild.id) >> 22n) % 2n));
    for (const guild of client.guilds.cache.values()) {
      const [channel] = textChannels(guild);
      const received = next(client, Events.MessageCreate, message => message.guildId === guild.id);
      await sim.post('/sim/messages', { guild_id: guild.id, channel_id: channel.id, content: 'to one shard' });
      await received;
    }
  } finally {
    await client.destroy();
  }
}

async function main() {
  const proxied = process.env.REST_ORIGIN !== undefined;
  const failures = await run(process.env.CHECK_LABEL ?? 'js', [
    { title: 'logs in', body: logsIn, needed: true },
    { title: 'receives every guild with its name, channels and roles', body: receivesGuilds },
    { title: 'requests all members from the gateway', body: fetchesMembers },
    { title: 'creates, renames, assigns, removes and deletes a role', body: managesRole },
    { title: 'creates, edits and deletes a channel', body: managesChannel },
    { title: 'sends, edits, pins and deletes a message', body: managesMessage },
    { title: 'receives joins, messages and leaves of members', body: receivesUserEvents },
    { title: 'responds to a slash command', body: answersCommand },
    { title: 'responds to a slash command after deferring', body: answersDeferred },
    { title: 'responds to a button and a modal', body: answersComponents },
    { title: 'sends a heartbeat on request, and goes on after the ACK', body: heartbeats },
    { title: 'resumes after a disconnect, missing nothing and repeating nothing', body: resumesAfterDisconnect },
    { title: 'resumes when the gateway requests a reconnect', body: resumesWhenToldTo },
    { title: 'identifies again when its session is invalid', body: identifiesAnew },
    { title: 'respects a low route limit without a 429', body: obeysRouteLimit },
    ...(proxied ? [{ title: 'makes 150 calls at once, none of which is lost', body: survivesBurst }] : []),
    { title: 'logs out', body: logsOut },
    { title: 'runs two shards in one client', body: runsTwoShards },
  ]);
  // A client that a failed step left behind would keep the process alive.
  process.exit(failures === 0 ? 0 : 1);
}

main();
