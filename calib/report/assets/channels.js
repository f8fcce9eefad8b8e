// Ranges of channels: all layers as strips of colour, one layer or one head as bars from the least to the largest
// value.

/// Canvas of layers x columns, which stand in `parts` side by side, named below. A pixel shows the largest value of the
/// columns that fall into it, so that an outlier is seen at any width. describe, pick (or undefined): (layer, column).
function strip({label, size, columns, parts, scale, describe, pick}) {
  const dim = columns / parts.length;
  const canvas = el('canvas', {role: 'img', tabindex: 0, 'aria-label': label});
  const said = el('span', {class: 'hidden', role: 'status'});
  let at = {l: 0, c: 0};
  const box = drawn((width) => {
    const dots = Math.max(1, Math.min(columns, Math.round(width * Math.min(devicePixelRatio, 2))));
    const row = Math.max(5, Math.min(14, Math.round(300 / layers.length)));
    canvas.width = dots;
    canvas.height = layers.length;
    canvas.style.height = `${row * layers.length}px`;
    canvas.style.imageRendering = 'pixelated';
    const context = canvas.getContext('2d'), image = context.createImageData(dots, layers.length);
    for (let l = 0; l < layers.length; ++l) {
      for (let x = 0; x < dots; ++x) {
        const from = Math.floor(x * columns / dots), to = Math.max(from + 1, Math.floor((x + 1) * columns / dots));
        let most = -Infinity;
        for (let c = from; c < to; ++c) most = Math.max(most, size[l * columns + c]);
        const [r, g, b] = ramp(scale(most));
        image.data.set([r, g, b, 255], 4 * (l * dots + x));
      }
    }
    context.putImageData(image, 0, 0);
    return canvas;
  });
  const place = (event) => {
    const area = canvas.getBoundingClientRect(),
          l = Math.floor((event.clientY - area.top) / area.height * layers.length);
    // The largest of the channels under the pointer's pixel, and one beside it.
    const middle = (event.clientX - area.left) / area.width * columns, near = Math.max(.5, columns / area.width);
    at.l = Math.min(Math.max(l, 0), layers.length - 1);
    let best = Math.min(Math.max(Math.floor(middle), 0), columns - 1);
    for (let c = Math.max(0, Math.ceil(middle - near)); c < Math.min(columns, middle + near); ++c) {
      if (size[at.l * columns + c] > size[at.l * columns + best]) best = c;
    }
    at.c = best;
  };
  const open = () => pick?.(at.l, at.c);
  canvas.addEventListener('pointermove', (event) => {
    place(event);
    showTip(describe(at.l, at.c), event.clientX, event.clientY);
  });
  canvas.addEventListener('pointerleave', hideTip);
  canvas.addEventListener('blur', hideTip);
  canvas.addEventListener('click', (event) => {
    place(event);
    open();
  });
  canvas.addEventListener('keydown', (event) => {
    const step = {
      ArrowRight: [0, 1],
      ArrowLeft: [0, -1],
      ArrowDown: [1, 0],
      ArrowUp: [-1, 0],
      PageDown: [0, dim],
      PageUp: [0, -dim]
    }[event.key];
    if (event.key === 'Enter') open();
    if (!step) return;
    event.preventDefault();
    at = {
      l: Math.min(Math.max(at.l + step[0], 0), layers.length - 1),
      c: Math.min(Math.max(at.c + step[1], 0), columns - 1)
    };
    const area = canvas.getBoundingClientRect();
    said.textContent = describe(at.l, at.c).replace('\n', ': ');
    showTip(
        describe(at.l, at.c), area.left + (at.c + .5) / columns * area.width,
        area.top + (at.l + .5) / layers.length * area.height);
  });
  return el(
      'div', {class: 'strip'},
      el('div', {class: 'side', 'aria-hidden': 'true'}, el('span', {}, layers[0]), el('span', {}, 'layer'),
         el('span', {}, layers[layers.length - 1])),
      box, said,
      el('div', {class: 'foot', 'aria-hidden': 'true'}, parts.length > 4 && el('i', {}, 'head'),
         parts.map((name, h) => el('span', {}, parts.length > 4 ? h : name))));
}
const headParts = Array.from({length: headCount}, (_, h) => `head ${h}`);

