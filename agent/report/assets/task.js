// One task in full, in a sheet over the page: its search, the winner's line, every candidate.

const sheet = $("#sheet");
const opened = new Map(); // row -> its details, once inflated
let current = null; // { place, details, candidate, tab }
// Of a bench nothing was searched: several samples of a task are apart, and the first one counts.
const sampled = page.kind === "bench";
const one = sampled ? "sample" : "candidate";

async function detailsOf(place) {
  if (!opened.has(place)) opened.set(place, JSON.parse(await inflate(`details-${place}`)));
  return opened.get(place);
}

async function openTask(place, number = null) {
  if (!document.getElementById(`details-${place}`)) return;
  const row = page.rows[place];
  sheet.replaceChildren(headOf(row), el("div", { class: "sheet-body loading" }, "…"));
  if (!sheet.open) sheet.showModal();
  history.replaceState(null, "", `#task=${encodeURIComponent(row.task_id)}`);
  const details = await detailsOf(place);
  const first = number ?? details.best ?? details.candidates[0]?.n ?? null;
  const told = details.candidates.find((each) => each.n === first);
  current = { place, details, candidate: first, tab: told?.source == null ? "Verdict" : "Source" };
  const content = el("div", { class: "sheet-body" });
  sheet.lastChild.replaceWith(content);
  content.append(...topOf(details), el("div", { class: "candidate-view" }));
  showCandidate(first);
  drawTop(details);
}

function headOf(row) {
  const order = shown().map((each) => each.place).filter((p) => document.getElementById(`details-${p}`));
  const at = order.indexOf(row.place);
  const step = (by) => () => openTask(order[at + by]);
  const s = row.speedup;
  return el("header", { class: "sheet-head" },
    el("h2", { tabindex: "-1", autofocus: true }, el("span", { class: "group" }, group(row.task_id)), short(row.task_id)),
    el("span", { class: `pill ${row.state}` }, row.verdict),
    el("span", { class: "figures" },
      ...(s ? [el("b", {}, ratio(s.value)), ` [${span(s.low, s.high)}] against eager`] : [row.reason]),
      ...(row.against_best ? [" · ", el("b", {}, ratio(row.against_best)), " against B*"] : []),
      ...(row.best_ms ? [` · ${milliseconds(row.eager_ms)} → ${milliseconds(row.best_ms)}`] : [])),
    el("span", { class: "buttons" },
      el("button", { type: "button", "aria-label": "Previous task", disabled: at < 1, onclick: step(-1) }, "↑"),
      el("button", { type: "button", "aria-label": "Next task", disabled: at < 0 || at > order.length - 2, onclick: step(1) }, "↓"),
      el("button", { type: "button", "aria-label": "Close", class: "close", onclick: () => sheet.close() }, "✕")));
}

function topOf(details) {
  const judged = details.candidates.filter((each) => each.search).length;
  if (judged < 2) return [];
  const [title, what] = sampled
    ? ["The samples", "every one; the first one counts; below the line what failed"]
    : ["The search", "every candidate and the best so far; below the line what failed; ◆ measured again"];
  const search = el("figure", { class: "card" },
    el("figcaption", {}, el("h2", {}, title), el("p", {}, what)),
    el("div", { class: "plot", id: "plot-task" }));
  const line = details.lineage.length > 1 && el("figure", { class: "card" },
    el("figcaption", {}, el("h2", {}, "Lineage"), el("p", {}, "what the best candidate was made from")),
    el("div", { class: "lineage" }));
  return [el("div", { class: "top" }, search, line)];
}

function drawTop(details) {
  if ($("#plot-task")) plot("plot-task", () => searchPlot(details));
  if ($(".lineage")) drawLineage(details, $(".lineage"));
}

