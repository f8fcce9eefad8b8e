// A chart of points and lines over two axes. Points are stops of the tab order with their own labels where asked.
const kMarks = [
  (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${- 2 * r} 0z`,
  (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${- 2 * r}z`,
  (x, y, r) => `M${x} ${y - 1.25 * r}L${x + 1.2 * r} ${y + .9 * r}H${x - 1.2 * r}z`,
  (x, y, r) => `M${x} ${y - 1.35 * r}L${x + 1.35 * r} ${y}L${x} ${y + 1.35 * r}L${x - 1.35 * r} ${y}z`,
];
/// Colour and mark of the i-th of several series; 32 differ.
const seriesStyle = (i) => ({color: `var(--s${i % 8})`, mark: kMarks[Math.floor(i / 8) % 4]});

function swatches(list) {
  return el(
      'ul', {class: 'swatches', 'aria-label': 'Legend'},
      list.map(
          ({name, color, mark}) =>
              el('li', {},
                 svg('svg', {width: 14, height: 14, 'aria-hidden': 'true'},
                     svg('path', {d: mark(7, 7, 4.5), fill: color})),
                 name)));
}

/// points: [{x, y, error, name, text, color, mark, strong}]; lines: [{points: [[x, y], …], color, dash, step}];
/// rules: [{y, name}], across the chart.
function xyChart({
  label,
  points = [],
  lines = [],
  rules = [],
  xName,
  yName,
  xLog,
  yLog,
  xLabel,
  yLabel,
  height = 400,
  focusable,
  xTicks,
  marks = true
}) {
  const margin = {left: 58, right: 18, top: 26, bottom: 46};
  const fits = (x, y) => known(x) && known(y) && (!xLog || x > 0) && (!yLog || y > 0);
  const there = points.filter((p) => fits(p.x, p.y));
  const all = [...there.map((p) => [p.x, p.y]), ...lines.flatMap((line) => line.points.filter(([x, y]) => fits(x, y)))];
  if (all.length === 0) return el('p', {class: 'note'}, 'No finite numbers to draw.');
  const bounds = (list, log, pad) => {
    const low = list.reduce((a, b) => Math.min(a, b)), high = list.reduce((a, b) => Math.max(a, b));
    if (log) {
      const air = (high / low) ** pad || 1;
      return [low / Math.max(air, 1.01), high * Math.max(air, 1.01)];
    }
    const air = (high - low) * pad || Math.abs(high) * .1 || 1;
    return [low - air, high + air];
  };
  const [x0, x1] = bounds(all.map(([x]) => x), xLog, lines.length && !points.length ? .01 : .06);
  const [y0, y1] = bounds(
      [...all.map(([, y]) => y), ...rules.map((r) => r.y).filter((y) => known(y) && (!yLog || y > 0))], yLog, .07);
  return drawn((width) => {
    const tall = width < 500 ? Math.min(height, 320) : height;
    const x = pixelScale(x0, x1, margin.left, width - margin.right, xLog),
          y = pixelScale(y0, y1, tall - margin.bottom, margin.top, yLog);
    const view = svg('svg', {height: tall, role: focusable ? 'group' : 'img', 'aria-label': label});
    view.append(axes(x, y, width, tall, margin, {xName, yName, xLabel, yLabel, xTicks}));
    const taken = there.map((p) => [x(p.x) - 6, y(p.y) - 6, 12, 12]);
    for (const rule of rules) {
      if (!known(rule.y)) continue;
      const w = 6.4 * rule.name.length;
      taken.push([width - margin.right - w, y(rule.y) - 16, w, 14]);
      view.append(
          svg('path', {
            d: `M${margin.left} ${y(rule.y)}H${width - margin.right}`,
            stroke: 'var(--muted)',
            'stroke-dasharray': '6 4',
            fill: 'none'
          }),
          svg('text', {x: width - margin.right, y: y(rule.y) - 5, 'text-anchor': 'end'}, rule.name));
    }
    for (const line of lines) {
      const path = line.points.filter(([a, b]) => fits(a, b))
                       .map(
                           ([a, b], i) =>
                               (i === 0 ? `M${x(a)} ${y(b)}` :
                                    line.step ? `H${x(a)}V${y(b)}` :
                                                `L${x(a)} ${y(b)}`))
                       .join('');
      view.append(svg('path', {
        d: path,
        fill: 'none',
        stroke: line.color,
        'stroke-width': line.width || 2,
        'stroke-dasharray': line.dash,
        'stroke-linejoin': 'round',
        opacity: line.opacity
      }));
    }
    const free = ([a, b, w, h]) => a > margin.left && a + w < width + 4 && b > 2 && b + h < tall - margin.bottom &&
        !taken.some(([c, d, v, k]) => a < c + v && c < a + w && b < d + k && d < b + h);
    for (const p of there) {
      const px = x(p.x), py = y(p.y), r = p.strong ? 6 : 4.5;
      if (known(p.error) && p.error > 0) {
        const low = yLog ? Math.max(p.y - p.error, y0) : p.y - p.error;
        view.append(svg(
            'path', {d: `M${px} ${y(low)}V${y(p.y + p.error)}`, stroke: p.color, 'stroke-width': 1.2, opacity: .7}));
      }
      if (!marks) continue;
      const node = svg('path', {
        d: p.mark(px, py, r),
        fill: p.color,
        stroke: 'var(--panel)',
        'stroke-width': 1.2,
        opacity: p.strong === false ? .55 : 1,
        tabindex: focusable ? 0 : null,
        role: focusable ? 'img' : null,
        'aria-label': focusable ? p.text.replaceAll('\n', ', ') : null,
        'data-name': p.name
      });
      tipFor(node, () => p.text);
      view.append(node);
    }
    // Names of the strong points: beside them where there is room, else further off with a thin line.
    for (const p of there.filter((point) => point.strong)) {
      const w = 6.4 * p.name.length + 4, px = x(p.x), py = y(p.y), spots = [];
      for (const far of [0, 1, 2, 3, 4]) {
        for (const [dx, dy] of [[8, -18], [8, 4], [-w - 8, 4], [-w - 8, -18], [-w / 2, -24], [-w / 2, 9]])
          spots.push([px + dx + Math.sign(dx + w / 2) * 5 * far, py + dy + Math.sign(dy + 6) * 15 * far, far]);
      }
      const spot = spots.find(([a, b]) => free([a, b, w, 14]));
      if (!spot) continue;
      taken.push([spot[0], spot[1], w, 14]);
      if (spot[2] > 0)
        view.append(svg('path', {
          d: `M${px} ${py}L${Math.min(Math.max(px, spot[0]), spot[0] + w)} ${spot[1] + (spot[1] > py ? 2 : 14)}`,
          stroke: 'var(--muted)',
          'stroke-width': .7
        }));
      view.append(svg('text', {class: 'strong', x: spot[0] + 2, y: spot[1] + 11}, p.name));
    }
    if (!focusable) {
      const band = svg('path', {stroke: 'var(--muted)', opacity: 0, d: ''});
      view.append(band);
      view.addEventListener('pointermove', (event) => {
        const at = event.clientX - view.getBoundingClientRect().left;
        const near = there.reduce(
            (best, p) => (best && Math.abs(x(best.x) - at) <= Math.abs(x(p.x) - at) ? best : p), undefined);
        if (!near) return;
        band.setAttribute('d', `M${x(near.x)} ${margin.top}V${tall - margin.bottom}`);
        band.setAttribute('opacity', .6);
        const same = there.filter((p) => p.x === near.x).sort((a, b) => b.y - a.y);
        showTip(
            `${xName} ${(xLabel || number)(near.x)}\n` +
                same.slice(0, 12).map((p) => `${p.name}: ${(yLabel || number)(p.y)}`).join('\n'),
            event.clientX, event.clientY);
      });
      view.addEventListener('pointerleave', () => {
        band.setAttribute('opacity', 0);
        hideTip();
      });
    }
    return view;
  });
}
