// The document of kvcc eval --json, read for drawing. Measures that a run did not take are absent.
const full = data.results.find((row) => row.scheme === 'fp') || data.results[0];
const rows = data.results.filter((row) => row !== full);
const modes = [...new Set(rows.map((row) => row.mode).filter(Boolean))];

// Members of members that the table shows as columns of their own.
for (const row of rows) {
  for (const [context, bits] of Object.entries(row.effective_bits_at || {})) row[`bits_${context}`] = bits;
  row.magnitude_share = row.key_error?.magnitude_share?.[row.key_error.worst_percent.indexOf(1)];
}

/// "kivi" of "kivi-2-g32", "int" of "int4"; what starts alike was published together.
const family = (row) =>
    (/^[a-z]+=/.test(row.scheme) ?
         'spelt out' :
         (row.scheme.match(/^[a-z]+[0-9]*(?=-)|^[a-z]+/i) || ['other'])[0].replace(/[0-9]+$/, '').toLowerCase());
const families = [...new Set(rows.map(family))];
const styleOf = (row) => seriesStyle(families.indexOf(family(row)));

/// Names that tell rows of a mode apart where several artifacts have one scheme.
const rowName = (row) => {
  const twice = row.codebook &&
      rows.some(
          (other) => other.scheme === row.scheme && other.mode === row.mode && other.codebook &&
              other.codebook !== row.codebook);
  return twice ? `${row.scheme} [${row.codebook.split('/').pop()}]` : row.scheme;
};

/// What a scheme can be judged by. `up`: more is better.
const measures = [
  {id: 'perplexity', label: 'Perplexity', text: (x) => number(x, 6)},
  {id: 'kl', label: 'KL', error: 'kl_se', text: (x) => number(x, 4)},
  {id: 'dnll', label: 'ΔNLL', error: 'dnll_se', text: (x) => number(x, 4)},
  {id: 'top1_agreement', label: 'Top-1 agreement', text: percent, up: true},
].filter((m) => rows.some((row) => known(row[m.id])));

/// Rows that no other row beats: none is at least as good with fewer bits. By bits, ascending.
function paretoFront(list, measure) {
  const worth = (row) => (measure.up ? -row[measure.id] : row[measure.id]);
  const usable = list.filter((row) => known(bitsOf(row)) && known(row[measure.id]));
  const front = [];
  for (const row of usable.sort((a, b) => bitsOf(a) - bitsOf(b) || worth(a) - worth(b))) {
    if (front.length === 0 || worth(row) < worth(front[front.length - 1])) front.push(row);
  }
  return front;
}
