// Every plot of the page. Each is a function that draws itself anew, so that the theme, a filter or
// the printer may call for it again.

const drawn = new Map(); // container's id -> function that draws it
let plotting = null; // promise of plotly, once asked for

function plotly() {
  plotting ??= inflate("plotly").then((code) => {
    const script = document.createElement("script");
    script.textContent = code;
    document.head.append(script);
    return window.Plotly;
  });
  return plotting;
}

function plot(id, make) {
  const draw = () => plotly().then((Plotly) => {
    const at = document.getElementById(id);
    if (!at) return null;
    const made = make();
    return Plotly.react(at, made.traces, layout(made.layout ?? {}), {
      displayModeBar: false, responsive: true, showTips: false,
    }).then(() => {
      if (!at.dataset.drawn) {
        if (made.click) at.on("plotly_click", (event) => made.click(event.points[0]));
        at.on("plotly_afterplot", () => scalable(at));
      }
      scalable(at);
      at.dataset.drawn = "yes";
    });
  });
  drawn.set(id, draw);
  return draw();
}

// Paper is of another width than the window: print.css scales what has a view box.
function scalable(at) {
  const { width, height } = at._fullLayout ?? {};
  if (!width) return;
  for (const svg of $$(".main-svg", at)) svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  at.style.setProperty("--aspect", `${width} / ${height}`);
}

const redraw = () => Promise.all([...drawn.values()].map((draw) => draw()));

function axis(own = {}) {
  return {
    gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("line"),
    tickcolor: colour("line"), zeroline: false, automargin: true, fixedrange: false, ...own,
    tickfont: { color: colour("soft"), size: 11, ...own.tickfont },
    title: own.title ? { text: own.title, font: { size: 11, color: colour("faint") }, standoff: 8 } : undefined,
  };
}

function layout(own) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
    margin: { l: 8, r: 14, t: 8, b: 34 }, showlegend: false, height: 280, dragmode: "zoom", ...own,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("ink") },
    hoverlabel: {
      bgcolor: colour("raised"), bordercolor: colour("line"),
      font: { color: colour("ink"), size: 12 }, align: "left",
    },
    legend: {
      orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11, color: colour("soft") },
      itemclick: false, itemdoubleclick: false, ...own.legend,
    },
    xaxis: axis(own.xaxis), yaxis: axis(own.yaxis),
  };
}

// Powers of two, and halves between them where few would be in sight; for log axes of ratios.
function ratioTicks(low, high, few = false) {
  const octaves = Math.log2(high / low);
  const fine = [0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 2.5, 3, 4, 6], coarse = [0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6];
  const steps = octaves >= 3.2 ? [] : few || octaves > 2.4 ? coarse : fine;
  const powers = Array.from({ length: 24 }, (_, k) => 2 ** (k - 8));
  const within = (steps.length ? steps : powers).filter((v) => v >= low * 0.999 && v <= high * 1.001);
  const stride = Math.ceil(within.length / 9), eager = within.indexOf(1);
  const values = within.filter((_, place) => (place - eager) % stride === 0);
  return { tickvals: values, ticktext: values.map((v) => `${v < 0.1 ? v.toPrecision(1) : v}x`) };
}

// Of intervals [value, low, high] those ends that an axis should hold: very wide ones run off it.
const SPREAD = 2.5;
function endsOf(intervals) {
  const low = Math.min(...intervals.map(([value]) => value)) / SPREAD;
  const high = Math.max(...intervals.map(([value]) => value)) * SPREAD;
  return intervals.flatMap(([, from, to]) => [Math.max(from, low), Math.min(to, high)]);
}

function ratioRange(values) {
  const low = Math.min(0.85, ...values) / 1.06, high = Math.max(1.6, ...values) * 1.08;
  return { type: "log", range: [Math.log10(low), Math.log10(high)], ...ratioTicks(low, high) };
}

function upright(at, name, color, dash) {
  const along = { xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1 };
  return { type: "line", layer: "below", line: { color, width: 1, dash }, name, ...along };
}
const across = (shape) => ({
  ...shape, xref: "paper", yref: "y", x0: 0, x1: 1, y0: shape.x0, y1: shape.x1,
});

// --- speedup per task ------------------------------------------------------------------------------

