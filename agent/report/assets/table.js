// The table of tasks: sorted by a click on a heading, filtered by words, state and suite. The plot of
// speedups follows it.

const body = $("#table tbody");
const lines = $$("tr", body);
page.rows.forEach((row, place) => { row.place = place; });
const chosen = new Set(); // states to show; none chosen shows all

// The present order and choice, as rows of data.
const shown = () => $$("tr:not([hidden])", body).map((line) => page.rows[line.dataset.row]);

function sortBy(column, direction) {
  const sign = direction === "descending" ? -1 : 1;
  const keys = new Map(lines.map((line) => [line, line.getAttribute(`data-${column}-key`)]));
  const numeric = [...keys.values()].every((key) => key === "" || !Number.isNaN(Number(key)));
  const compare = (a, b) => (numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true }));
  lines.sort((one, two) => {
    const a = keys.get(one), b = keys.get(two);
    if (a === "" || b === "") return (a === "") - (b === ""); // nothing comes last, either way
    return sign * compare(a, b);
  });
  body.append(...lines);
  for (const head of $$("th[aria-sort]")) {
    head.setAttribute("aria-sort", $("button", head).dataset.sort === column ? direction : "none");
  }
}

function filter() {
  const words = $("#query").value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = $("#groups").value;
  let count = 0;
  for (const line of lines) {
    const row = page.rows[line.dataset.row];
    const text = `${row.task_id} ${row.verdict} ${row.kind} ${row.language} ${row.precision}`.toLowerCase();
    const fits = words.every((word) => text.includes(word))
      && (!chosen.size || chosen.has(row.state)) && (!wanted || line.dataset.group === wanted);
    line.hidden = !fits;
    count += fits;
  }
  const total = page.rows.length;
  const all = numberOf(total, "task");
  $("#count").textContent = count === total ? all : `${count} of ${all}`;
  $("#empty").hidden = count > 0 || total === 0;
}

let asked = 0;
function follow() {
  cancelAnimationFrame(asked);
  asked = requestAnimationFrame(() => drawn.get("plot-speedups")?.());
}

function setUpTable() {
  for (const [state, words] of Object.entries(page.words)) {
    const count = page.rows.filter((row) => row.state === state).length;
    if (!count) continue;
    const chip = el("button", { type: "button", class: `chip ${state}`, "aria-pressed": "false", "data-state": state }, words, el("b", {}, String(count)));
    chip.addEventListener("click", () => {
      if (!chosen.delete(state)) chosen.add(state);
      chip.setAttribute("aria-pressed", String(chosen.has(state)));
      filter();
      follow();
    });
    $("#states").append(chip);
  }
  const groups = [...new Set(lines.map((line) => line.dataset.group))].filter(Boolean).sort();
  $("#groups").hidden = groups.length < 2;
  $("#groups").append(...groups.map((name) => el("option", { value: name }, name)));
  for (const event of ["input", "change"]) {
    $(".tools").addEventListener(event, (change) => {
      if (change.target.matches("#query, #groups")) { filter(); follow(); }
    });
  }
  $("#clear").addEventListener("click", () => {
    $("#query").value = "";
    $("#groups").value = "";
    chosen.clear();
    $$(".chip").forEach((chip) => chip.setAttribute("aria-pressed", "false"));
    filter();
    follow();
  });
  const descending = ["speedup", "best", "tried", "doubts"];
  for (const button of $$("th[aria-sort] button")) {
    button.addEventListener("click", () => {
      const was = button.closest("th").getAttribute("aria-sort"), column = button.dataset.sort;
      const first = descending.includes(column) ? "descending" : "ascending";
      const flipped = was === "ascending" ? "descending" : "ascending";
      sortBy(column, was === "none" ? first : flipped);
      follow();
    });
  }
  body.addEventListener("click", (event) => {
    const line = event.target.closest("tr");
    if (line) openTask(Number(line.dataset.row));
  });
  sortBy("speedup", "descending");
}
