// A bot's brain: gives new members a role, and replies to /hello. Needs only Node.js 18.
//
//     node examples/brain.mjs examples/brain.secret [PORT] [ADDRESS]

import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";

const lines = readFileSync(process.argv[2], "utf8").split(/\s+/).filter(Boolean);
const secrets = lines.map((line) => Buffer.from(line.replace("whsec_", ""), "base64"));

/** Returns the response to an event; an empty one does nothing. docs/webhooks.md describes all fields. */
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

/** Returns the signatures of a body, one for each secret. */
function signatures(id, at, body) {
  const tag = (secret) => createHmac("sha256", secret).update(`${id}.${at}.`).update(body).digest("base64");
  return secrets.map((secret) => `v1,${tag(secret)}`);
}

/** Returns whether the body was signed with one of the secrets, at most five minutes ago. */
function isFromGuildhall(headers, body) {
  const [id, at, given] = ["id", "timestamp", "signature"].map((name) => headers[`webhook-${name}`] ?? "");
  if (!/^\d+$/.test(at) || Math.abs(Date.now() / 1000 - Number(at)) > 300) return false;
  const theirs = given.split(" ").map((one) => Buffer.from(one));
  return signatures(id, at, body).some((signature) => {
    const ours = Buffer.from(signature);
    return theirs.some((one) => one.length === ours.length && timingSafeEqual(one, ours));
  });
}

/** Returns the headers of a signed response. Its id names the request, so it is valid for no other request. */
function signAnswer(request, body) {
  const id = `${request["webhook-id"]}:${request["webhook-timestamp"]}:answer`;
  const at = String(Math.floor(Date.now() / 1000));
  return { "webhook-id": id, "webhook-timestamp": at, "webhook-signature": signatures(id, at, body).join(" ") };
}

const server = createServer(async (request, response) => {
  const answer = (status, value, headers = {}) => {
    response.writeHead(status, { "content-type": "application/json", ...headers }).end(value);
  };
  const refuse = (status, error) => answer(status, JSON.stringify({ error }));
  try {
    const parts = [];
    for await (const part of request) parts.push(part);
    const body = Buffer.concat(parts);
    if (!isFromGuildhall(request.headers, body)) return refuse(401, "invalid signature");
    const text = JSON.stringify(think(JSON.parse(body)));
    answer(200, text, signAnswer(request.headers, text));
  } catch (error) {
    console.error(error);
    refuse(500, "internal error of the brain");
  }
});
const address = process.argv[4] ?? "127.0.0.1";
server.listen(Number(process.argv[3] ?? 9100), address, () => {
  console.log(`listening on http://${address}:${server.address().port}`);
});
