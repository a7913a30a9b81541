// Sends a request: a form, the same request for curl, and the response.

import { make, written } from './elements.js';
import { kindOf, resolve } from './schemas.js';

const SHOWN_MOST = 200_000;

/** A form for an operation. `key` returns the API key to send, if there is one. */
export function trial(description, path, method, operation, key) {
  const inputs = (operation.parameters ?? []).map((parameter) => input(description, operation, parameter));
  const body = operation.requestBody && bodyOf(operation);
  const answer = make('div', { 'aria-live': 'polite' });
  const send = make('button', { type: 'submit' }, 'Send');
  const stop = make('button', { type: 'button', class: 'plain hidden' }, 'Stop');
  const curl = make('pre', {});
  const request = () => requestOf(path, method, inputs, body);
  const tell = () => { curl.textContent = asCurl(request(), Boolean(operation.security?.length)); };
  let under;
  stop.addEventListener('click', () => under?.abort());
  const form = make(
    'form',
    {
      class: 'trial',
      input: tell,
      change: tell,
      submit: async (event) => {
        event.preventDefault();
        under = new AbortController();
        send.disabled = true;
        stop.classList.remove('hidden');
        await perform(request(), key(), answer, under.signal);
        stop.classList.add('hidden');
        send.disabled = false;
      },
    },
    ...inputs.map((one) => one.row),
    ...(body ? body.rows : []),
    make('details', { class: 'more' }, make('summary', {}, 'Request as curl'), curl),
    make('div', { class: 'buttons' }, send, stop),
    answer,
  );
  tell();
  return form;
}

function input(description, operation, parameter) {
  const schema = resolve(description, parameter.schema);
  const id = `${operation.operationId}-${parameter.in}-${parameter.name}`;
  const attributes = { id, name: parameter.name, required: parameter.in === 'path', autocomplete: 'off', spellcheck: 'false' };
  const names = schema.enum ?? (schema.type === 'boolean' ? [true, false] : undefined);
  const field = names
    ? make('select', attributes, make('option', { value: '' }, '(not set)'), ...names.map((name) => make('option', {}, String(name))))
    : make('input', { ...attributes, placeholder: schema.examples?.[0] ?? kindOf(description, parameter.schema) });
  const label = make('label', { for: id }, parameter.name, parameter.in === 'header' ? ' (header)' : '');
  return { parameter, field, row: make('div', { class: 'row short' }, label, field) };
}

function bodyOf(operation) {
  const examples = Object.values(Object.values(operation.requestBody.content)[0].examples ?? {});
  const id = `${operation.operationId}-body`;
  const text = make('textarea', { id, spellcheck: 'false', autocomplete: 'off' });
  text.value = examples.length && operation.requestBody.required ? written(examples[0].value) : '';
  const choose = make(
    'select',
    { id: `${id}-example`, change: () => { text.value = choose.value === '' ? '' : written(examples[Number(choose.value)].value); } },
    operation.requestBody.required ? undefined : make('option', { value: '' }, '(no body)'),
    ...examples.map((example, place) => make('option', { value: String(place) }, example.summary)),
  );
  return {
    text,
    rows: [
      make('div', { class: 'row short' }, make('label', { for: `${id}-example` }, 'Example'), choose),
      make('div', { class: 'row' }, make('label', { for: id }, 'Body'), text),
    ],
  };
}

function requestOf(path, method, inputs, body) {
  const headers = {};
  const query = new URLSearchParams();
  let url = path;
  for (const { parameter, field } of inputs) {
    const value = field.value;
    if (parameter.in === 'path') url = url.replace(`{${parameter.name}}`, encodeURIComponent(value));
    else if (value !== '' && parameter.in === 'query') query.set(parameter.name, value);
    else if (value !== '') headers[parameter.name] = value;
  }
  if (query.size) url += `?${query}`;
  const sent = body?.text.value.trim() ? body.text.value : undefined;
  if (sent !== undefined) headers['Content-Type'] = 'application/json';
  // Relative to this page, so that it works behind a prefix, too.
  return { url: new URL(url.slice(1), document.baseURI).href, method: method.toUpperCase(), headers, body: sent };
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function asCurl(request, asksForKey) {
  const lines = [`curl -sS -i ${request.method === 'GET' ? '' : `-X ${request.method} `}${quoted(request.url)}`];
  if (asksForKey) lines.push('-H "Authorization: Bearer $KEY"');
  for (const [name, value] of Object.entries(request.headers)) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (request.body !== undefined) lines.push(`-d ${quoted(request.body)}`);
  return lines.join(' \\\n  ');
}

async function perform(request, key, answer, signal) {
  answer.replaceChildren(make('p', {}, 'Sending …'));
  const headers = new Headers(request.headers);
  if (key) headers.set('Authorization', `Bearer ${key}`);
  try {
    const response = await fetch(request.url, { ...request, headers, signal, cache: 'no-store', credentials: 'omit', redirect: 'manual' });
    const status = make('p', {}, make('span', { class: `code ${response.ok ? 'fine' : 'failed'}` }, `${response.status} ${response.statusText}`));
    const heads = [...response.headers].map(([name, value]) => `${name}: ${value}`).join('\n');
    const text = make('pre', { tabindex: '0', 'aria-label': 'Response body' });
    answer.replaceChildren(
      status,
      make('details', { class: 'more' }, make('summary', {}, 'Headers'), make('pre', {}, heads)),
      text,
    );
    await show(response, text);
  } catch (error) {
    const why = signal.aborted ? 'Stopped.' : `No response: ${error.message}`;
    answer.append(make('p', {}, why));
  }
}

/** Shows a body as it arrives: a stream may have no end. */
async function show(response, into) {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let all = '';
  for (;;) {
    const { done, value } = reader ? await reader.read() : { done: true };
    if (done) break;
    all = (all + value).slice(-SHOWN_MOST);
    into.textContent = all;
  }
  if (all === '') into.textContent = '(no body)';
  else if (response.headers.get('content-type')?.includes('json')) {
    try {
      into.textContent = written(JSON.parse(all));
    } catch {
      into.textContent = all;
    }
  }
}
