// The overview of an artifact and the way between pages.
function headsCard() {
  const columns = [
    ['Layer', (h) => h.layer, String], ['Kind', (h) => h.kind, String], ['Head', (h) => h.head, String],
    ...metrics.map((m) => [m.label, m.get, m.text])
  ];
  const body = el('tbody'), count = el('p', {class: 'note', role: 'status'}), headers = el('tr');
  const shown = () => {
    const list = allHeads.filter(matching), by = columns.find(([name]) => name === state.sort);
    if (!by) return list;
    const sign = state.down ? -1 : 1, value = by[1];
    return list.sort((a, b) => {
      const x = value(a), y = value(b);
      if (typeof x === 'string') return sign * x.localeCompare(y);
      return known(x) && known(y) ? sign * (x - y) : known(y) - known(x);
    });
  };
  const draw = () => {
    const list = shown();
    count.textContent =
        state.query ? `${list.length} of ${allHeads.length} heads match “${state.query}”` : `${allHeads.length} heads`;
    headers.replaceChildren(
        ...columns.map(
            ([name]) =>
                el('th', {
                  scope: 'col',
                  class: name === 'Kind' ? 'text' : null,
                  'aria-sort': state.sort === name ? (state.down ? 'descending' : 'ascending') : null
                },
                   el('button', {
                     type: 'button',
                     onclick: () => {
                       state.down = state.sort === name ? !state.down : true;
                       state.sort = name;
                       draw();
                       headers.querySelectorAll('button')[columns.findIndex(([c]) => c === name)].focus();
                     }
                   },
                      name, state.sort === name ? (state.down ? ' ↓' : ' ↑') : ''))),
        el('th', {scope: 'col', class: 'text'}, 'Warnings'));
    body.replaceChildren(...list.map(
        (head) => el(
            'tr', {},
            columns.map(
                ([name, value, text]) =>
                    (name === 'Layer' ? el('th', {scope: 'row'},
                                           el('a', {href: headLink(head), 'aria-label': headName(head)}, head.layer)) :
                                        el('td', {class: name === 'Kind' ? 'text' : null}, text(value(head))))),
            el('td', {class: 'text'}, head.warnings.map((w) => el('span', {class: 'flag'}, w.name))))));
  };
  const node = card(
      {
        id: 'heads',
        title: 'All heads',
        file: 'heads-table.csv',
        plain: true,
        rows: () => [
            [...columns.map(([name]) => name), 'Warnings'],
            ...shown().map(
                (head) => [...columns.map(([, value]) => value(head)), head.warnings.map((w) => w.name).join(' ')])]
      },
      count,
      el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'All heads'},
         el('table', {}, el('caption', {class: 'hidden'}, 'Heads with their statistics; headings sort'),
            el('thead', {}, headers), body)));
  return {node, draw};
}

function overview(bar) {
  document.title = data.title;
  const maps = [], p = data.provenance, mean = (kind, id) => {
    const list = (tensors[kind]?.heads || []).map((head) => head[id]).filter(known);
    return list.length ? list.reduce((a, b) => a + b, 0) / list.length : NaN;
  };
  const bits = data.effective_bits.find((at) => at.context === 32768) || data.effective_bits[0];
  page(
      bar, search,
      el('div', {class: 'hero'}, el('h1', {tabindex: -1}, data.model.name),
         el('p', {class: 'sub'}, `${subject} · ${data.path}`)));
  const main = document.querySelector('main');
  const heat = heatCard(maps), heads = headsCard();
  applySearch = (status) => {
    const parsed = parseQuery(state.query);
    matching = typeof parsed === 'string' ? () => false : parsed;
    for (const map of maps) map.dim((l, h) => matching(headOf(map.kind, l, h)));
    heads.draw();
    const said = typeof parsed === 'string' ? parsed :
        state.query                         ? `${allHeads.filter(matching).length} heads match` :
                                              '';
    (status || document.getElementById('search-status')).textContent = said;
  };
  heat.draw();
  main.append(...[tiles([
                    ['Nominal bits', isFolder ? '-' : number(data.nominal_bits, 3)],
                    [`Effective bits at ${bits ? bits.context / 1024 : '-'}K`, isFolder ? '-' : number(bits?.total, 4)],
                    ['Heads', `${layers.length} × ${headCount}`],
                    ['Key SQNR, mean', number(mean('key', 'sqnr_db'), 3), 'dB'],
                    ['Value SQNR, mean', number(mean('value', 'sqnr_db'), 3), 'dB'],
                    ['Key outliers, mean', percent(mean('key', 'outlier_fraction'))],
                    [isFolder ? 'Read' : 'Calibrated on', count(p.tokens), 'tokens']
                  ].filter(([, value]) => !isFolder || value !== '-')),
                  warningsCard(),
                  heat.node,
                  vectorCard(),
                  stripCard(),
                  layerCard(),
                  heads.node,
                  card(
                      {id: 'provenance', title: 'Where it came from'}, facts([
                        ['Model', `${data.model.name} (${data.model.architecture}, ${data.model.dtype})`],
                        ['Scheme', !isFolder && el('code', {}, data.scheme)],
                        ['Text', `${p.dataset} (${p.dataset_flavour})`],
                        ['Samples', `${number(p.samples)} of ${count(p.seqlen)} tokens, seed ${p.seed}, BOS ${p.bos}`],
                        ['Refined', data.refinement_text],
                        [
                          'Shape',
                          `${layers.length} layers, ${data.model.query_heads} query heads, ${headCount} KV heads of ${
                              data.model.head_dim}/${data.model.value_head_dim}`
                        ],
                        [
                          'File',
                          `${data.path}, ${bytesText(data.bytes)}${isFolder ? '' : `, format ${data.format_version}`}`
                        ],
                        ['Made by', !isFolder && `kvcc ${p.tool_version}${p.date ? ` on ${p.date}` : ''}`],
                        ['Content SHA-256', el('code', {}, data.content_sha256)],
                        ['Weights SHA-256', el('code', {}, data.model.weights_sha256)],
                        ['Text SHA-256', el('code', {}, p.dataset_sha256)]
                      ])),
  ].filter(Boolean));
}

const bar = {
  name: isFolder ? 'activations' : 'codebook report',
  links: [['', 'Overview'], ['heat', 'Heat maps'], ['channels', 'Channels'], ['heads', 'Heads']]
};
let last;
function route() {
  const m = location.hash.match(/^#\/(key|value)\/(\d+)\/(\d+)$/);
  const l = m ? layers.indexOf(Number(m[2])) : -1, h = m ? Number(m[3]) : -1;
  if (m && tensors[m[1]] && l >= 0 && h < headCount) {
    headPage(m[1], l, h, bar, search);
    last = {kind: m[1], l, h};
    scrollTo(0, 0);
    document.getElementById('head-title').focus({preventScroll: true});
    return;
  }
  overview(bar);
  document.getElementById(location.hash.slice(2))?.scrollIntoView();
  if (last) {  // back from a head: the focus returns to its cell
    const grid = document.querySelectorAll('.heat')[Object.keys(tensors).indexOf(last.kind)];
    grid?.querySelector(`[data-l="${last.l}"][data-h="${last.h}"]`)?.focus();
  }
}
addEventListener('hashchange', route);
route();
