// What both reports share: the data, elements, numbers, cards, downloads. No part of the page is made from text as
// HTML: names from files reach it through textContent and setAttribute alone.
const data = JSON.parse(document.getElementById('kvcc-data').textContent);

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on'))
      node.addEventListener(name.slice(2), value);
    else if (name === 'style')
      for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else
      node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return node;
}
const el = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
    make(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

/// Arrays come as base64 of little-endian float32; undefined where the file has none.
function floats(text) {
  if (!text) return undefined;
  const bytes = atob(text), view = new DataView(new ArrayBuffer(bytes.length));
  for (let i = 0; i < bytes.length; ++i) view.setUint8(i, bytes.charCodeAt(i));
  const out = new Float32Array(bytes.length / 4);
  for (let i = 0; i < out.length; ++i) out[i] = view.getFloat32(4 * i, true);
  return out;
}

/// An object whose members are decoded when they are first asked for.
function lazyFloats(texts) {
  const out = {};
  for (const [name, text] of Object.entries(texts || {})) {
    const decode = () => {
      const value = floats(text);
      Object.defineProperty(out, name, {value, enumerable: true});
      return value;
    };
    Object.defineProperty(out, name, {get: decode, enumerable: true, configurable: true});
  }
  return out;
}

const known = (x) => typeof x === 'number' && Number.isFinite(x);

/// "-" for what is not a finite number, as in kvcc's tables.
function number(x, digits = 4) {
  if (!known(x)) return '-';
  const size = Math.abs(x);
  if (x !== 0 && (size >= 1e6 || size < 1e-3))
    return Number(x.toPrecision(Math.max(1, digits - 1))).toExponential().replace('e+', 'e');
  return String(Number(x.toPrecision(digits)));
}
const percent = (x) => (known(x) ? number(100 * x, 3) + ' %' : '-');

function bytesText(x) {
  if (!known(x)) return '-';
  const step = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(1, x)) / 10)));
  return `${number(x / 1024 ** step, 4)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][step]}`;
}

/// One row a line, quoted where needed. A text that a spreadsheet would run as a formula gets an apostrophe.
function csv(rows) {
  const cell = (value) => {
    if (typeof value === 'number') return known(value) ? String(Number(value.toPrecision(9))) : '';
    let text = value === null || value === undefined ? '' : String(value);
    if (/^[=+\-@\t\r]/.test(text) && text !== '-') text = '\'' + text;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(',')).join('\r\n') + '\r\n';
}

function download(name, rows) {
  const url = URL.createObjectURL(new Blob([csv(rows)], {type: 'text/csv'}));
  const link = el('a', {href: url, download: name});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/// rows[0]: names of the columns.
function table(rows, caption) {
  const cell = (value, column) => {
    const text = typeof value === 'number' || value === null || value === undefined ? number(value, 5) : value;
    return column === 0 ? el('th', {scope: 'row'}, text) :
                          el('td', {class: typeof value === 'string' ? 'text' : null}, text);
  };
  return el(
      'div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption},
      el('table', {}, el('caption', {class: 'hidden'}, caption),
         el('thead', {}, el('tr', {}, rows[0].map((name) => el('th', {scope: 'col'}, name)))),
         el('tbody', {}, rows.slice(1).map((row) => el('tr', {}, row.map(cell))))));
}

/// A chart with its heading, its numbers as a table (made when opened) and as a download. `rows` makes the rows of
/// the download, `brief` those of the table where all would be too many; `plain`: the body is a table already.
function card({id, title, note, tools, rows, brief, file, plain}, ...body) {
  const heading = el('h2', {id: `${id}-title`}, title);
  const foot = [];
  if (rows) {
    const details = el('details', {}, el('summary', {}, 'Data as a table'));
    details.addEventListener('toggle', () => {
      while (details.children.length > 1) details.lastChild.remove();
      if (details.open) details.append(table((brief || rows)(), `${title}: data`));
    });
    foot.push(
        !plain && details,
        el('button', {
          class: 'button',
          type: 'button',
          'aria-label': `Download the data of "${title}" as CSV`,
          onclick: () => download(file, rows())
        },
           'Download CSV'));
  }
  return el(
      'section', {class: 'card', id, 'aria-labelledby': `${id}-title`},
      el('header', {}, el('div', {}, heading, note && el('p', {class: 'note'}, note)),
         tools && el('div', {class: 'tools'}, tools)),
      ...body, foot.length > 0 && el('footer', {}, foot));
}

/// Radio buttons in a row. options: [value, label].
function choice(legend, name, options, chosen, onchange) {
  return el(
      'fieldset', {class: 'choice'}, el('legend', {}, legend),
      options.map(
          ([value, label]) =>
              el('label', {},
                 el('input', {type: 'radio', name, value, checked: value === chosen, onchange: () => onchange(value)}),
                 el('span', {}, label))));
}

function picker(label, options, chosen, onchange) {
  const select =
      el('select', {'aria-label': label, onchange: () => onchange(select.value)},
         options.map(([value, text]) => el('option', {value, selected: value === chosen}, text)));
  return select;
}

const tiles = (list) =>
    el('dl', {class: 'tiles'},
       list.map(
           ([name, value, unit, below]) =>
               el('div', {class: 'tile'}, el('dt', {}, name),
                  el('dd', {}, value, unit && el('small', {class: below ? 'below' : null}, ' ' + unit)))));
const facts = (list) =>
    el('dl', {class: 'facts'},
       list.filter(([, value]) => value !== undefined && value !== '' && value !== false)
           .map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value))));

