// Shared by all parts of the page: its data, elements, numbers as a reader wants them, colours.
// Text from candidates and models enters as text nodes, or as lines of HTML that highlight.py made.

const page = JSON.parse(document.getElementById("data").textContent);
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child != null && child !== false));
  return made;
}

async function inflate(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

const ratio = (value, digits = 2) => (value == null ? "-" : `${value.toFixed(digits)}x`);
const span = (low, high) => `${low.toFixed(2)}–${high.toFixed(2)}`;
const numberOf = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const figure = (value) => (value == null ? "-" : Number(value.toPrecision(3)).toString());

function milliseconds(value) {
  if (value == null) return "-";
  if (value < 1) return `${Number((value * 1000).toPrecision(3))} µs`;
  return value < 1000 ? `${Number(value.toPrecision(3))} ms` : `${Number((value / 1000).toPrecision(3))} s`;
}

function seconds(value) {
  if (value < 120) return `${Number(value.toPrecision(3))} s`;
  return value < 7200 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
}

// Plotly reads a little HTML in its labels.
const label = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");

const group = (id) => id.slice(0, id.lastIndexOf("/") + 1);
const short = (id) => id.slice(id.lastIndexOf("/") + 1);

// A custom property's colour as the present theme resolves it.
const probe = el("span", { hidden: true });
document.body.append(probe);
function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

// What a candidate's status looks like: passed and faster, passed, caught, failed, not scored.
function tone(verdict) {
  if (!verdict) return "running";
  if (verdict.status === "PASSED") {
    if (!verdict.speedup || verdict.speedup[1] <= 1) return "even";
    return ["custom kernel", undefined].includes(verdict.kind) ? "win" : "apart";
  }
  if (verdict.status === "REWARD_HACK") return "hack";
  return ["SANDBOX_ERROR", "INVALID_REFERENCE"].includes(verdict.status) ? "left-out" : "failed";
}
const statusTone = (status) => tone({ status, speedup: [2, 2, 2] });