function searchPlot(details) {
  const judged = details.candidates.filter((each) => each.search);
  const passed = judged.filter((each) => each.search.speedup);
  const failed = judged.filter((each) => !each.search.speedup);
  const again = judged.filter((each) => each.confirm?.speedup);
  const values = endsOf([...passed.map((each) => each.search.speedup), ...again.map((each) => each.confirm.speedup)]);
  const low = Math.min(0.8, ...values) / 1.25, high = Math.max(1.6, ...values) * 1.1;
  let best = 0, lower = 0;
  const steps = judged.map((each) => {
    const s = each.search.speedup;
    if (s && s[1] > lower) [best, lower] = [s[0], s[1]];
    return best || null;
  });
  const hover = (each) => `${one} ${each.n}<br>${label(each.search.status)}${each.search.speedup ? ` <b>${ratio(each.search.speedup[0])}</b>` : ""}<br>${label(each.strategy ?? "")} ${label(each.by)}<extra></extra>`;
  const dots = (some, y, marker) => ({
    type: "scatter", mode: "markers", x: some.map((each) => each.n), y, marker,
    hovertemplate: some.map(hover), customdata: some.map((each) => each.n),
  });
  return {
    click: (point) => point.customdata != null && showCandidate(point.customdata),
    traces: [
      !sampled && { type: "scatter", mode: "lines", x: judged.map((each) => each.n), y: steps, hoverinfo: "skip", line: { shape: "hv", width: 2, color: colour("accent") } },
      {
        ...dots(passed, passed.map((each) => each.search.speedup[0]), { size: 7, color: passed.map((each) => colour(tone(each.search))) }),
        error_y: {
          type: "data", symmetric: false, width: 0, thickness: 1, color: colour("faint"),
          array: passed.map((each) => each.search.speedup[2] - each.search.speedup[0]),
          arrayminus: passed.map((each) => each.search.speedup[0] - each.search.speedup[1]),
        },
      },
      dots(failed, failed.map(() => low * 1.1), { symbol: "x-thin", size: 7, line: { width: 1.6, color: failed.map((each) => colour(tone(each.search))) } }),
      dots(again, again.map((each) => each.confirm.speedup[0]), { symbol: "diamond", size: 11, color: colour("card"), line: { width: 2, color: colour("accent") } }),
    ].filter(Boolean),
    layout: {
      height: 240, xaxis: { title: one, tickformat: "d", showgrid: false, dtick: judged.length < 13 ? 1 : undefined },
      yaxis: { type: "log", range: [Math.log10(low), Math.log10(high)], ...ratioTicks(Math.max(low * 1.2, 0.02), high, true) },
      shapes: [across(upright(1, "eager", colour("soft"), "solid"))],
    },
  };
}

const MOST_NODES = 40;

function drawLineage(details, at) {
  const shownNodes = new Set(details.lineage.slice(0, MOST_NODES));
  const depth = new Map([[details.lineage[0], 0]]);
  for (const n of [...shownNodes].sort((a, b) => b - a)) { // parents come before their children
    for (const parent of details.candidates[n].parents ?? []) {
      if (parent < n && shownNodes.has(parent)) depth.set(parent, Math.max(depth.get(parent) ?? 0, (depth.get(n) ?? 0) + 1));
    }
  }
  const columns = [];
  for (const n of shownNodes) (columns[depth.get(n) ?? 0] ??= []).push(n);
  const nodes = new Map();
  const made = columns.reverse().filter(Boolean).map((column) => el("div", { class: "generation" }, column.sort((a, b) => a - b).map((n) => {
    const each = details.candidates[n], s = each.search?.speedup;
    const node = el("button", { type: "button", class: `node ${tone(each.search)}`, "data-candidate": n, onclick: () => showCandidate(n) },
      el("b", {}, s ? ratio(s[0]) : word(each.search?.status ?? "pending")), el("span", {}, `#${n} ${each.strategy ?? ""}`));
    nodes.set(n, node);
    return node;
  })));
  at.replaceChildren(...made);
  at.scrollLeft = at.scrollWidth;
  const frame = at.getBoundingClientRect(), left = at.scrollLeft;
  const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  drawing.setAttribute("width", at.scrollWidth);
  drawing.setAttribute("height", at.scrollHeight);
  for (const [n, node] of nodes) {
    for (const parent of details.candidates[n].parents ?? []) {
      if (!nodes.has(parent)) continue;
      const from = nodes.get(parent).getBoundingClientRect(), to = node.getBoundingClientRect();
      const [x0, y0] = [from.right - frame.left + left, from.top + from.height / 2 - frame.top];
      const [x1, y1] = [to.left - frame.left + left, to.top + to.height / 2 - frame.top];
      const bend = Math.max(18, (x1 - x0) / 2);
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", `M${x0},${y0} C${x0 + bend},${y0} ${x1 - bend},${y1} ${x1},${y1}`);
      drawing.append(path);
    }
  }
  at.prepend(drawing);
}

// --- one candidate ----------------------------------------------------------------------------------

const word = (status) => status.toLowerCase().replaceAll("_", " ");

function listOf(details) {
  return el("nav", { class: "card candidates", "aria-label": sampled ? "Samples" : "Candidates" }, details.candidates.map((each) => {
    const verdict = each.search ?? (each.same == null ? null : details.candidates[each.same]?.search);
    const s = verdict?.speedup;
    const says = s ? ratio(s[0]) : verdict ? word(verdict.status) : "pending";
    return el("button", { type: "button", "data-candidate": each.n, onclick: () => showCandidate(each.n) },
      el("span", { class: "number" }, String(each.n)), el("span", { class: `dot ${tone(verdict)}` }),
      el("span", { class: "what" }, each.same == null ? `${each.strategy ?? ""} ${each.language}` : `same as ${each.same}`),
      el("span", { class: s ? "figure" : "figure weak" }, says));
  }));
}

