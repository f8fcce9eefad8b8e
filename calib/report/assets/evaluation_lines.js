// Charts of the measures that a run took: lines of several schemes, and attention's error by layer and head.

/// readings: [{name, read, dash}], each with read(row): [[x, y], …] or undefined. Boxes choose among the schemes.
function linesCard({id, title, note, readings, xName, yName, xLog, yLabel, file}) {
  const has = (row) => readings.some(({read}) => (read(row) || []).some(([x, y]) => known(x) && known(y)));
  const list = shownRows().filter(has);
  if (list.length === 0) return undefined;
  const front = paretoFront(list, measures[0]);
  const first = [...front, ...list.filter((row) => !front.includes(row))].slice(0, 8);
  // Each scheme that is drawn has a style of its own, the first that is free.
  const slots = list.filter((row) => list.length <= 8 || first.includes(row));
  const style = (row) => seriesStyle(slots.indexOf(row));
  const choose = (row, on) => {
    const at = slots.indexOf(on ? null : row);
    slots[at < 0 ? slots.length : at] = on ? row : null;
  };
  const name = (row, reading) => rowName(row) + (reading.name ? `, ${reading.name}` : '');
  const box = el('div');
  const draw = () => {
    const drawnRows = slots.filter(Boolean);
    const lines = drawnRows.flatMap(
        (row) => readings.map((reading) => ({points: reading.read(row) || [], dash: reading.dash, reading, row})));
    const values = lines.flatMap((line) => line.points.map(([, y]) => y)).filter(known);
    const log = !yLabel && Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > 12;
    box.replaceChildren(
        xyChart({
          label: `${title}: ${drawnRows.map(rowName).join(', ')}`,
          xName,
          yName: yName + (log ? ', log scale' : ''),
          xLog,
          yLog: log,
          yLabel,
          height: 340,
          lines: lines.map((line) => ({...line, color: style(line.row).color})),
          points: lines.flatMap(
              (line) => line.points.map(([x, y]) => ({x, y, name: name(line.row, line.reading), ...style(line.row)})))
        }),
        swatches(drawnRows.map((row) => ({name: rowName(row), ...style(row)}))));
  };
  draw();
  const box_of = (row) => {
    const input = el('input', {
      type: 'checkbox',
      checked: slots.includes(row),
      onchange: () => {
        choose(row, input.checked);
        draw();
      }
    });
    return el('li', {}, el('label', {}, input, rowName(row)));
  };
  const pick = list.length > 1 &&
      el('details', {class: 'pick'}, el('summary', {}, `Choose among ${list.length} schemes`),
         el('ul', {class: 'swatches', 'aria-label': `Schemes drawn in "${title}"`}, list.map(box_of)));
  const rows = () => [
      ['scheme', xName, yName],
      ...list.flatMap((row) => readings.flatMap((reading) => (reading.read(row) || [
                                                             ]).map(([x, y]) => [name(row, reading), x, y])))];
  return card({id, title, note, file, rows}, box, pick);
}

/// Attention's error of one scheme, by layer and query head.
function attentionCard() {
  const list = shownRows().filter((row) => row.attention?.kl_by_layer);
  if (list.length === 0) return undefined;
  const kinds = [['kl_by_layer', 'KL of the weights'], ['relative_by_layer', 'Output, relative']];
  const layersOf = (of) => of.attention.layers || of.attention.kl_by_layer.map((_, l) => l);
  let row = list[0], kind = kinds[0][0];
  const box = el('div');
  const draw = () => {
    const values = row.attention[kind], heads = values[0].map((_, h) => h), layerNumbers = layersOf(row);
    const label = kinds.find(([id]) => id === kind)[1];
    box.replaceChildren(heatMap({
                          label: `${label} of ${rowName(row)}, by layer and query head`,
                          layers: layerNumbers,
                          heads,
                          value: (l, h) => values[l][h],
                          text: (l, h) => `${label} ${number(values[l][h])}`,
                          name: (l, h) => `layer ${layerNumbers[l]}, query head ${h}`,
                          flagged: () => false,
                          log: true,
                          unit: number,
                          select: () => {}
                        }).node);
  };
  draw();
  onTheme(box, draw);
  const rows = () => [
      ['scheme', 'layer', 'query head', ...kinds.map(([id]) => id)],
      ...list.flatMap(
          (of) => of.attention.kl_by_layer.flatMap(
              (heads, l) =>
                  heads.map((_, h) => [rowName(of), layersOf(of)[l], h, ...kinds.map(([id]) => of.attention[id]?.[l][h])])))];
  return card(
      {
        id: 'attention',
        title: 'Attention’s error by layer and head',
        note: 'What the quantised cache changes in attention, its queries being full precision’s.',
        file: 'attention.csv',
        rows,
        tools: [
          picker(
              'Scheme', list.map((of, i) => [i, rowName(of)]), 0,
              (i) => {
                row = list[i];
                draw();
              }),
          choice(
              'Measure', 'attention-kind', kinds, kind,
              (id) => {
                kind = id;
                draw();
              })
        ]
      },
      box);
}

/// Middles of bins [begin[i], begin[i + 1]) with their values.
const binned = (begin, values) => begin && values && values.map((y, i) => [(begin[i] + begin[i + 1] - 1) / 2, y]);
const paired = (x, y) => x && y && x.map((value, i) => [value, y[i]]);

function evaluationCharts() {
  return [
    linesCard({
      id: 'position',
      title: 'KL by position',
      note: 'KL from full precision of the predictions at each distance from the start of the window.',
      file: 'kl-by-position.csv',
      xName: 'position',
      yName: 'KL, nats',
      readings: [{read: (row) => binned(row.positions?.begin, row.positions?.kl)}]
    }),
    linesCard({
      id: 'magnitude',
      title: 'Error of length and of direction',
      note:
          'E_M as a share of E_M + E_D of the keys, over the worst tokens: 100 % where their length is wrong, 0 where their direction is.',
      file: 'magnitude-share.csv',
      xName: 'worst tokens, %',
      yName: 'E_M / (E_M + E_D)',
      xLog: true,
      yLabel: percent,
      readings: [{read: (row) => paired(row.key_error?.worst_percent, row.key_error?.magnitude_share)}]
    }),
    linesCard({
      id: 'repair',
      title: 'KL when some tokens are exact',
      note: 'Full line: the worst tokens are exact; dashed: all others are.',
      file: 'kl-repair.csv',
      xName: 'worst tokens, %',
      yName: 'KL, nats',
      xLog: true,
      readings: [
        {name: 'worst exact', read: (row) => row.repair?.map((at) => [at.percent, at.kl_worst_exact])},
        {name: 'rest exact', dash: '5 4', read: (row) => row.repair?.map((at) => [at.percent, at.kl_rest_exact])}
      ]
    }),
    linesCard({
      id: 'context',
      title: 'Attention’s error against context',
      note:
          'Mean absolute error of attention’s outputs. Full line: accumulated over layers and blocks; dashed: static, one cache at a time.',
      file: 'attention-by-context.csv',
      xName: 'tokens before',
      yName: 'mean absolute error',
      readings: [
        {name: 'accumulated', read: (row) => paired(row.attention?.queries, row.attention?.accumulated)},
        {name: 'static', dash: '5 4', read: (row) => paired(row.attention?.queries, row.attention?.static)}
      ]
    }),
    attentionCard()
  ];
}
