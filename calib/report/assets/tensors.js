// The artifact's tensors, as html_codebook.cc wrote them: heads by layer and head, arrays decoded when they are drawn.
const tensors = {};
for (const [kind, source] of Object.entries(data.tensors)) {
  const channels = lazyFloats(source.channels), after = lazyFloats(source.post_rope);
  const whole = lazyFloats({histogram: source.histogram, code_use: source.code_use});
  tensors[kind] = {
    ...source,
    kind,
    channels,
    // Ranges on the activations given, before and after RoPE, are of one text; the artifact's own may be of another.
    before: 'before_min' in after ? {min: after.before_min, max: after.before_max} : channels,
    after: 'min' in after ? after : undefined,
    vector: source.vector && {
      ...source.vector,
      width: floats(source.vector.width),
      bits: floats(source.vector.bits),
      energy: floats(source.vector.energy)
    },
    get histogram() {
      return whole.histogram;
    },
    get code_use() {
      return whole.code_use;
    }
  };
}
// Of an activations folder: no codes, and nothing that comes from them.
const isFolder = data.kind === 'activations';
const subject = isFolder ? 'activations' : data.scheme_name;
const layers = data.layer_index, headCount = data.model.kv_heads;
const headOf = (kind, l, h) => tensors[kind].heads[l * headCount + h];
const headName = (head) => `layer ${head.layer}, ${head.kind} head ${head.head}`;
const headLink = (head) => `#/${head.kind}/${head.layer}/${head.head}`;
const allHeads = layers.flatMap(
    (_, l) => Object.keys(tensors).flatMap((kind) => Array.from({length: headCount}, (_, h) => headOf(kind, l, h))));
for (const head of allHeads) head.warnings = [];
for (const warning of data.warnings) {
  warning.at = warning.heads.map((index) => allHeads[index]);
  for (const head of warning.at) head.warnings.push(warning);
}

/// What the heat maps show. `low`: low values are the ones to look at.
const metrics =
    [
      {id: 'range', label: 'Range', get: (h) => h.range_max - h.range_min, log: true, text: (x) => number(x)},
      {id: 'outlier_fraction', label: 'Outlier share', text: percent},
      {id: 'fisher_mass', label: 'Fisher mass', log: true, text: (x) => number(x)},
      {id: 'weighted_sse', label: 'Weighted error', log: true, text: (x) => number(x) + ' nat²'},
      {id: 'sqnr_db', label: 'SQNR', low: true, text: (x) => (known(x) ? number(x) + ' dB' : '-')},
      {id: 'bits', label: 'Bits', get: (h) => (isFolder ? NaN : h.bits), text: (x) => number(x)},
      {id: 'first_token_share', label: 'First-token share', text: percent},
      {id: 'token_share', label: 'Heaviest token', text: percent},
      {id: 'sample_share', label: 'Heaviest sample', text: percent},
      {id: 'held_out_outliers', label: 'Held-out outliers', text: percent},
      {id: 'drift', label: 'Drift', text: (x) => number(x)},
    ].map((metric) => ({get: (h) => h[metric.id], ...metric}))
        .filter(
            (metric) => Object.values(tensors).some((tensor) => tensor.heads.some((head) => known(metric.get(head)))));

/// Largest magnitude a channel reached; NaN where the file has no ranges.
const magnitudes = (ranges) =>
    ranges && ranges.min && ranges.max && ranges.min.map((low, i) => Math.max(Math.abs(low), Math.abs(ranges.max[i])));
function median(values) {
  const sorted = Float64Array.from(values).sort();
  return sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : NaN;
}

/// Channels by how far their largest magnitude is above the median of their head's, furthest first.
function outlierChannels(kind, ranges) {
  const dim = tensors[kind].dim, size = magnitudes(ranges), list = [];
  if (!size) return list;
  tensors[kind].heads.forEach((head, i) => {
    const slice = size.subarray(i * dim, (i + 1) * dim), middle = median(slice);
    slice.forEach((value, channel) => list.push({head, channel, value, ratio: value / middle}));
  });
  return list.sort((a, b) => b.ratio - a.ratio);
}
