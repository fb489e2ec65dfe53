// Sets everything up: the table at once, the plots after the first paint.

setUpTable();

for (const button of $$("button.link[data-task]")) {
  button.addEventListener("click", () => {
    const place = page.rows.findIndex((row) => row.task_id === button.dataset.task);
    openTask(place, Number(button.dataset.candidate));
  });
}

$("#all-caught")?.addEventListener("click", (event) => {
  $$("tr.later").forEach((line) => { line.hidden = false; });
  event.target.closest("p").hidden = true;
});

$("#theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

// Plots keep the colours they were drawn with, and paper is light.
let before = null;
addEventListener("beforeprint", () => {
  before = document.documentElement.dataset.theme ?? "";
  document.documentElement.dataset.theme = "light";
  redraw();
});
addEventListener("afterprint", () => {
  if (before) document.documentElement.dataset.theme = before;
  else delete document.documentElement.dataset.theme;
  redraw();
});

function multiples(id, curves) {
  curves.forEach((curve, number) => {
    const own = `${id}-${number}`;
    if (!document.getElementById(own)) $(`#${id}`).append(el("div", { class: "plot", id: own }));
    plot(own, () => training(curve));
  });
}

// Drawn while it is closed, a plot would have no width.
$("#training-more")?.addEventListener("toggle", (event) => {
  if (event.target.open) multiples("plots-training-more", page.training_more);
});

function drawAll() {
  plot("plot-speedups", () => speedups(shown()));
  plot("plot-fast", fast);
  if (Object.keys(page.progress).length) {
    plot("plot-progress", progress);
    $("#progress-axis").addEventListener("change", () => drawn.get("plot-progress")());
  }
  plot("plot-stages", stages);
  plot("plot-statuses", statuses);
  multiples("plots-training", page.training);
  return Promise.all([...drawn.values()]);
}

requestAnimationFrame(() => setTimeout(drawAll, 0));

const wanted = /^#task=(.+)$/.exec(location.hash);
if (wanted) {
  const place = page.rows.findIndex((row) => row.task_id === decodeURIComponent(wanted[1]));
  if (place >= 0) openTask(place);
}
