// A discord.js bot whose REST calls go through Guildhall's REST proxy: one option of its client differs. It replies to
// /hello, and posts a message about it.
//
//   npm install discord.js@14
//   DISCORD_TOKEN=... node examples/egress_discord_js.cjs
//
// DISCORD_TOKEN is the bot token, with which the library also connects to Discord's gateway. EGRESS_URL is the address of
// the proxy; the default is http://127.0.0.1:8081.
const { Client, Events, GatewayIntentBits } = require("discord.js");

const egress = process.env.EGRESS_URL ?? "http://127.0.0.1:8081";
const client = new Client({ intents: [GatewayIntentBits.Guilds], rest: { api: `${egress}/api` } });

client.once(Events.ClientReady, async ({ user, application }) => {
  await application.commands.set([{ name: "hello", description: "Says hello" }]);
  console.log(`ready as ${user.username}, by ${egress}`);
});

client.on(Events.InteractionCreate, async interaction => {
  if (!interaction.isChatInputCommand() || interaction.commandName !== "hello") return;
  // The token in its path permits this call. It is not delayed by the others.
  await interaction.reply("Hello yourself!");
  await interaction.channel.send(`${interaction.user} says hello to everybody.`);
});

// Without a listener, a call that fails would end the process.
client.on(Events.Error, error => console.error(error.message));
for (const signal of ["SIGINT", "SIGTERM"]) {
  process.once(signal, async () => {
    await client.destroy();
    process.exit(0);
  });
}

client.login(process.env.DISCORD_TOKEN).catch(error => {
  console.error(`cannot log in by ${egress}: ${error.message}`);
  process.exit(1);
});