const LISTED = 42; // more tasks than that have no names on the axis
const LETTERS = 36; // of a name there: a longer one would leave no room for the figures
const clipped = (name) => (name.length > LETTERS ? `${name.slice(0, LETTERS - 1)}…` : name);
const other = (row) => row.baselines.compile ?? Math.max(0, ...Object.values(row.baselines));

function speedups(rows) {
  const flat = rows.length <= LISTED;
  const places = rows.map((_, place) => place);
  const known = rows.filter((r) => r.speedup).map(({ speedup: s }) => [s.value, s.low, s.high]);
  const values = endsOf(known).concat(rows.map(other).filter((v) => v > 0));
  const put = (ratios, at, rest) => (flat ? { x: ratios, y: at, ...rest } : { x: at, y: ratios, ...rest });
  const traces = [];
  const based = places.filter((p) => other(rows[p]) > 0);
  traces.push({
    ...put(based.map((p) => other(rows[p])), based),
    type: "scatter", mode: "markers", name: "torch.compile",
    marker: {
      symbol: flat ? "line-ns" : "line-ew", size: flat ? 12 : Math.max(4, Math.min(10, 600 / rows.length)),
      line: { width: 1.6, color: colour("faint") },
    },
    hovertemplate: based.map((p) => `${label(rows[p].task_id)}<br>baseline ${ratio(other(rows[p]))}<extra></extra>`),
    customdata: based.map((p) => rows[p].place),
  });
  for (const [state, words] of Object.entries(page.words)) {
    const mine = places.filter((p) => rows[p].state === state);
    if (!mine.length) continue;
    const own = (p) => rows[p].speedup ?? { value: 1, low: 1, high: 1 };
    const bars = {
      type: "data", symmetric: false, thickness: flat ? 2 : 1.2, width: 0, color: colour(state),
      array: mine.map((p) => own(p).high - own(p).value),
      arrayminus: mine.map((p) => own(p).value - own(p).low),
    };
    traces.push({
      ...put(mine.map((p) => own(p).value), mine, { [flat ? "error_x" : "error_y"]: bars }),
      type: "scatter", mode: "markers", name: words,
      marker: {
        color: mine.map((p) => (rows[p].speedup ? colour(state) : colour("card"))),
        size: flat ? 9 : Math.max(4, Math.min(8, 900 / rows.length)),
        line: { width: 1.6, color: colour(state) },
      },
      hovertemplate: mine.map((p) => {
        const r = rows[p], s = r.speedup;
        const says = s ? `<b>${ratio(s.value)}</b> [${span(s.low, s.high)}]` : "no figure, counts 1.0";
        return `<b>${label(r.task_id)}</b><br>${says}<br>${label(r.verdict)}<extra></extra>`;
      }),
      customdata: mine.map((p) => rows[p].place),
    });
  }
  const range = ratioRange(values);
  const line = upright(1, "eager", colour("soft"), "solid");
  const names = {
    tickvals: places, ticktext: rows.map((r) => label(clipped(short(r.task_id)))),
    range: [rows.length - 0.4, -0.6], showgrid: false, ticks: "", tickfont: { size: 11.5, color: colour("ink") },
  };
  const ranks = { range: [-1, rows.length], showgrid: false, showticklabels: false, title: `${numberOf(rows.length, "task")}, as the table has them` };
  return {
    traces, click: (point) => openTask(point.customdata),
    layout: {
      height: flat ? Math.max(280, 64 + 25 * rows.length) : 440, showlegend: true,
      margin: { l: 8, r: 14, t: 30, b: 30 },
      xaxis: flat ? range : ranks, yaxis: flat ? names : range,
      shapes: [flat ? line : across(line)],
    },
  };
}

// --- the others -------------------------------------------------------------------------------------

