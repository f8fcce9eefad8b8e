// One head in full: histogram with codes, channels, Fisher information, every number with its meaning.

function headPage(kind, l, h, bar, search) {
  const head = headOf(kind, l, h), tensor = tensors[kind], dim = tensor.dim, i = l * headCount + h, from = i * dim;
  const slice = (array) => array && array.subarray(from, from + dim),
        file = `${kind}-layer${head.layer}-head${head.head}`;
  const shares = tensor.histogram && tensor.histogram.subarray(i * data.histogram.bins, (i + 1) * data.histogram.bins);
  const use = tensor.code_use && tensor.code_use.subarray(i * tensor.codes, (i + 1) * tensor.codes);
  const title = `Layer ${head.layer}, ${kind} head ${head.head}`;
  document.title = `${title} – ${data.title}`;
  const step = (text, name, to) =>
      el('a', {
        class: 'button',
        'aria-label': name,
        href: to && headLink(to),
        'aria-disabled': to ? null : 'true',
        role: to ? null : 'link'
      },
         text);
  const other = tensors[kind === 'key' ? 'value' : 'key'];
  const pager =
      el('nav', {class: 'pager', 'aria-label': 'Other heads'}, el('a', {class: 'button', href: '#/'}, '← All heads'),
         step('Layer −', 'Previous layer', l > 0 && headOf(kind, l - 1, h)),
         step('Layer +', 'Next layer', l + 1 < layers.length && headOf(kind, l + 1, h)),
         step('Head −', 'Previous head', h > 0 && headOf(kind, l, h - 1)),
         step('Head +', 'Next head', h + 1 < headCount && headOf(kind, l, h + 1)),
         other &&
             step(
                 `${other.kind === 'key' ? 'Keys' : 'Values'} of this head`, `${other.kind} head of the same layer`,
                 headOf(other.kind, l, h)));
  const warnings = head.warnings;
  const chart = el('div');
  const histogram = (log) => chart.replaceChildren(histogramChart(head, shares, use, log));
  if (head.codebook.length > 0) histogram(false);
  const middles = between(head.codebook);
  const codeRows = () => [
      ['code', 'level', 'below', 'share'],
      ...head.codebook.map(
          (level, code) => [code, level, code < middles.length ? middles[code] : null, use ? use[code] : null])];
  const binWidth = (data.histogram.high - data.histogram.low) / data.histogram.bins;
  const histogramRows = () => [
      ['from', 'to', 'share'],
      ...Array.from(
          shares, (share, b) => [data.histogram.low + b * binWidth, data.histogram.low + (b + 1) * binWidth, share])];
  const channels = tensor.channels, hasRanges = tensor.before.min && tensor.before.max;
  const bounds = channels.threshold_lower && {lower: channels.threshold_lower, upper: channels.threshold_upper};
  const names = Object.keys(channels), afterNames = tensor.after ? ['min', 'max'] : [];
  const channelRows = () => [
      ['channel', ...names, ...afterNames.map((name) => `${name}_after_rope`)],
      ...Array.from(
          {length: dim},
          (_, c) =>
              [c, ...names.map((name) => channels[name][from + c]),
               ...afterNames.map((name) => tensor.after[name][from + c])])];
  const span = hasRanges &&
      extent([tensor.before.min, tensor.before.max, tensor.after?.min, tensor.after?.max, bounds?.lower, bounds?.upper],
             from, dim);
  const knownFields =
      data.fields.filter(({name}) => (isFolder ? known(head[name]) && name !== 'bits' : head[name] !== undefined));
  page(
      bar, search,
      el('div', {class: 'hero'}, pager, el('h1', {tabindex: -1, id: 'head-title'}, title),
         el('p', {class: 'sub'}, `${data.model.name} · ${subject}`)),
      tiles([
        ['Bits', isFolder ? '-' : number(head.bits)],
        ['Range', `${number(head.range_min, 3)} to ${number(head.range_max, 3)}`],
        ['Outlier share', percent(head.outlier_fraction)], ['Fisher mass', number(head.fisher_mass, 3)],
        ['First-token share', percent(head.first_token_share)],
        ['Weighted error', number(head.weighted_sse, 3), known(head.weighted_sse) && 'nat²'],
        ['SQNR', number(head.sqnr_db, 3), known(head.sqnr_db) && 'dB']
      ].filter(([, value]) => !isFolder || value !== '-')),
      warnings.length > 0 &&
          card(
              {id: 'head-warnings', title: 'Warnings'},
              el('ul', {class: 'warnings'},
                 warnings.map(
                     (w) => el(
                         'li', {}, el('b', {}, w.name), ` in ${w.where}: ${w.cause}`, el('div', {}, '→ ', w.cure))))),
      head.codebook.length > 0 &&
          card(
              {
                id: 'histogram',
                title: shares ? 'Histogram and codes' : 'Codes',
                file: `${file}-histogram.csv`,
                note: shares ?
                    'Elements less the zero-point, divided by the scale. Dotted: where one code gives way to the next; dashed red: the ends of the range that codes cover.' :
                    'The artifact holds no histogram: fit it again to get one.',
                tools: shares &&
                    choice('Axis', 'histogram-axis', [['lin', 'linear'], ['log', 'log']], 'lin',
                           (v) => histogram(v === 'log')),
                rows: shares ? histogramRows : codeRows
              },
              chart),
      shares &&
          card(
              {id: 'codes', title: 'Codebook', file: `${file}-codes.csv`, plain: true, rows: codeRows},
              table(codeRows(), 'Codebook')),
      hasRanges &&
          card(
              {
                id: 'channels',
                title: 'Channels',
                file: `${file}-channels.csv`,
                rows: channelRows,
                note: 'From the least to the largest value of each channel on the calibration text.' +
                    (bounds ? ' Red: thresholds; what lies beyond is stored exactly.' : '')
              },
              beforeAfter(
                  kind, (ranges, when) => rangeBars({
                          label: `${headName(head)}: ranges of ${dim} channels${when ? `, ${when.toLowerCase()}` : ''}`,
                          kind,
                          ranges,
                          from,
                          count: dim,
                          ...span,
                          bounds: ranges === tensor.before ? bounds : undefined,
                          describe: (c) =>
                              `channel ${c}\n${number(ranges.min[from + c])} to ${number(ranges.max[from + c])}` +
                              (bounds && ranges === tensor.before ?
                                   `\nthresholds ${number(bounds.lower[from + c])}, ${number(bounds.upper[from + c])}` :
                                   '')
                        }))),
      channels.fisher &&
          card(
              {
                id: 'fisher',
                title: 'Fisher information',
                file: `${file}-fisher.csv`,
                note: 'Mean squared gradient of each channel: what an error there costs.',
                rows: () => [['channel', 'fisher'], ...Array.from(slice(channels.fisher), (x, c) => [c, x])]
              },
              fisherBars(head, slice(channels.fisher))),
      card(
          {
            id: 'numbers',
            title: 'All numbers of this head',
            file: `${file}.csv`,
            plain: true,
            rows: () => [['name', 'value', 'unit'], ...knownFields.map((f) => [f.name, head[f.name], f.unit])]
          },
          el('dl', {class: 'facts numbers'},
             knownFields.map(
                 (f) =>
                     el('div', {}, el('dt', {}, f.name),
                        el('dd', {}, el('b', {}, number(head[f.name], 6)),
                           known(head[f.name]) && f.unit !== '1' && ` ${f.unit}`,
                           f.meaning && el('p', {class: 'note'}, f.meaning.replaceAll('`', ''))))))));
}
