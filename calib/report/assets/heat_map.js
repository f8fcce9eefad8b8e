// A grid of buttons, layer x head. One stop of the tab order; arrow keys move in it as they point.
function heatMap({label, layers, heads, value, text, name, flagged, reverse, log, unit, select}) {
  const cells = [];
  const scale = unitScale(layers.flatMap((_, l) => heads.map((_, h) => value(l, h))), {log, reverse});
  const box = el('div', {
    class: heads.length > 4 ? 'heat many' : 'heat',
    role: 'grid',
    'aria-label': label,
    'aria-rowcount': layers.length + 1,
    'aria-colcount': heads.length + 1,
    style: {'--layers': layers.length, '--heads': heads.length}
  });
  const minor = (l) => layers.length > 40 && l % 5 !== 0;
  box.append(
      el('div', {role: 'row'},
         el('div', {class: 'name corner', role: 'columnheader'}, el('span', {class: 'word'}, 'layer')),
         heads.map(
             (head, h) =>
                 el('div', {
                   class: heads.length > 12 && h % 4 !== 0 ? 'name head minor' : 'name head',
                   role: 'columnheader',
                   style: {'--h': h},
                   'aria-label': `head ${head}`
                 },
                    el('span', {class: 'word'}, 'head'), el('span', {}, head)))));
  layers.forEach((layer, l) => {
    const row =
        el('div', {role: 'row'},
           el('div', {class: 'name layer', role: 'rowheader', style: {'--l': l}, 'aria-label': `layer ${layer}`},
              minor(l) ? '' : layer));
    heads.forEach((_, h) => {
      const t = scale(value(l, h));
      const button = el('button', {
        type: 'button',
        tabindex: l + h === 0 ? 0 : -1,
        'data-l': l,
        'data-h': h,
        class: [flagged(l, h) && 'flagged', Number.isNaN(t) && 'unknown'].filter(Boolean).join(' ') || null,
        'aria-label': `${name(l, h)}: ${text(l, h)}`,
        onclick: () => select(l, h)
      });
      if (!Number.isNaN(t)) button.style.backgroundColor = rampText(t);
      tipFor(button, () => `${name(l, h)}\n${text(l, h)}`);
      cells.push(button);
      row.append(el('div', {class: 'cell', role: 'gridcell', style: {'--l': l, '--h': h}}, button));
    });
    box.append(row);
  });
  const at = (l, h) => cells[l * heads.length + h];
  const focus = (l, h) => {
    const to = at(Math.min(Math.max(l, 0), layers.length - 1), Math.min(Math.max(h, 0), heads.length - 1));
    for (const cell of cells) cell.tabIndex = cell === to ? 0 : -1;
    to.focus();
  };
  box.addEventListener('keydown', (event) => {
    const l = Number(event.target.dataset.l), h = Number(event.target.dataset.h);
    if (Number.isNaN(l)) return;
    const down = matchMedia('(max-width: 720px)').matches;  // as in page.css: layers run downwards
    const steps = {
      ArrowRight: down ? [0, 1] : [1, 0],
      ArrowLeft: down ? [0, -1] : [-1, 0],
      ArrowDown: down ? [1, 0] : [0, 1],
      ArrowUp: down ? [-1, 0] : [0, -1],
      Home: [-layers.length, 0],
      End: [layers.length, 0],
      PageUp: [-8, 0],
      PageDown: [8, 0]
    };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    focus(l + step[0], h + step[1]);
  });
  const end = (x) => (known(x) ? unit(x) : '-');
  const legend =
      el('div', {class: 'legend'}, el('span', {}, end(scale.least)),
         el('span', {class: 'bar', style: {background: rampBar(reverse)}}), el('span', {}, end(scale.most)),
         log && el('span', {}, 'log scale'),
         cells.some((cell) => cell.classList.contains('flagged')) &&
             el('span', {}, el('span', {class: 'mark'}), ' has a warning'),
         cells.some((cell) => cell.classList.contains('unknown')) && el('span', {}, 'hatched: not known'));
  return {
    node: el('div', {}, box, legend),
    at,
    dim: (matches) =>
        cells.forEach((cell) => cell.classList.toggle('dim', !matches(Number(cell.dataset.l), Number(cell.dataset.h))))
  };
}
