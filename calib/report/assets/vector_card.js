// Vector codebooks: where the bits are, and the energy that they were given for.
const kVectorMeasures = [
  {id: 'bits', label: 'Bits an element', log: false, text: 'bits an element of the group'},
  {id: 'energy', label: 'Energy', log: true, text: 'nats a token that leaving the coordinate out would lose, log scale'},
];

/// The groups of a tensor: {layer, l, unit, first, width, bits, energy}; energy of the group, NaN where not stored.
function groupsOf(kind) {
  const {units, coordinates, width, bits, energy} = tensors[kind].vector, out = [];
  for (let i = 0; i < width.length; i += width[i]) {
    const at = Math.floor(i / coordinates);
    out.push({
      layer: layers[Math.floor(at / units)],
      l: Math.floor(at / units),
      unit: at % units,
      first: i % coordinates,
      width: width[i],
      bits: bits[i],
      energy: energy ? energy.subarray(i, i + width[i]).reduce((a, b) => a + b, 0) : NaN
    });
  }
  return out;
}

function vectorCard() {
  const usable = Object.keys(tensors).filter((kind) => tensors[kind].vector);
  if (usable.length === 0) return undefined;
  const box = el('div'), shown = {kind: usable[0], measure: 'bits'};
  const measures = kVectorMeasures.filter(({id}) => usable.some((kind) => tensors[kind].vector[id]));
  const rows = () =>
      [['layer', 'kind', 'unit', 'first_coordinate', 'width', 'bits', 'energy'],
       ...usable.flatMap(
           (kind) => groupsOf(kind).map((g) => [g.layer, kind, g.unit, g.first, g.width, g.bits, g.energy]))];
  const brief = () =>
      [['layer', 'kind', 'bits an element', 'groups', 'of 0 bits', 'most bits', 'predicted loss, held out'],
       ...data.vector.layers.map((at) => [
         `layer ${at.layer}`, at.kind, at.bits, at.groups, at.empty_groups, at.most_bits, at.predicted_dnll_held_out
       ])];
  const draw = () => {
    const kind = shown.kind, {units, coordinates, energy} = tensors[kind].vector, columns = units * coordinates;
    const measure = measures.find(({id}) => id === shown.measure);
    const groupAt = new Array(layers.length * columns);
    for (const group of groupsOf(kind)) {
      const from = group.l * columns + group.unit * coordinates + group.first;
      groupAt.fill(group, from, from + group.width);
    }
    const size = measure.id === 'energy' && energy ? energy :
                                                     Float32Array.from(groupAt, (group) => group.bits / group.width);
    const scale = unitScale(size, {log: measure.log, low: measure.log ? undefined : 0});
    box.replaceChildren(
        strip({
          label: `${measure.label} of each coordinate of the ${kind}s, by layer. Arrow keys walk over coordinates.`,
          size,
          columns,
          parts: units > 1 ? headParts : ['all heads'],
          scale,
          describe: (l, c) => {
            const i = l * columns + c, group = groupAt[i], place = units > 1 ? ` head ${group.unit}` : '';
            return `layer ${group.layer}, ${kind}${place}, coordinate ${c % coordinates}\ngroup of ${group.width}: ${
                group.bits} bits, ${number(group.bits / group.width, 3)} an element${
                energy ? `\nenergy ${number(energy[i])} nat` : ''}`;
          }
        }),
        el('div', {class: 'legend'}, el('span', {}, number(scale.least, 3)),
           el('span', {class: 'bar', style: {background: rampBar(false)}}), el('span', {}, number(scale.most, 3)),
           el('span', {}, measure.text)));
  };
  draw();
  onTheme(box, draw);
  const pick = (name) => (value) => {
    shown[name] = value;
    draw();
  };
  return card(
      {
        id: 'groups',
        title: 'Bits of groups',
        file: 'groups.csv',
        rows,
        brief,
        note: `One column a coordinate of the transformed ${
            tensors[usable[0]].vector.units > 1 ? 'head' : 'heads of a layer'}, the one that matters most first.`,
        tools: [
          usable.length > 1 &&
              choice('Tensor', 'groups-kind', usable.map((name) => [name, name === 'key' ? 'keys' : 'values']),
                     shown.kind, pick('kind')),
          measures.length > 1 &&
              choice('Measure', 'groups-measure', measures.map(({id, label}) => [id, label]), shown.measure,
                     pick('measure'))
        ]
      },
      box);
}
