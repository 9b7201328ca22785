// Zoom, crosshair and colours of the chart that html.py writes. It defines `schemes` and `series`:
//   columns  open, high, low, close, volume: a value for each candle
//   levels   [{name, form, starts, opens}]: periods of bars from the shortest, with the first candle of each bar (null: each
//            candle), its open time in seconds, and the length of that time as text
//   period   name of the candles' period; most: bars that a screen shows at most
//   marks    candles at which a trigger fired; gaps: candles before which a long time has no candles
const chart = document.getElementById("{plot_id}"), dark = matchMedia("(prefers-color-scheme: dark)");
const values = document.getElementById("values"), length = document.getElementById("bar");
const count = series.columns.open.length;
let level = 0, first = 0;  // what is drawn: the level, and the number of the bar at category 0

function startOf(level, bar) {
  const starts = series.levels[level].starts;
  return starts === null ? Math.min(bar, count) : bar < starts.length ? starts[bar] : count;
}

function barCount(level) {
  return series.levels[level].starts === null ? count : series.levels[level].starts.length;
}

function barAt(level, candle) {  // the last bar that starts at or before the candle
  let low = 0, high = barCount(level) - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (startOf(level, middle) <= candle) low = middle; else high = middle - 1;
  }
  return low;
}

function combined(level, from, to) {
  const {open, high, low, close, volume} = series.columns;
  const {opens, form} = series.levels[level], found = {x: [], open: [], high: [], low: [], close: [], volume: []};
  for (let bar = from; bar < to; bar++) {
    const begin = startOf(level, bar), end = startOf(level, bar + 1);
    let most = high[begin], least = low[begin], sum = 0;
    for (let n = begin; n < end; n++) {
      if (high[n] > most) most = high[n];
      if (low[n] < least) least = low[n];
      sum += volume[n];
    }
    found.x.push(new Date(opens[bar] * 1000).toISOString().slice(0, form).replace("T", " "));
    found.open.push(open[begin]);
    found.high.push(most);
    found.low.push(least);
    found.close.push(close[end - 1]);
    found.volume.push(sum);
  }
  return found;
}

function draw(begin, end) {  // the candles [begin, end) with the shortest bars that fit, and as many at both sides
  begin = Math.max(0, Math.min(begin, count - 1));
  end = Math.max(begin + 1, Math.min(end, count));
  const covered = each => barAt(each, end - 1) - barAt(each, begin) + 1;
  level = series.levels.findIndex((_, each) => covered(each) <= series.most);
  if (level < 0) level = series.levels.length - 1;
  const left = barAt(level, begin), right = barAt(level, end - 1), width = right - left + 1;
  first = Math.max(0, left - width);
  const bars = combined(level, first, Math.min(barCount(level), right + 1 + width));
  const [prices, volumes, fires] = chart.data;
  for (const name of ["x", "open", "high", "low", "close"]) prices[name] = bars[name];
  volumes.x = bars.x;
  volumes.y = bars.volume;
  const colours = bars.open.map((open, n) => bars.close[n] >= open ? series.colours[0] : series.colours[1]);
  volumes.marker = {...volumes.marker, color: colours};
  if (fires) {
    const marked = [...new Set(series.marks.map(candle => barAt(level, candle) - first))].filter(n => n in bars.x);
    fires.x = marked.map(n => bars.x[n]);
    fires.y = marked.map(n => bars.low[n]);
  }
  const layout = {...chart.layout};
  const shapes = series.gaps.map(candle => barAt(level, candle) - first - 0.5);
  layout.shapes = shapes.filter(x => x > -1 && x < bars.x.length)
    .map(x => ({type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: series.gap}));
  const seen = [left - first, right - first + 1];
  const least = Math.min(...bars.low.slice(...seen)), most = Math.max(...bars.high.slice(...seen));
  const room = (most - least || Math.abs(most) || 1) * 0.05, top = Math.max(...bars.volume.slice(...seen)) || 1;
  for (const axis of ["xaxis", "xaxis2"]) layout[axis] = {...layout[axis], range: [seen[0] - 0.5, seen[1] - 0.5]};
  layout.yaxis = {...layout.yaxis, autorange: false, range: [least - room, most + room]};
  layout.yaxis2 = {...layout.yaxis2, autorange: false, range: [0, top * 1.05]};
  layout.bargap = width <= 150 ? 0.15 : 0;
  const {name} = series.levels[level];
  length.textContent = name === series.period ? "" : " · a bar is " + name;
  Plotly.react(chart, chart.data, layout).then(() => tell(right - first));
}

function candleAt(category) {  // the candle at a place of the axis, which counts bars from -0.5 on
  const bar = first + Math.floor(category + 0.5), part = category + 0.5 - Math.floor(category + 0.5);
  const begin = startOf(level, Math.max(0, bar)), end = startOf(level, Math.max(0, bar) + 1);
  return Math.round(begin + part * (end - begin));
}

function tell(n) {  // show the values of a bar
  const [prices, volumes] = chart.data;
  if (!(n in prices.x)) return;
  const number = value => value.toLocaleString("en", {maximumSignificantDigits: 12});
  const each = ["open", "high", "low", "close"].map(name => name + " " + number(prices[name][n]));
  values.textContent = [prices.x[n], ...each, "volume " + number(volumes.y[n])].join(" · ");
}

function follow() {  // the scheme, and the room for the times
  const scheme = schemes[dark.matches ? "dark" : "light"];
  const change = {"font.color": scheme.text, "modebar.color": scheme.quiet, "modebar.activecolor": scheme.text};
  for (const axis of ["xaxis", "xaxis2", "yaxis", "yaxis2"]) {
    change[axis + ".gridcolor"] = change[axis + ".zerolinecolor"] = scheme.grid;
    change[axis + ".spikecolor"] = scheme.quiet;
    if (axis.startsWith("x")) change[axis + ".nticks"] = Math.max(2, Math.floor(chart.clientWidth / 160));
  }
  return Plotly.relayout(chart, change);
}

chart.on("plotly_relayout", change => {
  if (!Object.keys(change).some(name => /^xaxis2?\.(range|autorange)/.test(name))) return;
  if (change["xaxis.autorange"] || change["xaxis2.autorange"]) return draw(0, count);
  const [left, right] = chart.layout.xaxis.range;
  draw(candleAt(left), candleAt(right));
});
chart.on("plotly_hover", event => tell(event.points[0].pointNumber));
document.getElementById("whole").addEventListener("click", () => draw(0, count));
dark.addEventListener("change", follow);
addEventListener("resize", follow);
follow().then(() => draw(0, count));
