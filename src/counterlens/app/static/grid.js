"use strict";
// A grid of any size: only the rows in view exist, and images are fetched as they come near.
(() => {
  const scroller = document.getElementById("scroller");
  const grid = document.getElementById("grid");
  const side = innerWidth < 640 ? 108 : 168;
  const height = side + 40;
  const facts = new Map();   // index → image
  const cells = new Map();   // index → element
  const asked = new Set();
  let all = [];
  let columns = 1;
  let at = 0;
  let focusWanted = false;

  const rowsOf = () => Math.ceil(all.length / columns);
  const paint = (index) => {
    const cell = cells.get(index);
    const one = facts.get(index);
    if (!cell || !one) return;
    const image = cell.querySelector("img");
    if (image.getAttribute("src") !== one.thumb) image.src = one.thumb;
    image.alt = `${one.label}${one.verdict ? `, your verdict: ${one.verdict}` : ", not judged"}`;
    cell.dataset.verdict = one.verdict;
    cell.querySelector("span").textContent = one.verdict ? `${one.label}: ${one.verdict}` : one.label;
  };
  const fetchBlock = async (block) => {
    if (asked.has(block)) return;
    asked.add(block);
    const first = block * 60;
    try {
      const answer = await fetch(Verdicts.address("/review/items.json", {
        after: all[first] - 1, most: 60, judged: true,
      }));
      if (!answer.ok) throw new Error(await answer.text());
      (await answer.json()).forEach((one, k) => { facts.set(first + k, one); paint(first + k); });
    } catch (error) {
      asked.delete(block);
      Verdicts.problem(`Some images did not come: ${error.message}`);
      setTimeout(draw, 2000);
    }
  };
  const make = (index) => {
    const cell = document.createElement("div");
    cell.role = "gridcell";
    cell.tabIndex = index === at ? 0 : -1;
    cell.dataset.index = index;
    cell.className = "gridcell";
    const image = document.createElement("img");
    image.alt = "";
    image.addEventListener("load", () => image.classList.toggle("small", image.naturalWidth <= 112));
    cell.append(image, document.createElement("span"));
    cell.addEventListener("focus", () => { at = index; });
    cell.addEventListener("click", () => move(index));
    cells.set(index, cell);
    return cell;
  };
  const draw = () => {
    const first = Math.max(0, Math.floor(scroller.scrollTop / height) - 1);
    const last = Math.min(rowsOf(), first + Math.ceil(scroller.clientHeight / height) + 3);
    const held = document.activeElement; // a cell that moves to another row loses the focus
    const wanted = [];
    const rows = [];
    for (let r = first; r < last; r += 1) {
      const row = document.createElement("div");
      row.role = "row";
      row.className = "gridrow";
      row.setAttribute("aria-rowindex", r + 1);
      row.style.setProperty("top", `${r * height}px`);
      for (let c = 0; c < columns && r * columns + c < all.length; c += 1) {
        const index = r * columns + c;
        wanted.push(index);
        row.append(cells.get(index) || make(index));
      }
      rows.push(row);
    }
    grid.replaceChildren(...rows);
    for (const index of [...cells.keys()]) if (!wanted.includes(index)) cells.delete(index);
    for (const index of wanted) {
      cells.get(index).tabIndex = index === at ? 0 : -1;
      paint(index);
    }
    if (wanted.length && !wanted.includes(at)) cells.get(wanted[0]).tabIndex = 0;
    if (focusWanted && cells.get(at)) { cells.get(at).focus({ preventScroll: true }); focusWanted = false; }
    else if (held && held.classList.contains("gridcell") && held.isConnected) held.focus({ preventScroll: true });
    for (const index of wanted) if (!facts.has(index)) fetchBlock(Math.floor(index / 60));
  };
  const measure = () => {
    columns = Math.max(1, Math.floor(grid.clientWidth / (side + 8)));
    grid.style.setProperty("height", `${rowsOf() * height}px`);
    grid.style.setProperty("--columns", columns);
    grid.style.setProperty("--side", `${side}px`);
    grid.setAttribute("aria-rowcount", rowsOf());
    draw();
  };
  const move = (index) => {
    at = Math.max(0, Math.min(all.length - 1, index));
    const top = Math.floor(at / columns) * height;
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top + height > scroller.scrollTop + scroller.clientHeight)
      scroller.scrollTop = top + height - scroller.clientHeight;
    focusWanted = true;
    draw();
  };
  grid.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns,
      PageDown: columns * 4, PageUp: -columns * 4, Home: -all.length, End: all.length,
    }[event.key];
    if (step) { event.preventDefault(); move(at + step); return; }
    const verdict = { a: "accept", r: "reject", u: "unsure" }[event.key.toLowerCase()];
    const one = facts.get(at);
    if (!verdict || !one || event.repeat) return;
    one.verdict = verdict;
    Verdicts.give(one.id, verdict, [], "");
    paint(at);
    move(at + 1);
  });
  Verdicts.told((kept) => Verdicts.progress(kept.done, kept.total));
  scroller.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  addEventListener("resize", measure);
  fetch(Verdicts.address("/review/places.json", {}))
    .then((answer) => answer.json())
    .then((found) => { all = found; measure(); });
})();
