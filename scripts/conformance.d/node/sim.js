'use strict';
// Controls the simulator: /sim/*.

class Sim {
  constructor(origin) {
    this.origin = origin;
  }

  async request(method, path, body) {
    const response = await fetch(this.origin + path, {
      method,
      headers: body === undefined ? {} : { 'content-type': 'application/json' },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path} returned ${response.status}: ${text.slice(0, 300)}`);
    return text === '' ? null : JSON.parse(text);
  }

  /** Returns the body of a response as text. */
  async text(path) {
    const response = await fetch(this.origin + path);
    if (!response.ok) throw new Error(`GET ${path} returned ${response.status}`);
    return response.text();
  }

  /** Reads from the REST API. */
  async rest(token, path) {
    const headers = { authorization: `Bot ${token}`, 'user-agent': 'DiscordBot (http://127.0.0.1, 1.0)' };
    const response = await fetch(`${this.origin}/api/v10${path}`, { headers });
    if (!response.ok) throw new Error(`GET ${path} returned ${response.status}: ${await response.text()}`);
    return response.json();
  }

  get(path) {
    return this.request('GET', path);
  }

  post(path, body = {}) {
    return this.request('POST', path, body);
  }

  put(path, body) {
    return this.request('PUT', path, body);
  }

  delete(path) {
    return this.request('DELETE', path);
  }

  state() {
    return this.get('/sim/state');
  }

  /** Returns a guild from the simulator's state, not from the client's cache. */
  async guild(id) {
    const { guilds } = await this.state();
    const guild = guilds.find(candidate => candidate.id === id);
    if (!guild) throw new Error(`the simulator has no guild ${id}`);
    return guild;
  }

  /** Returns the number of requests that arrived at a route, such as `GET /channels/{channel.id}`. */
  async arrived(route) {
    const { routes } = await this.get('/sim/score');
    return routes[route]?.requests ?? 0;
  }

  /** Returns the counters that the checks compare before and after. */
  async score() {
    const { rate_limited: limited, gateway } = await this.get('/sim/score?brief=true');
    return {
      identifies: gateway.identifies,
      resumes: gateway.resumes,
      heartbeats: gateway.heartbeats,
      rateLimited: limited.user + limited.shared + limited.global,
    };
  }
}

module.exports = { Sim };