function fast() {
  const dashes = ["dot", "dash", "dashdot", "longdash"], tones = ["soft", "apart", "claim", "running"];
  const own = page.kind === "campaign" && page.fast[1]?.name === "best correct kernels" ? 2 : 1;
  const highest = Math.max(2.2, ...page.fast.flatMap((c) => c.points.map(([p]) => p))) * 1.05;
  const traces = page.fast.map((curve, k) => {
    const points = curve.points.concat([[highest * 1.1, curve.points.at(-1)?.[1] ?? 0]]).map(([p, s]) => [Math.max(p, 0.05), s]);
    return {
      x: points.map(([p]) => p), y: points.map(([, s]) => s), name: label(curve.name), type: "scatter", mode: "lines",
      line: {
        shape: "hv", width: k ? 1.6 : 2.8, dash: k ? dashes[(k - 1) % 4] : "solid",
        color: k === 0 ? colour("accent") : k < own ? colour("claim") : colour(tones[(k - own) % 4]),
      },
      fill: k ? "none" : "tozeroy", fillcolor: colour("accent").replace("rgb(", "rgba(").replace(")", ", 0.07)"),
      hovertemplate: `%{y:.0%} are over %{x:.2f}x<br>${label(curve.name)}, ${label(curve.note)}<extra></extra>`,
    };
  });
  const range = { type: "log", range: [Math.log10(0.4), Math.log10(highest)], ...ratioTicks(0.5, highest, true), title: "p", tickangle: 0 };
  return {
    traces: traces.reverse(),
    layout: {
      height: 320, showlegend: true, legend: { traceorder: "reversed" }, margin: { l: 8, r: 14, t: 46, b: 34 },
      xaxis: range, yaxis: { range: [0, 1.02], tickformat: ".0%" },
      shapes: [upright(1, "eager", colour("soft"), "solid")],
    },
  };
}

function progress() {
  const name = $("#progress-axis").value, curve = page.progress[name];
  return {
    traces: [{
      x: curve.points.map(([x]) => x), y: curve.points.map(([, y]) => y), type: "scatter", mode: "lines",
      line: { shape: "hv", width: 2.4, color: colour("accent") },
      hovertemplate: `%{y:.2f}x after %{x:,.3~f} ${label(name)}<extra></extra>`,
    }],
    layout: {
      xaxis: { rangemode: "tozero", title: name },
      yaxis: { ...ratioRange(curve.points.map(([, y]) => y)), range: undefined, tickvals: undefined, ticktext: undefined, type: "linear", rangemode: "normal", ticksuffix: "x" },
    },
  };
}

function bars(values, colours, words) {
  const names = Object.keys(values);
  const total = Object.values(values).reduce((a, b) => a + b, 0);
  return {
    traces: [{
      type: "bar", orientation: "h", x: Object.values(values), y: names.map((_, k) => k),
      marker: { color: colours, cornerradius: 3 }, width: 0.62,
      text: Object.values(values).map((v) => `${words(v)} <span style="color:${colour("faint")}">${Math.round((100 * v) / total)} %</span>`),
      textposition: "outside", cliponaxis: false, textfont: { size: 11, color: colour("soft") },
      hoverinfo: "skip",
    }],
    layout: {
      height: 24 + 28 * names.length, margin: { l: 8, r: 10, t: 6, b: 6 },
      xaxis: { showgrid: false, showticklabels: false, range: [0, Math.max(...Object.values(values), 1e-9) * 1.42] },
      yaxis: {
        tickvals: names.map((_, k) => k), ticktext: names.map(label), range: [names.length - 0.4, -0.6],
        showgrid: false, tickfont: { size: 11.5, color: colour("ink") },
      },
    },
  };
}

function stages() {
  const kinds = { proposing: "running", learning: "claim", verify: "win", warm: "win", time: "win", start: "win", wait: "left-out", open: "left-out" };
  return bars(page.stages, Object.keys(page.stages).map((s) => colour(kinds[s] ?? "apart")), seconds);
}

function statuses() {
  return bars(page.statuses, Object.keys(page.statuses).map((s) => colour(statusTone(s))), (n) => n.toLocaleString("en"));
}

function training(curve) {
  const scale = curve.note === "share" ? { range: [-0.03, 1.03], tickformat: ".0%" } : {};
  return {
    traces: [{
      x: curve.points.map(([x]) => x), y: curve.points.map(([, y]) => y), type: "scatter",
      mode: curve.points.length > 60 ? "lines" : "lines+markers",
      line: { width: 2, color: colour("accent") }, marker: { size: 5 },
      hovertemplate: "update %{x}: %{y:.4~g}<extra></extra>",
    }],
    layout: {
      height: 190, margin: { l: 8, r: 10, t: 30, b: 28 }, xaxis: { tickformat: "d", dtick: curve.points.length < 8 ? 1 : undefined }, yaxis: scale,
      title: { text: label(curve.name), font: { size: 12, color: colour("ink") }, x: 0, xanchor: "left", y: 0.97 },
    },
  };
}
