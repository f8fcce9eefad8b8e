// Charts of an evaluation: what each scheme costs in bits and in predictions.
const state = {
  measure: measures[0]?.id,
  mode: modes[0],
  axis: '',
  query: '',
  context: '',
  sort: 'effective_bits',
  down: false
};
const shownRows = () => rows.filter((row) => !row.mode || row.mode === state.mode);
/// Contexts for which every row has its bits; "" is the one that the run counted at.
const contexts = Object.keys(rows[0]?.effective_bits_at || {});
const bitsOf = (row) => (state.context ? row.effective_bits_at?.[state.context] : row.effective_bits);

function paretoCard() {
  const box = el('div'), measure = () => measures.find((m) => m.id === state.measure);
  const draw = () => {
    const m = measure(), list = shownRows(), front = paretoFront(list, m),
          values = list.map((row) => row[m.id]).filter((x) => known(x) && x > 0);
    const wide = values.length && Math.max(...values) / Math.min(...values) > 3;
    const log = !m.up && (state.axis ? state.axis === 'log' : wide) &&
        values.length === list.filter((row) => known(row[m.id])).length;
    const points = list.map((row) => ({
                              x: bitsOf(row),
                              y: row[m.id],
                              error: m.error && row[m.error],
                              name: rowName(row),
                              strong: front.includes(row),
                              ...styleOf(row),
                              text: `${rowName(row)}\n${number(bitsOf(row), 4)} bits, ${m.label} ${m.text(row[m.id])}${
                                  front.includes(row) ? '\non the Pareto front' : ''}`
                            }));
    box.replaceChildren(
        xyChart({
          label: `${m.label} against effective bits, ${points.length} schemes; the Pareto front: ${
              front.map(rowName).join(', ')}`,
          points,
          focusable: true,
          yLog: log,
          lines: [{
            points: front.map((row) => [bitsOf(row), row[m.id]]),
            color: 'var(--muted)',
            step: true,
            width: 1.6,
            opacity: .8
          }],
          rules: m.id === 'perplexity' ? [{y: full.perplexity, name: `full precision ${number(full.perplexity, 5)}`}] :
                                         [],
          xName: 'effective bits an element',
          yName: m.label + (log ? ', log scale' : ''),
          yLabel: m.up ? percent : undefined,
          height: 440
        }),
        swatches(families.filter((name) => list.some((row) => family(row) === name))
                     .map((name) => ({name, ...seriesStyle(families.indexOf(name))}))));
  };
  draw();
  const dataRows = () => {
    const front = paretoFront(shownRows(), measure());
    return [
      ['scheme', 'mode', 'effective_bits', ...measures.map((m) => m.id), 'on_front'],
      ...shownRows().map(
          (row) =>
              [rowName(row), row.mode ?? '-', bitsOf(row), ...measures.map((m) => row[m.id]),
               front.includes(row) ? 'yes' : 'no'])
    ];
  };
  return card(
      {
        id: 'pareto',
        title: 'Predictions against bits',
        file: 'pareto.csv',
        rows: dataRows,
        note:
            'Down and to the left is better. The line joins the schemes that no other beats with as few bits; they are named.',
        tools: [
          modes.length > 1 &&
              choice(
                  'Mode', 'mode', modes.map((mode) => [mode, mode]), state.mode,
                  (mode) => {
                    state.mode = mode;
                    route();
                  }),
          contexts.length > 1 &&
              choice(
                  'Bits at', 'context', [['', 'run'], ...contexts.map((c) => [c, `${c / 1024}K`])], state.context,
                  (context) => {
                    state.context = context;
                    draw();
                  }),
          choice(
              'Measure', 'measure', measures.map((m) => [m.id, m.label]), state.measure,
              (id) => {
                state.measure = id;
                draw();
              }),
          choice(
              'Axis', 'axis', [['', 'auto'], ['lin', 'linear'], ['log', 'log']], state.axis,
              (axis) => {
                state.axis = axis;
                draw();
              })
        ]
      },
      box);
}