function showCandidate(number, tab = current.tab) {
  const { details } = current;
  const view = $(".candidate-view", sheet);
  const candidate = details.candidates.find((each) => each.n === number);
  if (!candidate) {
    view.classList.add("single");
    view.replaceChildren(el("div", { class: "card" }, referenceView(details)));
    return;
  }
  if (number !== current.candidate || !view.firstChild) current.candidate = number;
  if (!view.firstChild) {
    if (details.candidates.length > 1) view.append(listOf(details));
    else view.classList.add("single");
    view.append(el("div", { class: "card chosen" }));
  }
  for (const each of $$("[data-candidate]", sheet)) {
    if (Number(each.dataset.candidate) === number) each.setAttribute("aria-current", "true");
    else each.removeAttribute("aria-current");
  }
  const views = viewsOf(details, candidate);
  current.tab = views[tab] ? tab : Object.keys(views)[0];
  const tabs = el("div", { class: "tabs", role: "tablist" }, Object.keys(views).map((name) => el("button", {
    type: "button", role: "tab", "aria-selected": String(name === current.tab), "data-tab": name,
    onclick: () => showCandidate(number, name),
  }, name)));
  $(".chosen", view).replaceChildren(candidateHead(candidate), tabs, el("div", { role: "tabpanel" }, views[current.tab]()));
}

function candidateHead(candidate) {
  const verdict = candidate.confirm ?? candidate.search, s = verdict?.speedup;
  const meta = [
    candidate.by, candidate.strategy, candidate.language, candidate.round == null ? null : `round ${candidate.round}`,
    candidate.version == null ? null : `policy ${candidate.version}`,
    candidate.tokens && `${candidate.tokens[0].toLocaleString("en")} + ${candidate.tokens[1].toLocaleString("en")} tokens`,
    candidate.usd != null && `$${candidate.usd.toFixed(4)}`, candidate.reward != null && `reward ${figure(candidate.reward)}`,
  ].filter(Boolean);
  return el("div", {},
    el("div", { class: "candidate-head" },
      el("h2", {}, `${sampled ? "Sample" : "Candidate"} ${candidate.n}`),
      el("span", { class: `pill ${tone(verdict)}` }, verdict ? word(verdict.status) : candidate.same == null ? "pending" : `same code as ${candidate.same}`),
      s && el("span", {}, el("b", {}, ratio(s[0])), ` [${span(s[1], s[2])}]${candidate.confirm ? ", confirmed figure" : ""}`),
      el("code", {}, candidate.id),
      el("span", { class: "meta" }, meta.join(" · "))),
    verdict?.detail && el("p", { class: `detail ${verdict.status === "PASSED" ? "" : "against"}` }, verdict.detail));
}

// By the name of its tab what shows it; only the chosen one is made.
function viewsOf(details, candidate) {
  const texts = details.texts, item = { text: candidate.source, html: candidate.html };
  const parents = (candidate.parents ?? []).filter((n) => n !== candidate.n);
  const views = {};
  if (candidate.source != null) views.Source = () => [copyTool(texts, candidate.source), codeView(texts, item)];
  if (parents.length) views["Diff to parent"] = () => diffPanel(details, candidate, parents);
  if (candidate.prompt) views.Prompt = () => candidate.prompt.map(([role, id]) => [role && el("span", { class: "role" }, role), el("div", { class: "text" }, textOf(texts, id))]).flat().filter(Boolean);
  if (candidate.reply != null) views.Reply = () => [el("div", { class: "text" }, textOf(texts, candidate.reply))];
  if (candidate.search) views.Verdict = () => verdictView(details, candidate);
  if (details.reference) views.Reference = () => [referenceView(details)];
  return views;
}

function copyTool(texts, id) {
  const button = el("button", { type: "button" }, "Copy");
  button.addEventListener("click", () => navigator.clipboard.writeText(textOf(texts, id)).then(() => { button.textContent = "Copied"; }));
  return el("div", { class: "tool" }, numberOf(numbersOf(texts, id).length, "line"), el("span", { class: "spring" }), button);
}

