"use strict";
(() => {
  const value = (row, column) => {
    const cell = row.cells[column];
    const raw = cell.dataset.sort ?? cell.textContent.trim();
    const number = Number(raw);
    return raw !== "" && Number.isFinite(number) ? number : raw;
  };
  const order = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const name = head.querySelector(".head");
      const button = document.createElement("button");
      button.type = "button";
      button.className = "head";
      button.textContent = name.textContent;
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => (up ? 1 : -1) * order(value(a, column), value(b, column)));
        table.tBodies[0].append(...rows);
      });
      name.replaceWith(button);
    });
  }

  for (const text of document.querySelectorAll("pre.copy")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy-button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch {
        const range = document.createRange();
        range.selectNodeContents(text);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        button.textContent = "Selected: press Ctrl+C";
      }
      setTimeout(() => (button.textContent = "Copy"), 2500);
    });
    text.before(button);
  }

  for (const range of document.querySelectorAll(".slider input")) {
    const move = () => range.closest(".slider").style.setProperty("--at", `${range.value}%`);
    range.addEventListener("input", move);
    move();
  }

  document.addEventListener("keydown", (event) => {
    const open = document.querySelector("figure.picture:target");
    if (event.key === "Escape" && open) {
      location.hash = open.querySelector(".close").getAttribute("href");
      open.querySelector(".open").focus();
    }
  });

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details[data-print]:not([open])")];
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of opened) part.open = false;
  });
})();
