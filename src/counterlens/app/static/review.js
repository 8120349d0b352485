"use strict";
// One image at a time: keys, prefetch, undo, full size; what the filter said comes after the verdict.
(() => {
  const $ = (name) => document.getElementById(name);
  const ahead = 3;
  let queue = [];      // images still to judge, the first one is shown
  const past = [];     // images judged on this page, for undo
  let after = -1;      // place behind which the next images lie
  let loading = null;
  let ended = false;
  const classes = new Map();
  const warm = new Map();

  const load = () => {
    if (loading || ended) return loading;
    const known = new Set([...queue, ...past].map((one) => one.id));
    loading = fetch(Verdicts.address("/review/items.json", { after, most: 20 }))
      .then(async (answer) => {
        if (!answer.ok) throw new Error(await answer.text());
        return answer.json();
      })
      .then((rows) => {
        ended = rows.length < 20;
        if (rows.length) after = rows[rows.length - 1].place;
        queue.push(...rows.filter((one) => !known.has(one.id)));
        loading = null;
      })
      .catch((error) => { loading = null; Verdicts.problem(`The next images did not come: ${error.message}`); setTimeout(next, 2000); });
    return loading;
  };
  const prefetch = () => {
    for (const one of queue.slice(1, 1 + ahead)) {
      if (warm.has(one.id)) continue;
      const image = new Image();
      image.src = one.large;
      warm.set(one.id, image);
    }
    while (warm.size > 20) warm.delete(warm.keys().next().value);
  };
  const describe = async (label) => {
    if (!classes.has(label)) {
      const answer = await fetch(`/class.json?${new URLSearchParams({ label })}`).catch(() => null);
      classes.set(label, answer && answer.ok ? await answer.json() : null);
    }
    const facts = classes.get(label);
    const shown = facts && (facts.definition || facts.images.length);
    if (!queue.length || queue[0].label !== label) return;
    $("class").hidden = !shown;
    if (!shown) return;
    $("class-title").textContent = label;
    $("definition").textContent = facts.definition;
    $("references").replaceChildren(...facts.images.map((one) => {
      const image = document.createElement("img");
      image.src = one.small;
      image.alt = `Reference image of ${label}`;
      image.className = "thumb";
      const item = document.createElement("li");
      item.append(image);
      return item;
    }));
  };
  const boxes = () => [...document.querySelectorAll("input[name=tag]")];

  const show = () => {
    const one = queue[0];
    $("bench").hidden = !one;
    $("finished").hidden = !!one || !ended;
    if (!one) return;
    $("question").textContent = one.question;
    $("label").textContent = one.original ? `${one.original} → ${one.label}` : one.label;
    $("image").src = one.large;
    $("image").alt = one.before ? `Changed picture, target ${one.label}` : `Image to judge, label ${one.label}`;
    $("image").classList.remove("small");
    if ($("before")) $("before").src = one.before;
    for (const box of boxes()) box.checked = (one.tags || []).includes(box.value);
    $("reason").value = one.reason || "";
    for (const button of document.querySelectorAll("[data-verdict]"))
      button.setAttribute("aria-pressed", String(button.dataset.verdict === one.verdict));
    $("others").replaceChildren(...(one.others || []).map((said) => {
      const item = document.createElement("li");
      item.textContent = `${said.verdict} ${said.reason} ${said.tags.map((tag) => `#${tag}`).join(" ")}`;
      return item;
    }));
    describe(one.label);
    prefetch();
  };
  const next = async () => {
    if (queue.length < 8) { const more = load(); if (!queue.length) await more; }
    show();
  };
  const reveal = (facts, id) => {
    const parts = [];
    if (facts.answer) parts.push(`the filter says ${facts.answer}`);
    if (typeof facts.confidence === "number") parts.push(`${(100 * facts.confidence).toFixed(1)} %`);
    if (facts.suggested.length) parts.push(`suggested: ${facts.suggested.join(", ")}`);
    $("revealed").textContent = `Of the last image, ${id}: ${parts.join("; ") || "nothing more is known"}.`;
    $("revealed").hidden = false;
  };
  const give = (verdict) => {
    const one = queue[0];
    if (!one) return;
    one.verdict = verdict;
    one.tags = boxes().filter((box) => box.checked).map((box) => box.value);
    one.reason = $("reason").value.trim();
    Verdicts.give(one.id, verdict, one.tags, one.reason);
    past.push(queue.shift());
    next();
  };
  const undo = () => {
    const one = past.pop();
    if (!one) return;
    queue.unshift(one);
    show();
    $("revealed").textContent = `Your verdict: ${one.verdict}. Judge again: the later verdict counts.`;
    $("revealed").hidden = false;
  };
  const zoom = () => {
    if (!queue.length) return;
    if ($("large").open) { $("large").close(); return; }
    $("whole").src = queue[0].full;
    $("large").showModal();
  };

  Verdicts.told((facts) => {
    Verdicts.progress(facts.done, facts.total);
    const last = past[past.length - 1];
    if (last && facts.reveal[last.id]) reveal(facts.reveal[last.id], last.id);
  });
  $("image").addEventListener("load", () => $("image").classList.toggle("small", $("image").naturalWidth <= 112));
  if ($("before")) $("before").addEventListener("load", () => $("before").classList.toggle("small", $("before").naturalWidth <= 112));
  for (const button of document.querySelectorAll("[data-verdict]"))
    button.addEventListener("click", () => give(button.dataset.verdict));
  $("undo").addEventListener("click", undo);
  $("zoom").addEventListener("click", zoom);
  $("close").addEventListener("click", () => $("large").close());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.toLowerCase() === "f" && !event.target.matches("input:not([type=checkbox])")) { zoom(); return; }
    if ($("large").open) return;
    if (event.target.matches("input:not([type=checkbox])")) {
      if (event.key === "Escape" || event.key === "Enter") event.target.blur();
      return;
    }
    const verdict = { a: "accept", r: "reject", u: "unsure" }[event.key.toLowerCase()];
    const box = boxes()[Number(event.key) - 1];
    if (verdict && !event.repeat) give(verdict);
    else if (event.key.toLowerCase() === "z") undo();
    else if (box) box.checked = !box.checked;
  });
  next();
})();
