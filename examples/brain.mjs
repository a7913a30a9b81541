// A bot's brain: whoever joins gets a role, and /hello is answered. Needs Node.js 18 and nothing else.
//
//     node examples/brain.mjs examples/brain.secret [PORT]

import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";

const lines = readFileSync(process.argv[2], "utf8").split(/\s+/).filter(Boolean);
const secrets = lines.map((line) => Buffer.from(line.replace("whsec_", ""), "base64"));

/** What is to be done about an event; an empty answer is: nothing. docs/webhooks.md tells what else there is. */
function think(event) {
  const user_id = event.user_id;
  if (event.event_type === "member.join") {
    const made = { kind: "ensure_role", payload: { key: "newcomer", name: "Newcomer" } };
    return { operations: [made, { kind: "assign_role", payload: { user_id, role_id: { key: "newcomer" } } }] };
  }
  if (event.event_type === "interaction.command.hello") {
    const said = { channel_id: event.channel_id, content: `<@${user_id}> says hello to everybody.` };
    return { operations: [{ kind: "send_message", payload: said }], reply: { content: "Hello yourself!" } };
  }
  return {};
}

/** Whether this very body was signed with one of our secrets, not more than five minutes ago. */
function isFromGuildhall(headers, body) {
  const [id, at, given] = ["id", "timestamp", "signature"].map((name) => headers[`webhook-${name}`] ?? "");
  if (!/^\d+$/.test(at) || Math.abs(Date.now() / 1000 - Number(at)) > 300) return false;
  const signatures = given.split(" ").map((one) => Buffer.from(one));
  return secrets.some((secret) => {
    const tag = createHmac("sha256", secret).update(`${id}.${at}.`).update(body).digest("base64");
    const ours = Buffer.from(`v1,${tag}`);
    return signatures.some((one) => one.length === ours.length && timingSafeEqual(one, ours));
  });
}

const server = createServer(async (request, response) => {
  const answer = (status, value) => {
    response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
  };
  try {
    const parts = [];
    for await (const part of request) parts.push(part);
    const body = Buffer.concat(parts);
    if (!isFromGuildhall(request.headers, body)) return answer(401, { error: "the signature does not fit" });
    answer(200, think(JSON.parse(body)));
  } catch (error) {
    console.error(error);
    answer(500, { error: "something is wrong with this brain" });
  }
});
server.listen(Number(process.argv[3] ?? 9100), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
