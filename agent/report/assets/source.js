// Texts put together from their runs of lines, shown with colours, and compared line by line.

function numbersOf(texts, id) {
  const runs = texts.texts[id], numbers = [];
  for (let k = 0; k < runs.length; k += 2) {
    for (let line = runs[k]; line < runs[k] + runs[k + 1]; line++) numbers.push(line);
  }
  return numbers;
}

const linesOf = (texts, id) => numbersOf(texts, id).map((number) => texts.lines[number]);
const textOf = (texts, id) => linesOf(texts, id).join("\n");

// Lines as elements: from our own HTML where a source was highlighted, else as text.
function lineElements(texts, item) {
  if (item.html == null) return linesOf(texts, item.text).map((line) => el("span", {}, line));
  return linesOf(texts, item.html).map((line) => {
    const made = el("span");
    made.innerHTML = line;
    return made;
  });
}

function codeView(texts, item) {
  const rows = lineElements(texts, item).map((line) => el("div", {}, line));
  return el("div", { class: "code", role: "region", "aria-label": "source", tabindex: "0" }, rows);
}

// The longest common subsequence of two lists of line numbers, as [kind, place in a, place in b].
const LARGEST = 4e6; // cells of the table; beyond, what differs is shown as replaced

function difference(a, b) {
  let head = 0, tail = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail++;
  const n = a.length - head - tail, m = b.length - head - tail, width = m + 1;
  const found = [];
  for (let k = 0; k < head; k++) found.push(["same", k, k]);
  let i = 0, j = 0;
  if (n * m <= LARGEST) {
    const length = new Uint32Array((n + 1) * width);
    for (let x = n - 1; x >= 0; x--) {
      for (let y = m - 1; y >= 0; y--) {
        length[x * width + y] = a[head + x] === b[head + y]
          ? length[(x + 1) * width + y + 1] + 1
          : Math.max(length[(x + 1) * width + y], length[x * width + y + 1]);
      }
    }
    while (i < n && j < m) {
      if (a[head + i] === b[head + j]) found.push(["same", head + i++, head + j++]);
      else if (length[(i + 1) * width + j] >= length[i * width + j + 1]) found.push(["removed", head + i++, null]);
      else found.push(["added", null, head + j++]);
    }
  }
  while (i < n) found.push(["removed", head + i++, null]);
  while (j < m) found.push(["added", null, head + j++]);
  for (let k = tail; k > 0; k--) found.push(["same", a.length - k, b.length - k]);
  return found;
}

const CONTEXT = 3; // unchanged lines kept around a change

function diffView(texts, before, after) {
  const found = difference(numbersOf(texts, before.text), numbersOf(texts, after.text));
  const old = lineElements(texts, before), now = lineElements(texts, after);
  const near = new Uint8Array(found.length);
  found.forEach(([kind], place) => {
    if (kind !== "same") near.fill(1, Math.max(0, place - CONTEXT), place + CONTEXT + 1);
  });
  const rows = found.map(([kind, a, b]) => el("div", { class: kind },
    el("span", { class: "was" }, a == null ? "" : String(a + 1)),
    el("span", { class: "now" }, b == null ? "" : String(b + 1)),
    el("span", { class: "sign" }, { added: "+", removed: "−", same: " " }[kind]),
    (b == null ? old[a] : now[b])));
  const view = el("div", { class: "code diff", role: "region", "aria-label": "diff", tabindex: "0" });
  for (let place = 0; place < rows.length;) {
    let end = place;
    while (end < rows.length && !near[end]) end++;
    if (end - place > 1) {
      const hidden = rows.slice(place, end);
      const fold = el("button", { type: "button", class: "fold" }, numberOf(hidden.length, "unchanged line"));
      fold.addEventListener("click", () => fold.replaceWith(...hidden));
      view.append(fold);
      place = end;
    } else {
      view.append(rows[place++]);
    }
  }
  const count = (kind) => found.filter(([each]) => each === kind).length;
  return { view, added: count("added"), removed: count("removed") };
}