/// Bars of channels [from, from + count) of the tensor's flat arrays. bounds: thresholds to mark, or undefined.
function rangeBars({label, kind, ranges, from, count, low, high, bounds, describe, heads}) {
  const dim = tensors[kind].dim, margin = {left: 46, right: 4, top: 12, bottom: 34};
  return drawn((width) => {
    const height = width < 500 ? 210 : 240;
    const x = pixelScale(0, count, margin.left + 2, width - margin.right),
          y = pixelScale(low, high, height - margin.bottom, margin.top);
    const step = x(1) - x(0), thick = Math.max(.6, Math.min(9, step * .62)), path = {bars: '', least: '', most: ''};
    const view = svg('svg', {height, role: 'img', 'aria-label': label});
    for (let c = 0; c < count; ++c) {
      const i = from + c, middle = x(c + .5).toFixed(2);
      if (!known(ranges.min[i]) || !known(ranges.max[i])) continue;
      path.bars += `M${middle} ${(y(ranges.min[i]) + .5).toFixed(2)}V${(y(ranges.max[i]) - .5).toFixed(2)}`;
      if (bounds) {
        path.least += `M${(x(c) + .08 * step).toFixed(2)} ${y(bounds.lower[i]).toFixed(2)}h${(.84 * step).toFixed(2)}`;
        path.most += `M${(x(c) + .08 * step).toFixed(2)} ${y(bounds.upper[i]).toFixed(2)}h${(.84 * step).toFixed(2)}`;
      }
    }
    const marks = heads ? Array.from({length: heads}, (_, h) => (h + .5) * dim) : undefined;
    view.append(axes(x, y, width, height, margin, {
      xTicks: marks,
      whole: !heads,
      xLabel: heads ? (v) => `${heads > 8 || width < 500 ? '' : 'head '}${Math.floor(v / dim)}` : undefined,
      yLabel: (v) => number(v, 4),
      xName: heads ? (width < 500 || heads > 8 ? 'head' : undefined) : 'channel'
    }));
    if (heads) {
      for (let h = 1; h < heads; ++h)
        view.append(svg('path', {class: 'axis', d: `M${x(h * dim)} ${margin.top}V${height - margin.bottom}`}));
    }
    view.append(svg(
        'path', {d: `M${margin.left} ${y(0)}H${width - margin.right}`, stroke: 'var(--muted)', 'stroke-width': .8}));
    view.append(svg('path', {d: path.bars, stroke: `var(--${kind})`, 'stroke-width': thick}));
    if (bounds) view.append(svg('path', {d: path.least + path.most, stroke: 'var(--mark)', 'stroke-width': 1.4}));
    const band = svg('rect', {
      y: margin.top,
      height: height - margin.top - margin.bottom,
      width: Math.max(1, step),
      fill: 'var(--ink)',
      opacity: 0
    });
    view.append(band);
    view.addEventListener('pointermove', (event) => {
      const area = view.getBoundingClientRect(), c = Math.floor((event.clientX - area.left - x(0)) / step);
      band.setAttribute('opacity', c >= 0 && c < count ? .1 : 0);
      if (c < 0 || c >= count) return hideTip();
      band.setAttribute('x', x(c));
      showTip(describe(c), event.clientX, event.clientY);
    });
    view.addEventListener('pointerleave', () => {
      band.setAttribute('opacity', 0);
      hideTip();
    });
    return view;
  });
}

/// Common extent of several ranges over [from, from + count), with some air; always holds 0.
function extent(list, from, count) {
  let low = 0, high = 0;
  for (const array of list) {
    for (let i = from; array && i < from + count; ++i) {
      if (known(array[i])) {
        low = Math.min(low, array[i]);
        high = Math.max(high, array[i]);
      }
    }
  }
  const air = .04 * (high - low || 1);
  return {low: low - air, high: high + air};
}

/// The two pictures side by side where the ranges after RoPE are known, else the one.
function beforeAfter(kind, draw) {
  const tensor = tensors[kind], before = tensor.after && 'Before RoPE';
  return el(
      'div', {class: tensor.after ? 'split' : null},
      el('div', {}, before && el('h3', {}, before), draw(tensor.before, before)),
      tensor.after && el('div', {}, el('h3', {}, 'After RoPE'), draw(tensor.after, 'After RoPE')));
}
