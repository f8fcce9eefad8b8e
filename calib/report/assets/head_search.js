// What the overview of an artifact shows, and the search over heads.
const state = {
  metric: metrics[0]?.id,
  query: '',
  kind: 'key',
  layer: 0,
  sort: '',
  down: true
};
let matching = () => true, applySearch = () => {};

/// "layer 3 head 1", "l3 h1", "key", "offset", "sqnr<12": all words must hold. Returns a predicate over heads, or the
/// complaint about a word that means nothing.
function parseQuery(text) {
  const words = text.toLowerCase()
                    .replace(/\b(layer|head)\s*[:=#]?\s*(\d+)/g, '$1$2')
                    .replace(/\bl(\d+)\s*h(\d+)\b/g, 'layer$1 head$2')
                    .replace(/\s*(<=|>=|<|>|=)\s*/g, '$1')
                    .split(/[\s,]+/)
                    .filter(Boolean);
  const tests = [];
  for (const word of words) {
    let m;
    if ((m = word.match(/^(?:layer|l)(\d+)$/)))
      tests.push(
          (head) => head.layer === Number(m[1]),
      );
    else if ((m = word.match(/^(?:head|h)(\d+)$/)))
      tests.push((head) => head.head === Number(m[1]));
    else if (/^(keys?|values?)$/.test(word))
      tests.push((head) => word.startsWith(head.kind));
    else if (/^(layer|head|warnings?|flag)$/.test(word))
      tests.push(word.startsWith('w') || word === 'flag' ? (head) => head.warnings.length > 0 : () => true);
    else if ((m = word.match(/^([a-z_]+)(<=|>=|<|>|=)(-?[\d.]+(?:e-?\d+)?)(%?)$/))) {
      const metric = metrics.find((known) => known.id.startsWith(m[1])) ||
          metrics.find((known) => known.label.toLowerCase().replaceAll(/[ -]/g, '_').startsWith(m[1]));
      if (!metric) return `nothing is called “${m[1]}”`;
      const bound = Number(m[3]) / (m[4] ? 100 : 1), operator = m[2];
      tests.push((head) => {
        const x = metric.get(head);
        return known(x) &&
            {'<': x < bound, '>': x > bound, '<=': x <= bound, '>=': x >= bound, '=': x === bound}[operator];
      });
    } else if (data.warnings.some((w) => w.name.includes(word))) {
      const names = data.warnings.filter((w) => w.name.includes(word)).map((w) => w.name);
      tests.push((head) => head.warnings.some((w) => names.includes(w.name)));
    } else
      return `no layer, head, warning or number matches “${word}”`;
  }
  return (head) => tests.every((test) => test(head));
}

function searchBox() {
  const status = el('span', {class: 'hidden', role: 'status', id: 'search-status'});
  const input = el('input', {
    type: 'search',
    value: state.query,
    placeholder: 'layer 3 head 1, offset, sqnr<12 …',
    'aria-label': 'Search heads by layer, head, warning or number',
    'aria-describedby': 'search-status',
    autocomplete: 'off',
    spellcheck: 'false',
    oninput: () => {
      state.query = input.value;
      if (location.hash.length > 2) location.hash = '#/';
      applySearch(status);
    },
    onkeydown: (event) => {
      const found = event.key === 'Enter' && allHeads.filter(matching);
      if (!found || !state.query) return;
      if (found.length === 1)
        location.hash = headLink(found[0]);
      else
        document.getElementById('heads')?.scrollIntoView();
    }
  });
  return el('search', {class: 'search', role: 'search'}, input, status);
}
const search = searchBox();
