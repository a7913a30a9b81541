// Creates elements, and renders the little markup that descriptions use. All text becomes text nodes: nothing is parsed as HTML.

/** Creates an element with attributes (functions are listeners) and children. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === 'function') element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== ''));
  return element;
}

/** Renders text with `code` and **strong**. */
export function words(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
    if (part.length > 2 && part.startsWith('`')) return make('code', {}, part.slice(1, -1));
    if (part.startsWith('**')) return make('strong', {}, ...words(part.slice(2, -2)));
    return part;
  });
}

/** Renders text as paragraphs. */
export function paragraphs(text) {
  return (text ?? '').split('\n\n').filter(Boolean).map((part) => make('p', {}, ...words(part)));
}

/** A details element whose content is created when it is first opened. */
export function later(attributes, summary, inside) {
  const details = make('details', attributes, make('summary', {}, ...summary));
  let made = false;
  const fill = () => {
    if (!details.open || made) return;
    made = true;
    details.append(...inside().filter(Boolean));
  };
  details.addEventListener('toggle', fill);
  details.fill = () => {
    details.open = true;
    fill();
  };
  return details;
}

/** Formats a value as indented JSON. */
export function written(value) {
  return typeof value === 'string' ? value : JSON.stringify(value, null, 2);
}
