// Cards of the overview: warnings, heat maps, channels of all layers and of one.
function warningsCard() {
  if (data.warnings.length === 0) return undefined;
  return card(
      {
        id: 'warnings',
        title: `Warnings (${data.warnings.length})`,
        file: 'warnings.csv',
        plain: true,
        rows: () => [
            ['warning', 'layer', 'kind', 'head', 'cause', 'cure'],
            ...data.warnings.flatMap(
                (w) => (w.at.length ? w.at : [{}]).map((at) => [w.name, at.layer, at.kind, at.head, w.cause, w.cure]))]
      },
      el('ul', {class: 'warnings'},
         data.warnings.map(
             (w) =>
                 el('li', {}, el('b', {}, w.name), ` in ${w.where}: ${w.cause}`, el('div', {}, '→ ', w.cure),
                    w.at.length > 0 &&
                        el('div', {class: 'links'},
                           w.at.slice(0, 12).map(
                               (at) => el('a', {href: headLink(at)}, `${at.layer}/${at.kind} ${at.head}`)),
                           w.at.length > 12 &&
                               el('a', {
                                 href: '#/',
                                 onclick: () => {
                                   search.firstChild.value = state.query = w.name;
                                 }
                               },
                                  `all ${w.at.length}`))))));
}

function heatCard(maps) {
  const box = el('div', {class: headCount > 4 ? 'maps' : 'maps few'});
  const metricRows = () => [
      ['layer', 'kind', 'head', ...metrics.map((m) => m.id)],
      ...allHeads.map((head) => [head.layer, head.kind, head.head, ...metrics.map((m) => m.get(head))])];
  const draw = () => {
    const metric = metrics.find((m) => m.id === state.metric);
    maps.length = 0;
    box.replaceChildren(...Object.keys(tensors).map((kind) => {
      const map = heatMap({
        label: `${metric.label} of ${kind} heads, by layer and head`,
        layers,
        heads: Array.from({length: headCount}, (_, h) => h),
        value: (l, h) => metric.get(headOf(kind, l, h)),
        text: (l, h) => `${metric.label} ${metric.text(metric.get(headOf(kind, l, h)))}` +
            headOf(kind, l, h).warnings.map((w) => `, ${w.name}`).join(''),
        name: (l, h) => headName(headOf(kind, l, h)),
        flagged: (l, h) => headOf(kind, l, h).warnings.length > 0,
        log: metric.log,
        reverse: metric.low,
        unit: metric.text,
        select: (l, h) => {
          location.hash = headLink(headOf(kind, l, h));
        }
      });
      maps.push({kind, ...map});
      return el('div', {class: 'map'}, el('h3', {}, kind === 'key' ? 'Keys' : 'Values'), map.node);
    }));
    applySearch();
  };
  onTheme(box, draw);
  const node = card(
      {
        id: 'heat',
        title: 'Layers and heads',
        note: 'Click a cell, or press Enter on it, for the head’s page; arrow keys move.',
        file: 'heads.csv',
        rows: metricRows,
        tools: choice(
            'Colour by', 'metric', metrics.map((m) => [m.id, m.label]), state.metric,
            (id) => {
              state.metric = id;
              draw();
            })
      },
      box);
  return {node, draw};
}

