// The document of kvcc ablate --json: KL, perplexity and distance along each axis, a chart and a table each.
const several = data.evaluations.length > 1;
const measures = [
  {id: 'kl', label: 'KL', error: 'kl_se'},
  {id: 'perplexity', label: 'Perplexity'},
];
let measure = measures[0];

const pointsOf = (axis) => data.points.filter((point) => point.axes.includes(axis));
const resultOn = (point, evaluation) => point.results.find((result) => result.dataset === evaluation.dataset) || {};
const distanceOf = (point, kind) => point.distance[kind]?.rms;

function axisRows(axis, member) {
  const head = ['scheme', member, 'tokens'];
  for (const evaluation of data.evaluations)
    for (const name of ['perplexity', 'kl', 'kl_se']) head.push(several ? `${name} (${evaluation.dataset})` : name);
  return [
    [...head, 'key distance', 'value distance'],
    ...pointsOf(axis)
        .sort((a, b) => (typeof a[member] === 'number' && a.scheme === b.scheme ? a[member] - b[member] : 0))
        .map((point) => [
          point.scheme, String(point[member]), point.tokens,
          ...data.evaluations.flatMap((evaluation) => {
            const result = resultOn(point, evaluation);
            return [result.perplexity, result.kl, result.kl_se];
          }),
          distanceOf(point, 'key'), distanceOf(point, 'value')
        ])
  ];
}

/// Lines of the measure over a number: one for each scheme and evaluation.
function measureChart(axis, member, xName) {
  const series = data.schemes.flatMap(
      (scheme) => data.evaluations.map((evaluation) => ({
        name: several ? `${scheme}, ${evaluation.dataset}` : scheme,
        points: pointsOf(axis)
                    .filter((point) => point.scheme === scheme)
                    .sort((a, b) => a[member] - b[member])
                    .map((point) => [point[member], resultOn(point, evaluation)])
      })));
  return [
    xyChart({
      label: `${measure.label} against ${xName.toLowerCase()}`,
      xName,
      yName: measure.label,
      xLog: member !== 'seed',
      height: 320,
      lines: series.map(({points}, i) => ({
        points: points.map(([x, result]) => [x, result[measure.id]]),
        color: seriesStyle(i).color
      })),
      points: series.flatMap(({name, points}, i) => points.map(([x, result]) => ({
        x,
        y: result[measure.id],
        error: measure.error && result[measure.error],
        name,
        text: `${name}\n${xName} ${x}\n${measure.label} ${number(result[measure.id], 5)}`,
        ...seriesStyle(i)
      })))
    }),
    swatches(series.map(({name}, i) => ({name, ...seriesStyle(i)})))
  ];
}

function axisCard(id, title, note, member, xName) {
  const box = el('div');
  const draw = () => box.replaceChildren(...measureChart(id, member, xName));
  draws.push(draw);
  draw();
  const rows = () => axisRows(id, member);
  return card({id, title, note, rows, file: `${id}.csv`}, box);
}
const draws = [];

function domainCard() {
  const rows = () => axisRows('domain', 'dataset');
  return card(
      {
        id: 'domain',
        title: 'Calibration text',
        note: 'Rows: the text that was calibrated on. Columns: the text that was evaluated on.',
        rows,
        file: 'domain.csv',
        plain: true
      },
      table(rows(), 'Calibration text'));
}

function seedCard() {
  const rows = () =>
      [['scheme', 'seeds', 'key rms', 'key median', 'key 90 %', 'value rms', 'value median', 'value 90 %'],
       ...data.seeds.map((pair) => [
         pair.scheme, `${pair.a}, ${pair.b}`,
         ...['key', 'value'].flatMap((kind) => ['rms', 'median', 'p90'].map((figure) => pair[kind]?.[figure]))
       ])];
  return card(
      {
        id: 'seeds',
        title: 'Fits of two seeds',
        note: 'Distance of the codecs in units of the error that quantising costs: 0 the same, √2 errors that have nothing in common.',
        rows,
        file: 'seeds.csv',
        plain: true
      },
      table(rows(), 'Fits of two seeds'));
}

page(
    {name: 'ablation', links: [['samples', 'Samples'], ['seqlen', 'Length'], ['domain', 'Text'], ['seeds', 'Seeds']]},
    undefined,
    el('div', {class: 'hero'}, el('h1', {tabindex: -1}, String(data.model).split('/').filter(Boolean).pop()),
       el('p', {class: 'sub'},
          `base: ${data.base.samples} samples of ${data.base.seqlen} tokens of ${data.base.dataset}, seed ${
              data.base.seed}`)),
    tiles(data.evaluations.map((evaluation) => [
      `Full precision, ${evaluation.dataset}`, number(evaluation.perplexity, 6),
      `${evaluation.windows} windows of ${evaluation.seqlen}`, true
    ])),
    choice('Measure', 'measure', measures.map((m) => [m.id, m.label]), measure.id,
           (id) => {
             measure = measures.find((m) => m.id === id);
             for (const draw of draws) draw();
           }),
    axisCard('samples', 'Number of samples', 'The first samples of one collection.', 'samples', 'Samples'),
    axisCard('seqlen', 'Length of samples', 'As many samples of other lengths.', 'seqlen', 'Tokens a sample'),
    domainCard(),
    axisCard('seed', 'Seed', 'Other samples of the same text.', 'seed', 'Seed'), data.seeds.length > 0 && seedCard());
document.title = data.title;
