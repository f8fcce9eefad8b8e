// Colours and axes.
const kRamps = {
  light: ['#e9eff6', '#bcd8e8', '#74b4d1', '#3784b8', '#3b519f', '#581a6c'],
  dark: ['#1d2733', '#1f4160', '#20708f', '#2fa598', '#97d36c', '#fbe76d'],
};

/// 256 colours [red, green, blue] of a theme, made once.
const rampTables = Object.fromEntries(Object.entries(kRamps).map(([theme, stops]) => {
  const channel = (stop, i) => parseInt(stop.slice(1 + 2 * i, 3 + 2 * i), 16);
  const color = (t) => {
    const at = t * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    return [0, 1, 2].map(
        (i) => Math.round(channel(stops[low], i) + (at - low) * (channel(stops[low + 1], i) - channel(stops[low], i))));
  };
  return [theme, Array.from({length: 256}, (_, i) => color(i / 255))];
}));

/// Colour of t, 0 to 1, in the present theme; of NaN that of 0.
const ramp = (t) => rampTables[dark.matches ? 'dark' : 'light'][Math.round(255 * Math.min(Math.max(t || 0, 0), 1))];
const rampText = (t) => `rgb(${ramp(t).join(' ')})`;
const rampBar = (reverse) => {
  const steps = [0, .2, .4, .6, .8, 1].map((t) => rampText(reverse ? 1 - t : t));
  return `linear-gradient(90deg, ${steps.join(', ')})`;
};

/// 0 to 1 over the values' extent; logarithmic where asked and every value is above 0 or 0 itself (which gets 0).
function unitScale(values, {log = false, reverse = false, low, high} = {}) {
  const there = Array.from(values).filter((x) => known(x) && (!log || x > 0));
  let least = low ?? there.reduce((a, b) => Math.min(a, b), Infinity);
  let most = high ?? there.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!(least <= most)) least = most = NaN;
  const line = log ? Math.log : (x) => x;
  const scale = (x) => {
    if (!known(x)) return NaN;
    const t = most > least ? (line(log ? Math.max(x, least) : x) - line(least)) / (line(most) - line(least)) : .5;
    return reverse ? 1 - t : t;
  };
  return Object.assign(scale, {least, most, log, reverse});
}

/// Round numbers over [low, high], about `count` of them.
function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((m) => m * power >= rough * .999);
  const list = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i)
    list.push(Number((i * step).toPrecision(12)));
  return list;
}

function logTicks(low, high, count) {
  const list = [];
  const decades = Math.log10(high / low);
  const digits = decades > count ? [1] :
      decades > count / 2.5      ? [1, 3] :
      decades > .7               ? [1, 2, 5] :
                                   [1, 1.5, 2, 3, 4, 5, 7];
  const stride = Math.max(1, Math.round(decades / count));
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); ++e) {
    if (e % stride !== 0) continue;
    for (const d of digits) {
      const x = Number((d * 10 ** e).toPrecision(6));
      if (x >= low * (1 - 1e-9) && x <= high * (1 + 1e-9)) list.push(x);
    }
  }
  return list.length > 1 ? list : ticks(low, high, count).filter((x) => x > 0);
}

/// Maps [low, high] to [from, to] in pixels.
function pixelScale(low, high, from, to, log = false) {
  const line = log ? Math.log : (x) => x;
  const a = line(low), b = line(high);
  const scale = (x) => (b > a ? from + (to - from) * (line(x) - a) / (b - a) : (from + to) / 2);
  scale.ticks = (count) => (log ? logTicks(low, high, count) : ticks(low, high, count));
  return scale;
}

/// Grid, axes (`whole`: marks at whole numbers alone) and names of a chart of width x height with margins {left, right,
/// top, bottom}.
function axes(
    x, y, width, height, margin,
    {xName, yName, xTicks, whole, yTicks = 5, xLabel = (v) => number(v, 6), yLabel = xLabel}) {
  const bottom = height - margin.bottom, right = width - margin.right;
  const list = y.ticks(yTicks),
        columns = (xTicks ?? x.ticks(Math.max(2, Math.floor((right - margin.left) / 70))))
                      .filter((v) => !whole || Number.isInteger(v));
  return svg(
      'g', {'aria-hidden': 'true'},
      list.map(
          (v) =>
              [svg('path', {class: 'grid', d: `M${margin.left} ${y(v)}H${right}`}),
               svg('text', {x: margin.left - 6, y: y(v) + 4, 'text-anchor': 'end'}, yLabel(v))]),
      svg('path', {class: 'axis', d: `M${margin.left} ${margin.top}V${bottom}H${right}`}),
      columns.map(
          (v) =>
              [svg('path', {class: 'axis', d: `M${x(v)} ${bottom}v4`}),
               svg('text', {x: x(v), y: bottom + 17, 'text-anchor': 'middle'}, xLabel(v))]),
      xName && svg('text', {x: (margin.left + right) / 2, y: height - 3, 'text-anchor': 'middle'}, xName),
      yName &&
          svg('text',
              {x: margin.left - 2, y: margin.top - 9, 'text-anchor': 'start', dx: -Math.min(margin.left - 4, 40)},
              yName));
}
