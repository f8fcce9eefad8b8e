// The overview of an evaluation: summary, charts, all results.

const textual = ['mode', 'codebook', 'eviction'];

function resultsCard() {
  const candidates = [
    ['Scheme', 'scheme', (x) => x],
    ['Mode', 'mode', (x) => x ?? '-'],
    ['Calibrated', 'codebook', (x) => (x ? 'yes' : 'no')],
    ['Sink', 'sink', number],
    ['Tail', 'tail', number],
    ['Nominal bits', 'nominal_bits', (x) => number(x, 3)],
    ['Effective bits', 'effective_bits', (x) => number(x, 4)],
    ['at 2K', 'bits_2048', (x) => number(x, 4)],
    ['at 32K', 'bits_32768', (x) => number(x, 4)],
    ['at 128K', 'bits_131072', (x) => number(x, 4)],
    ['Perplexity', 'perplexity', (x) => number(x, 6)],
    ['ΔNLL', 'dnll', (x) => number(x, 4)],
    ['± SE', 'dnll_se', (x) => number(x, 2)],
    ['KL', 'kl', (x) => number(x, 4)],
    ['± SE', 'kl_se', (x) => number(x, 2)],
    ['KL median', 'kl_median', (x) => number(x, 4)],
    ['KL 99 %', 'kl_p99', (x) => number(x, 4)],
    ['KL 99.9 %', 'kl_p999', (x) => number(x, 4)],
    ['Top-1', 'top1_agreement', percent],
    ['E_M, worst 1 %', 'magnitude_share', percent],
    ['Key outliers', 'key_outlier_fraction', percent],
    ['Eviction', 'eviction', (x) => x ?? '-'],
    ['Kept', 'kept', percent],
    ['Seconds', 'seconds', (x) => number(x, 3)]
  ];
  const columns =
      candidates.filter(([, id]) => id === 'scheme' || rows.some((row) => row[id] !== undefined && row[id] !== null));
  const head = el('tr'), body = el('tbody'), count = el('p', {class: 'note', role: 'status'});
  const list = () => {
    const words = state.query.toLowerCase().split(/\s+/).filter(Boolean), sign = state.down ? -1 : 1;
    const found = data.results.filter(
        (row) => words.every(
            (word) => `${row.scheme} ${row.mode || ''} ${row.codebook || ''}`.toLowerCase().includes(word)));
    return found.sort((a, b) => {
      const x = a[state.sort], y = b[state.sort];
      if (typeof x === 'string' || typeof y === 'string') return sign * String(x ?? '').localeCompare(String(y ?? ''));
      return known(x) && known(y) ? sign * (x - y) : known(y) - known(x);
    });
  };
  const draw = () => {
    const now = list();
    count.textContent = state.query ? `${now.length} of ${data.results.length} rows match “${state.query}”` :
                                      `${data.results.length} rows, full precision (fp) among them`;
    head.replaceChildren(...columns.map(
        ([name, id], i) =>
            el('th', {
              scope: 'col',
              class: textual.includes(id) ? 'text' : null,
              'aria-sort': state.sort === id ? (state.down ? 'descending' : 'ascending') : null
            },
               el('button', {
                 type: 'button',
                 onclick: () => {
                   state.down = state.sort === id ? !state.down : false;
                   state.sort = id;
                   draw();
                   head.querySelectorAll('button')[i].focus();
                 }
               },
                  name, state.sort === id ? (state.down ? ' ↓' : ' ↑') : ''))));
    body.replaceChildren(...now.map(
        (row) =>
            el('tr', {},
               columns.map(
                   ([, id, text], i) =>
                       (i === 0 ? el('th', {scope: 'row', title: row.codebook}, row.scheme) :
                                  el('td', {class: textual.includes(id) ? 'text' : null}, text(row[id])))))));
  };
  draw();
  redrawResults = draw;
  return card(
      {
        id: 'results',
        title: 'All results',
        file: 'results.csv',
        plain: true,
        rows: () => [columns.map(([, id]) => id), ...list().map((row) => columns.map(([, id]) => row[id]))]
      },
      count,
      el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'All results'},
         el('table', {}, el('caption', {class: 'hidden'}, 'Schemes with their results; headings sort'),
            el('thead', {}, head), body)));
}
let redrawResults = () => {};

const search = el('search', {class: 'search', role: 'search'}, el('input', {
                    type: 'search',
                    placeholder: 'kivi, 4, pseudo-decode …',
                    'aria-label': 'Search schemes',
                    autocomplete: 'off',
                    spellcheck: 'false',
                    oninput: (event) => {
                      state.query = event.target.value;
                      redrawResults();
                    },
                    onkeydown: (event) => {
                      if (event.key === 'Enter') document.getElementById('results').scrollIntoView();
                    }
                  }));

function route() {
  const best = (bits) => paretoFront(shownRows(), measures[0]).filter((row) => row.effective_bits <= bits).pop();
  const dataset = data.dataset || {};
  page(
      {name: 'evaluation', links: [['pareto', 'Pareto'], ['results', 'Results'], ['provenance', 'Text']]}, search,
      el('div', {class: 'hero'}, el('h1', {tabindex: -1}, data.model_name || String(data.model).split('/').pop()),
         el('p', {class: 'sub'},
            `${dataset.name} · ${number(data.windows)} windows of ${number(data.seqlen, 7)} tokens`)),
      tiles([
        ['Perplexity, full precision', number(full.perplexity, 5)],
        ['Schemes', String(new Set(rows.map((row) => row.scheme)).size)],
        ...[2.5, 3.5, 4.6]
            .map((bits) => [bits, measures.length && best(bits)])
            .filter(([, row]) => row)
            .map(([bits, row]) => [`Best up to ${bits} bits`, number(row.perplexity, 5), rowName(row), true])
      ]),
      measures.length > 0 && paretoCard(), ...evaluationCharts(), resultsCard(),
      card({id: 'provenance', title: 'How it was measured'}, facts([
             ['Model', String(data.model)], ['Text', `${dataset.name}, ${count(dataset.tokens)} tokens`],
             ['Text SHA-256', dataset.sha256 && el('code', {}, dataset.sha256)],
             ['Windows', `${number(data.windows)} of ${count(data.seqlen)} tokens`],
             [
               'Effective bits at',
               `${count(data.effective_bits_context)} tokens in the cache, constants over ${
                   count(data.effective_bits_amortise)}`
             ],
             ['Modes', modes.join(', ')], ['First and last tokens kept exact', data.exact_tokens]
           ])));
}

document.title = data.title;
full.tasks ? tasksPage() : route();
