// The page: loads the description, lists the operations, and renders each one when it is first opened.

import { later, make, paragraphs, words, written } from './elements.js';
import { kindOf, resolve, shape } from './schemas.js';
import { trial } from './trial.js';

const METHODS = ['get', 'post', 'put', 'patch', 'delete'];
const at = (id) => document.getElementById(id);
// In memory only: the key is never stored, and sent only in the header of a request.
const key = () => at('key').value.trim();

function operationsOf(description) {
  return Object.entries(description.paths).flatMap(([path, item]) => METHODS
    .filter((method) => item[method])
    .map((method) => ({ path, method, operation: item[method] })));
}

function badge(method) {
  return make('span', { class: `method ${method}` }, method.toUpperCase());
}

function parametersOf(description, operation) {
  if (!operation.parameters?.length) return [];
  const all = operation.parameters.map((parameter) => make(
    'li',
    {},
    make('code', { class: 'name' }, parameter.name),
    ' ',
    make('span', { class: 'type' }, `${parameter.in}, ${kindOf(description, parameter.schema)}`),
    parameter.required ? make('span', { class: 'must' }, ' required') : undefined,
    make('p', {}, ...words(parameter.description ?? '')),
    shape(description, { ...resolve(description, parameter.schema), description: undefined }),
  ));
  return [make('h4', {}, 'Parameters'), make('ul', { class: 'fields' }, ...all)];
}

function examplesOf(examples) {
  const all = Object.values(examples ?? {}).map((example) => later(
    { class: 'more' },
    ['Example: ', ...words(example.summary)],
    () => [make('pre', { tabindex: '0' }, written(example.value))],
  ));
  return all.length > 4 ? [later({ class: 'more' }, [`${all.length} examples`], () => all)] : all;
}

function contentOf(description, content) {
  return Object.entries(content ?? {}).flatMap(([kind, { schema, examples }]) => [
    make('p', { class: 'type' }, kind, schema?.$ref ? `: ${kindOf(description, schema)}` : ''),
    later({ class: 'more' }, ['Schema'], () => [shape(description, schema)]),
    ...examplesOf(examples),
  ]);
}

function bodyOf(description, operation) {
  if (!operation.requestBody) return [];
  const title = operation.requestBody.required ? 'Body' : 'Body (optional)';
  return [make('h4', {}, title), ...contentOf(description, operation.requestBody.content)];
}

function answersOf(description, operation) {
  const told = Object.entries(operation.responses).map(([status, part]) => [status, resolve(description, part)]);
  const all = told.sort().map(([status, answer]) => make(
    'li',
    {},
    make('span', { class: `code ${status < 400 ? 'fine' : 'failed'}` }, status),
    ' ',
    ...words(answer.description),
    later({ class: 'more' }, ['Headers and body'], () => [
      ...Object.entries(answer.headers ?? {}).map(([name, header]) => make(
        'p',
        {},
        make('code', { class: 'name' }, name),
        ' ',
        ...words(resolve(description, header).description ?? ''),
      )),
      ...contentOf(description, answer.content),
    ]),
  ));
  return [make('h4', {}, 'Responses'), make('ul', { class: 'answers' }, ...all)];
}

function card(description, { path, method, operation }) {
  const heading = [badge(method), make('h3', {}, operation.summary), make('span', { class: 'path' }, path)];
  return later({ class: 'operation', id: operation.operationId }, heading, () => [make(
    'div',
    { class: 'inside' },
    ...paragraphs(operation.description),
    ...parametersOf(description, operation),
    ...bodyOf(description, operation),
    ...answersOf(description, operation),
    make('h4', {}, 'Try it'),
    trial(description, path, method, operation, key),
  )]);
}

function open() {
  const details = location.hash && at(decodeURIComponent(location.hash.slice(1)));
  if (!details?.fill) return;
  details.fill();
  details.scrollIntoView();
}

function list(description) {
  const all = operationsOf(description).map((one) => ({ ...one, card: card(description, one) }));
  const entries = [];
  for (const tag of description.tags) {
    const own = all.filter(({ operation }) => operation.tags.includes(tag.name));
    const section = make('section', { 'aria-label': tag.name }, make('h2', {}, tag.name), make('p', {}, ...words(tag.description)));
    const items = own.map((one) => {
      const item = make('li', {}, make('a', { href: `#${one.operation.operationId}` }, one.operation.summary));
      entries.push({ ...one, item, section, text: `${one.method} ${one.path} ${one.operation.summary} ${tag.name}`.toLowerCase() });
      return item;
    });
    section.append(...own.map((one) => one.card));
    at('operations').append(section);
    at('links').append(make('div', {}, make('h2', {}, tag.name), make('ul', {}, ...items)));
  }
  return entries;
}

function filter(entries) {
  const wanted = at('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  const shown = new Map();
  for (const { card: details, item, section, text } of entries) {
    const fits = wanted.every((word) => text.includes(word));
    details.classList.toggle('hidden', !fits);
    item.classList.toggle('hidden', !fits);
    shown.set(section, shown.get(section) || fits);
    shown.set(item.closest('div'), shown.get(item.closest('div')) || fits);
    count += fits ? 1 : 0;
  }
  for (const [part, fits] of shown) part.classList.toggle('hidden', !fits);
  at('status').textContent = wanted.length ? `${count} of ${entries.length} operations` : '';
}

async function start() {
  const response = await fetch('openapi.json');
  if (!response.ok) throw new Error(`openapi.json returned ${response.status}`);
  const description = await response.json();
  at('version').textContent = description.info.version;
  at('introduction').append(...paragraphs(description.info.description));
  const entries = list(description);
  at('status').textContent = '';
  at('filter').addEventListener('input', () => filter(entries));
  at('key-form').addEventListener('submit', (event) => event.preventDefault());
  if (matchMedia('(max-width: 60rem)').matches) at('contents').open = false;
  addEventListener('hashchange', open);
  open();
}

start().catch((error) => { at('status').textContent = `Cannot load the description: ${error.message}`; });
