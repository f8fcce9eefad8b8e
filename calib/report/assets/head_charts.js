// Charts of one head: histogram with codes, Fisher information.

/// Decision thresholds between levels, and the range's ends.
const between = (levels) => levels.slice(1).map((level, i) => (level + levels[i]) / 2);

/// Histogram above, the codebook's number line below, one axis. shares [bins] over [edges.low, edges.high].
function histogramChart(head, shares, use, log) {
  const {low, high, bins} = data.histogram, margin = {left: 50, right: 10, top: 22, bottom: 74},
                    bounded = tensors[head.kind].bounds;
  const levels = head.codebook,
        label = `${headName(head)}: histogram of normalised elements with ${levels.length} codes`;
  return drawn((width) => {
    const height = !shares ? 130 : width < 500 ? 270 : 320, floor = height - margin.bottom;
    const seen = shares ? Array.from(shares).filter((x) => x > 0) : [];
    const most = shares ? Math.max(...shares) * 1.05 : 1,
          least = log ? Math.max(Math.min(...seen) * .7, most * 1e-7) : 0;
    const x = pixelScale(shares ? low : -1.15, shares ? high : 1.15, margin.left, width - margin.right);
    const y = pixelScale(least, most, floor, margin.top, log);
    const view = svg('svg', {height, role: 'img', 'aria-label': label});
    if (shares) {
      view.append(axes(x, y, width, height - 30, {...margin, bottom: margin.bottom - 30}, {
        yName: width < 500 ? undefined : 'share of elements',
        yTicks: 4,
        yLabel: (v) => percent(v),
        xLabel: (v) => number(v, 3)
      }));
    }
    if (bounded || shares) {
      for (const edge of [-1, 1]) {
        view.append(
            svg('path', {
              d: `M${x(edge)} ${margin.top - 6}V${floor}M${x(edge)} ${floor + 21}v20`,
              stroke: 'var(--mark)',
              'stroke-width': 1.3,
              'stroke-dasharray': '5 3'
            }),
            svg('text', {x: x(edge), y: margin.top - 10, 'text-anchor': 'middle'},
                edge < 0 ? 'lower end' : 'upper end'));
      }
    }
    if (shares) {
      const w = (x(high) - x(low)) / bins;
      shares.forEach((share, b) => {
        if (!(share > 0)) return;
        const bar = svg('rect', {
          x: x(low) + b * w + w * .06,
          width: Math.max(.5, w * .88),
          y: Math.min(y(Math.max(share, least)), floor - .6),
          height: Math.max(.6, floor - y(Math.max(share, least))),
          fill: `var(--${head.kind})`,
          opacity: .75
        });
        const from = low + (high - low) * b / bins, to = from + (high - low) / bins;
        bar.addEventListener(
            'pointermove',
            (event) => showTip(
                `${b === 0 ? 'below' : number(from, 3) + ' to'} ${b === bins - 1 ? 'and above' : number(to, 3)}\n${
                    percent(share)} of the elements`,
                event.clientX, event.clientY));
        bar.addEventListener('pointerleave', hideTip);
        view.append(bar);
      });
      view.append(svg('path', {
        d: between(levels).map((t) => `M${x(t)} ${margin.top}V${floor}`).join(''),
        stroke: 'var(--muted)',
        'stroke-width': .8,
        'stroke-dasharray': '2 3',
        opacity: .9
      }));
    }
    const line = floor + 34;
    view.append(
        svg('path', {d: `M${margin.left} ${line}H${width - margin.right}`, stroke: 'var(--muted)', 'stroke-width': 1}),
        svg('text', {x: margin.left - 6, y: line + 4, 'text-anchor': 'end'}, 'codes'));
    const room = (x(1) - x(-1)) / levels.length;
    let lastLabel = -Infinity;
    levels.forEach((level, code) => {
      const unused = use && !(use[code] > 0), dot = svg('circle', {
                                                cx: x(level),
                                                cy: line,
                                                r: room > 14 ? 5 : 3,
                                                fill: unused ? 'var(--panel)' : `var(--${head.kind})`,
                                                stroke: unused ? 'var(--mark)' : 'var(--panel)',
                                                'stroke-width': 1.5
                                              });
      dot.addEventListener(
          'pointermove',
          (event) => showTip(
              `code ${code}: ${number(level, 5)}` + (use ? `\nused for ${percent(use[code])}` : ''), event.clientX,
              event.clientY));
      dot.addEventListener('pointerleave', hideTip);
      view.append(
          svg('path', {d: `M${x(level)} ${line - 13}V${line}`, stroke: `var(--${head.kind})`, 'stroke-width': 1.4}),
          dot);
      if (x(level) - lastLabel > 15) {
        view.append(svg('text', {x: x(level), y: line + 20, 'text-anchor': 'middle'}, code));
        lastLabel = x(level);
      }
    });
    if (!shares)
      view.append(
          ...[-1, -.5, 0, .5, 1].map((v) => svg('text', {x: x(v), y: line + 36, 'text-anchor': 'middle'}, number(v))));
    return view;
  });
}

/// Fisher information a channel, bars from 0.
function fisherBars(head, values) {
  const margin = {left: 56, right: 4, top: 12, bottom: 34};
  return drawn((width) => {
    const height = 150, most = values.reduce((a, b) => Math.max(a, b), 0) || 1;
    const x = pixelScale(0, values.length, margin.left + 2, width - margin.right),
          y = pixelScale(0, most * 1.05, height - margin.bottom, margin.top);
    const step = x(1) - x(0), view = svg('svg', {
                                height,
                                role: 'img',
                                'aria-label': `${headName(head)}: Fisher information of ${values.length} channels`
                              });
    let path = '';
    values.forEach((value, c) => {
      if (known(value)) path += `M${x(c + .5).toFixed(2)} ${y(0)}V${y(value).toFixed(2)}`;
    });
    view.append(
        axes(x, y, width, height, margin, {yTicks: 3, yLabel: (v) => number(v, 3), xName: 'channel', whole: true}),
        svg('path', {d: path, stroke: `var(--${head.kind})`, 'stroke-width': Math.max(.6, step * .62)}));
    view.addEventListener('pointermove', (event) => {
      const c = Math.floor((event.clientX - view.getBoundingClientRect().left - x(0)) / step);
      if (c >= 0 && c < values.length)
        showTip(`channel ${c}: ${number(values[c])}`, event.clientX, event.clientY);
      else
        hideTip();
    });
    view.addEventListener('pointerleave', hideTip);
    return view;
  });
}