function diffPanel(details, candidate, parents) {
  const at = el("div");
  const show = (n) => {
    const parent = details.candidates[n];
    const made = diffView(details.texts, { text: parent.source, html: parent.html }, { text: candidate.source, html: candidate.html });
    const choice = parents.length > 1
      ? el("select", { "aria-label": "Parent", onchange: (event) => show(Number(event.target.value)) }, parents.map((p) => el("option", { value: p, selected: p === n }, `candidate ${p}`)))
      : el("b", {}, `candidate ${n}`);
    at.replaceChildren(
      el("div", { class: "tool" }, el("span", {}, "against"), choice, el("span", {}, parent.search ? (parent.search.speedup ? ratio(parent.search.speedup[0]) : word(parent.search.status)) : ""),
        el("span", { class: "spring" }), el("span", { class: "plus" }, `+${made.added}`), el("span", { class: "minus" }, `−${made.removed}`)),
      made.view);
  };
  show(parents.at(-1));
  return [at];
}

const referenceView = (details) => el("div", {}, copyTool(details.texts, details.reference.text), codeView(details.texts, details.reference));

function verdictView(details, candidate) {
  const audit = candidate.n === details.best ? details.audit : null;
  const believe = audit && el("ul", { class: "believe" },
    audit.doubts.map((line) => el("li", { class: "against" }, line)), audit.reasons.map((line) => el("li", { class: "for" }, line)));
  return [believe, el("div", { class: "verdicts" },
    candidate.confirm && oneVerdict(details.texts, "Confirmation: measured again after it was selected", candidate.confirm),
    oneVerdict(details.texts, candidate.confirm ? "Search" : "Evaluation", candidate.search))].filter(Boolean);
}

function oneVerdict(texts, title, v) {
  const rows = [];
  const add = (name, ...cells) => rows.push(el("tr", {}, el("td", {}, name), el("td", {}, ...cells)));
  add("status", word(v.status), v.detail ? `: ${v.detail}` : "");
  if (v.speedup) add("against eager", `${ratio(v.speedup[0])} [${span(v.speedup[1], v.speedup[2])}], ${milliseconds(v.eager_ms)} → ${milliseconds(v.ms)}${v.noise == null ? "" : `; noise floor ${(100 * v.noise).toFixed(1)} %`}`);
  for (const [name, own, detail] of v.baselines ?? []) add(`against ${name}`, own && v.speedup ? ratio(v.speedup[0] / own) : detail || "not timed");
  if (v.floor_ms && v.ms) add("memory roofline", `${Math.round((100 * v.floor_ms) / v.ms)} % of the floor's bandwidth`);
  if (v.pairs) add("process pairs", v.pairs.map(([a, b, rounds, voided]) => `${ratio(a / b)} (${rounds} rounds${voided ? `, ${voided} void` : ""})`).join(", "), v.sets ? `; up to ${v.sets} fresh input sets a batch` : "");
  if (v.precision) add("precision", `${v.precision} class`);
  if (v.kind) add("kind", v.kind);
  if (v.parameters && v.parameters !== "none") add("parameters", `matched by ${v.parameters}`);
  if (v.walls) add("walls", v.walls);
  if (v.seconds) add("seconds", Object.entries(v.seconds).map(([stage, s]) => `${stage} ${s.toFixed(2)}`).join(", "));
  const evidence = (v.evidence ?? []).map(([layer, weight, facts]) => el("tr", {}, el("td", {}, layer), el("td", {}, el("span", { class: `weight-${weight}` }, weight), facts.length ? `: ${facts.join("; ")}` : "")));
  if (v.clean) evidence.push(el("tr", {}, el("td", {}, "nothing against it"), el("td", {}, el("span", { class: "weight-clean" }, "clean"), `: ${v.clean.join(", ")}`)));
  const cases = (v.cases ?? []).map(([name, passed, norm, bound, detail]) => el("tr", {}, el("td", {}, name),
    el("td", {}, el("span", { class: passed ? "yes" : "no" }, passed ? "agrees" : "fails"), norm == null ? "" : `, error ${norm.toExponential(1)}${bound == null ? "" : ` of ${bound.toExponential(1)} allowed`}`, detail ? `: ${detail}` : "")));
  const part = (name, some) => (some.length ? [el("h3", {}, name), el("table", {}, el("tbody", {}, some))] : []);
  return el("section", {}, ...part(title, rows), ...part("Evidence by layer", evidence), ...part("Cases against the float64 truth", cases),
    ...(v.logs ?? []).map(([name, id]) => el("details", {}, el("summary", {}, name.replace("_", " ")), el("div", { class: "text" }, textOf(texts, id)))));
}

sheet.addEventListener("close", () => {
  drawn.delete("plot-task");
  sheet.replaceChildren();
  history.replaceState(null, "", location.pathname + location.search);
});
sheet.addEventListener("click", (event) => { if (event.target === sheet) sheet.close(); });
