#!/usr/bin/env python3
"""A bot's brain: gives new members a role, and replies to /hello. Needs only Python 3.9.

    python3 examples/brain.py examples/brain.secret [PORT] [ADDRESS]
"""

import base64, hashlib, hmac, json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRETS = [base64.b64decode(line.removeprefix("whsec_")) for line in open(sys.argv[1]).read().split()]
PORT = int(sys.argv[2]) if len(sys.argv) > 2 else 9100
ADDRESS = sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1"


def think(event):
    """Returns the response to an event; an empty one does nothing. docs/webhooks.md describes all fields."""
    if event["event_type"] == "member.join":
        return {"operations": [
            {"kind": "ensure_role", "payload": {"key": "newcomer", "name": "Newcomer"}},
            {"kind": "assign_role", "payload": {"user_id": event["user_id"], "role_id": {"key": "newcomer"}}},
        ]}
    if event["event_type"] == "interaction.command.hello":
        said = {"channel_id": event["channel_id"], "content": f"<@{event['user_id']}> says hello to everybody."}
        return {"operations": [{"kind": "send_message", "payload": said}], "reply": {"content": "Hello yourself!"}}
    return {}


def signatures(id, at, body):
    """Returns the signatures of a body, one for each secret."""
    tags = [hmac.new(secret, f"{id}.{at}.".encode() + body, hashlib.sha256).digest() for secret in SECRETS]
    return ["v1," + base64.b64encode(tag).decode() for tag in tags]


def is_from_guildhall(headers, body):
    """Returns whether the body was signed with one of the secrets, at most five minutes ago."""
    id, at, given = (headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    if not (at.isascii() and at.isdigit()) or abs(time.time() - int(at)) > 300:
        return False
    ours = [one.encode() for one in signatures(id, at, body)]
    return any(hmac.compare_digest(one, other.encode()) for one in ours for other in given.split(" "))


def sign_answer(request, body):
    """Returns the headers of a signed response. Its id names the request, so it is valid for no other request."""
    id, at = f"{request['webhook-id']}:{request['webhook-timestamp']}:answer", str(int(time.time()))
    return {"webhook-id": id, "webhook-timestamp": at, "webhook-signature": " ".join(signatures(id, at, body))}


class Webhook(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # Keeps connections alive.

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not is_from_guildhall(self.headers, body):
            return self.answer(401, {"error": "invalid signature"}, lambda text: {})
        self.answer(200, think(json.loads(body)), lambda text: sign_answer(self.headers, text))

    def answer(self, status, value, sign):
        text = json.dumps(value).encode()
        self.send_response(status)
        for name, content in sign(text).items():
            self.send_header(name, content)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


server = ThreadingHTTPServer((ADDRESS, PORT), Webhook)
print(f"listening on http://{ADDRESS}:{server.server_port}", flush=True)
server.serve_forever()
