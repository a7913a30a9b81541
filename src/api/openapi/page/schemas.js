// Renders schemas.

import { later, make, words, written } from './elements.js';

/** Resolves a reference. */
export function resolve(description, part) {
  if (!part?.$ref) return part ?? {};
  const found = part.$ref.slice(2).split('/').reduce((at, step) => at?.[step.replaceAll('~1', '/')], description);
  const resolved = resolve(description, found);
  return part.description ? { ...resolved, description: part.description } : resolved;
}

/** Resolves a reference, without a `null` alternative. */
function look(description, part) {
  const schema = resolve(description, part);
  const several = schema.properties ? undefined : schema.anyOf?.filter((one) => resolve(description, one).type !== 'null');
  if (several?.length !== 1) return schema;
  const only = look(description, several[0]);
  return schema.description ? { ...only, description: schema.description } : only;
}

function nameOf(part) {
  return part?.$ref?.split('/').pop();
}

/** A short name of the type of a value. */
export function kindOf(description, part) {
  const schema = resolve(description, part);
  const several = schema.oneOf ?? schema.anyOf;
  if (several && !schema.properties) {
    if (part.$ref) return nameOf(part);
    const kinds = [...new Set(several.map((one) => kindOf(description, one)))];
    return kinds.length > 4 ? `one of ${kinds.length}` : kinds.join(' or ');
  }
  if (schema.allOf) return nameOf(schema.allOf[0]) ?? 'object';
  const kinds = [schema.type ?? 'any JSON'].flat().map((kind) => {
    if (kind === 'array') return `list of ${kindOf(description, schema.items)}`;
    if (kind === 'object') return nameOf(part) ?? schema.title ?? 'object';
    const more = nameOf(part) ?? schema.format;
    return kind !== 'null' && more ? `${kind} (${more})` : kind;
  });
  return kinds.join(' or ');
}

function boundsOf(schema) {
  const between = (least, most, what) => {
    if (least === undefined && most === undefined) return undefined;
    if (least === undefined) return `at most ${most.toLocaleString('en')}${what}`;
    if (most === undefined) return least === 0 ? undefined : `at least ${least.toLocaleString('en')}${what}`;
    return `${least.toLocaleString('en')} to ${most.toLocaleString('en')}${what}`;
  };
  return [
    between(schema.minLength, schema.maxLength, ' characters'),
    between(schema.minimum, schema.maximum, ''),
    between(schema.minItems, schema.maxItems, ' items'),
    schema.default === undefined ? undefined : `default ${written(schema.default)}`,
  ].filter(Boolean).join('; ');
}

function choices(schema) {
  if (!schema.enum) return undefined;
  const names = schema.enum.filter((name) => name !== null);
  const all = names.flatMap((name, place) => [place ? ', ' : '', make('code', {}, written(name))]);
  if (names.length <= 6) return make('p', {}, ...all);
  return make('details', {}, make('summary', {}, `One of ${names.length}`), make('p', {}, ...all));
}

/** All details of a schema. */
export function shape(description, part) {
  const schema = look(description, part);
  const bounds = boundsOf(schema);
  return make(
    'div',
    { class: 'shape' },
    schema.description ? make('p', {}, ...words(schema.description)) : undefined,
    bounds ? make('p', { class: 'type' }, bounds) : undefined,
    schema.pattern ? make('p', { class: 'type' }, `pattern ${schema.pattern}`) : undefined,
    choices(schema),
    ...inside(description, schema),
  );
}

function inside(description, schema) {
  if (schema.properties) return [fields(description, schema)];
  if (schema.allOf) return schema.allOf.flatMap((one) => inside(description, resolve(description, one)));
  const several = (schema.oneOf ?? schema.anyOf)?.filter((one) => resolve(description, one).type !== 'null');
  if (several) {
    const plain = several.filter((one) => !hasInside(description, one));
    const others = several.filter((one) => hasInside(description, one));
    return [
      ...plain.map((one) => choices(resolve(description, one))),
      ...others.map((one) => later({}, [make('span', { class: 'type' }, titleOf(description, one))], () => [shape(description, one)])),
    ];
  }
  if (schema.items && hasInside(description, schema.items)) {
    return [later({}, [make('span', { class: 'type' }, `each: ${kindOf(description, schema.items)}`)], () => [
      shape(description, schema.items),
    ])];
  }
  const others = schema.additionalProperties;
  if (others && hasInside(description, others)) return [make('p', { class: 'type' }, 'each by name:'), shape(description, others)];
  return [];
}

function titleOf(description, part) {
  const schema = resolve(description, part);
  const kind = schema.properties?.kind?.enum;
  return kind?.length === 1 ? kind[0] : schema.title ?? nameOf(part) ?? kindOf(description, part);
}

function hasInside(description, part) {
  const schema = look(description, part);
  return Boolean(schema.properties || schema.allOf || schema.oneOf || schema.anyOf
    || (schema.items && hasInside(description, schema.items)));
}

function fields(description, schema) {
  const required = new Set(schema.required ?? []);
  const all = Object.entries(schema.properties).map(([name, part]) => make(
    'li',
    {},
    make('code', { class: 'name' }, name),
    ' ',
    make('span', { class: 'type' }, kindOf(description, part)),
    required.has(name) ? make('span', { class: 'must' }, ' required') : undefined,
    hasInside(description, part) && !look(description, part).description
      ? later({}, ['Fields'], () => [shape(description, part)])
      : brief(description, part),
  ));
  return make('ul', { class: 'fields' }, ...all);
}

/** The description of a field, with its own fields in a closed details element. */
function brief(description, part) {
  const schema = look(description, part);
  if (!hasInside(description, part)) return shape(description, part);
  return make(
    'div',
    { class: 'shape' },
    make('p', {}, ...words(schema.description)),
    boundsOf(schema) ? make('p', { class: 'type' }, boundsOf(schema)) : undefined,
    later({}, ['Fields'], () => [make('div', { class: 'shape' }, ...inside(description, schema))]),
  );
}