// One tip for all charts. Screen readers have labels and tables instead.
const tip = el('div', {class: 'tip', 'aria-hidden': 'true', hidden: true});
document.body.append(tip);
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth ? x - box.width - 14 : x + 14;
  tip.style.left = `${Math.max(4, Math.min(left, innerWidth - box.width - 4))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18}px`;
}
const hideTip = () => {
  tip.hidden = true;
};
function tipFor(node, text) {
  const at = () => {
    const box = node.getBoundingClientRect();
    showTip(text(), box.right - 8, box.bottom - 12);
  };
  node.addEventListener('pointerenter', (event) => showTip(text(), event.clientX, event.clientY));
  node.addEventListener('pointermove', (event) => showTip(text(), event.clientX, event.clientY));
  node.addEventListener('pointerleave', hideTip);
  node.addEventListener('focus', () => {
    if (node.matches(':focus-visible')) at();
  });
  node.addEventListener('blur', hideTip);
}
addEventListener('keydown', (event) => {
  if (event.key === 'Escape') hideTip();
});
addEventListener('scroll', hideTip, {passive: true});

/// A box whose drawing follows its width and the theme: draw(width) returns the nodes.
function drawn(draw, attributes) {
  const box = el('div', {class: 'chart', ...attributes});
  let width = 0;
  const render = () => {
    if (width > 0) box.replaceChildren(...[draw(width)].flat());
  };
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now !== width) {
      width = now;
      render();
    }
  }).observe(box);
  box.render = render;
  onTheme(box, render);
  return box;
}
/// Colours that no style sheet sets are drawn again when the theme changes, as long as `node` is in the page.
function onTheme(node, render) {
  redraws.push({node, render});
}
let redraws = [];
const dark = matchMedia('(prefers-color-scheme: dark)');
dark.addEventListener('change', () => {
  redraws = redraws.filter(({node}) => node.isConnected);
  for (const {render} of [...redraws]) render();
});

/// Fills the page. `search`: the element of the bar's search box, if any.
function page(bar, search, ...sections) {
  hideTip();
  document.getElementById('app').replaceChildren(
      el('header', {class: 'top'},
         el('div', {}, el('div', {class: 'brand'}, 'kvcc ', el('span', {}, bar.name)), search,
            el('nav', {'aria-label': 'Sections'},
               bar.links.map(
                   ([id, text]) =>
                       el('a', {
                         href: `#/${id}`,
                         onclick: (event) => {
                           const to = document.getElementById(id);
                           if (to) {
                             event.preventDefault();
                             to.scrollIntoView();
                           }
                         }
                       },
                          text))))),
      el('main', {}, sections));
}

/// Counts, with thousands apart.
const count = (x) => (known(x) ? x.toLocaleString('en') : '-');