function stripCard() {
  const usable = Object.keys(tensors).filter((kind) => tensors[kind].before.min && tensors[kind].before.max);
  if (usable.length === 0) return undefined;
  const box = el('div'), kind = () => (usable.includes(state.kind) ? state.kind : usable[0]);
  const rows = () => {
    const tensor = tensors[kind()], names = Object.keys(tensor.channels), out = [
      ['layer', 'kind', 'head', 'channel', ...names, ...(tensor.after ? ['min_after_rope', 'max_after_rope'] : [])]
    ];
    tensor.heads.forEach((head, i) => {
      for (let c = 0; c < tensor.dim; ++c) {
        const at = i * tensor.dim + c;
        out.push([
          head.layer, head.kind, head.head, c, ...names.map((name) => tensor.channels[name][at]),
          ...(tensor.after ? [tensor.after.min[at], tensor.after.max[at]] : [])
        ]);
      }
    });
    return out;
  };
  const brief = () => [
      ['head', 'channel furthest out', 'its largest magnitude', 'times the head’s median'],
      ...Object
          .values(outlierChannels(kind(), tensors[kind()].before)
                      .reduce((best, at) => ({[headName(at.head)]: at, ...best}), {}))
          .map((at) => [headName(at.head), String(at.channel), at.value, at.ratio])];
  const draw = () => {
    const tensor = tensors[kind()], both = [magnitudes(tensor.before), magnitudes(tensor.after)].filter(Boolean);
    const scale = unitScale(both.flatMap((list) => Array.from(list)), {log: true});
    const far = outlierChannels(kind(), tensor.before).filter((at) => at.ratio >= 3).slice(0, 8);
    box.replaceChildren(
        beforeAfter(
            kind(), (ranges, when) => strip({
                      label: `Largest magnitude of each ${kind()} channel, by layer${
                          when ? `, ${when.toLowerCase()}` : ''}. Arrow keys walk over channels, Enter opens the head.`,
                      size: magnitudes(ranges),
                      columns: headCount * tensor.dim,
                      parts: headParts,
                      scale,
                      describe: (l, c) => {
                        const i = l * headCount * tensor.dim + c;
                        return `${headName(headOf(kind(), l, Math.floor(c / tensor.dim)))}, channel ${
                            c % tensor.dim}\n${number(ranges.min[i])} to ${number(ranges.max[i])}`;
                      },
                      pick: (l, c) => {
                        location.hash = headLink(headOf(kind(), l, Math.floor(c / tensor.dim)));
                      }
                    })),
        el('div', {class: 'legend'}, el('span', {}, number(scale.least, 3)),
           el('span', {class: 'bar', style: {background: rampBar(false)}}), el('span', {}, number(scale.most, 3)),
           el('span', {}, 'largest magnitude on the calibration text, log scale')),
        far.length > 0 &&
            el('p', {class: 'note'}, 'Furthest above the median of their head: ',
               far.map(
                   (at, i) =>
                       [i > 0 && ', ',
                        el('a', {href: headLink(at.head)},
                           `layer ${at.head.layer} head ${at.head.head} channel ${at.channel}`),
                        ` (${number(at.ratio, 3)}×)`]),
               '.'));
  };
  draw();
  onTheme(box, draw);
  return card(
      {
        id: 'channels',
        title: 'Outlier channels',
        file: 'channels.csv',
        rows,
        brief,
        note:
            'One column a channel, heads side by side; a channel that is larger than its neighbours in all layers stands as a line.' +
            (tensors.key?.after ? ' RoPE turns pairs of channels into one another, and smears it.' : '') +
            (data.rotated_problem ? ` No ranges after RoPE: ${data.rotated_problem}.` : ''),
        tools: usable.length > 1 &&
            choice('Tensor', 'strip-kind', usable.map((name) => [name, name === 'key' ? 'keys' : 'values']), kind(),
                   (name) => {
                     state.kind = name;
                     draw();
                     layerDraw();
                   })
      },
      box);
}

let layerDraw = () => {};
function layerCard() {
  const usable = Object.keys(tensors).filter((kind) => tensors[kind].before.min && tensors[kind].before.max);
  if (usable.length === 0) return undefined;
  const box = el('div'), kind = () => (usable.includes(state.kind) ? state.kind : usable[0]), heading = el('span');
  const count = () => headCount * tensors[kind()].dim, from = () => state.layer * count();
  layerDraw = () => {
    const tensor = tensors[kind()], start = from();
    heading.textContent = `${kind() === 'key' ? 'Keys' : 'Values'} of layer ${layers[state.layer]}, channel by channel`;
    select.value = state.layer;
    box.replaceChildren(beforeAfter(
        kind(),
        (ranges, when) => rangeBars({
          label: `Ranges of the ${kind()} channels of layer ${layers[state.layer]}${
              when ? `, ${when.toLowerCase()}` : ''}`,
          kind: kind(),
          ranges,
          from: start,
          count: count(),
          heads: headCount,
          ...extent([tensor.before.min, tensor.before.max, tensor.after?.min, tensor.after?.max], start, count()),
          describe: (c) => `head ${Math.floor(c / tensor.dim)}, channel ${c % tensor.dim}\n${
              number(ranges.min[start + c])} to ${number(ranges.max[start + c])}`
        })));
  };
  const select = picker('Layer', layers.map((layer, l) => [l, `layer ${layer}`]), state.layer, (l) => {
    state.layer = Number(l);
    layerDraw();
  });
  const step = (by) => () => {
    state.layer = Math.min(Math.max(state.layer + by, 0), layers.length - 1);
    layerDraw();
  };
  layerDraw();
  const rows = () => {
    const tensor = tensors[kind()],
          out = [['head', 'channel', 'min', 'max', ...(tensor.after ? ['min_after_rope', 'max_after_rope'] : [])]];
    for (let c = 0; c < count(); ++c) {
      const i = from() + c;
      out.push([
        Math.floor(c / tensor.dim), c % tensor.dim, tensor.before.min[i], tensor.before.max[i],
        ...(tensor.after ? [tensor.after.min[i], tensor.after.max[i]] : [])
      ]);
    }
    return out;
  };
  return card(
      {
        id: 'layer',
        title: heading,
        note: 'From the least to the largest value of each channel.',
        file: 'layer.csv',
        rows,
        tools: [
          el('button', {class: 'button', type: 'button', 'aria-label': 'Previous layer', onclick: step(-1)}, '−'),
          select, el('button', {class: 'button', type: 'button', 'aria-label': 'Next layer', onclick: step(1)}, '+')
        ]
      },
      box);
}
