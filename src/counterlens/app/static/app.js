"use strict";
// Small pictures keep sharp pixels when they are enlarged.
(() => {
  const sharpen = (image) => {
    if (image.naturalWidth && image.naturalWidth <= 112) image.classList.add("small");
  };
  for (const image of document.querySelectorAll("img.thumb")) {
    if (image.complete) sharpen(image);
    else image.addEventListener("load", () => sharpen(image), { once: true });
  }
})();

// Dropped pictures go into the form's own field, and are shown before they are sent.
(() => {
  const drop = document.getElementById("drop");
  if (!drop) return;
  const field = document.getElementById("upload");
  const shown = document.getElementById("chosen");
  const preview = () => {
    for (const image of shown.querySelectorAll("img")) URL.revokeObjectURL(image.src);
    shown.replaceChildren(...[...field.files].slice(0, 8).map((file) => {
      const image = document.createElement("img");
      image.src = URL.createObjectURL(file);
      image.alt = file.name;
      return image;
    }));
  };
  field.addEventListener("change", preview);
  for (const kind of ["dragenter", "dragover"]) {
    drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
  }
  for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    if (!event.dataTransfer.files.length) return;
    field.files = event.dataTransfer.files;
    preview();
  });
})();

// A job's page follows the job; when its state changes the page is loaded again.
(() => {
  const job = document.getElementById("job");
  if (!job || !["waiting", "running"].includes(job.dataset.state)) return;
  const pictures = document.getElementById("pictures");
  const shown = new Set([...pictures.querySelectorAll("img")].map((image) => image.getAttribute("src")));
  const look = async () => {
    let facts;
    try {
      const answer = await fetch(`/job.json?name=${encodeURIComponent(job.dataset.name)}`);
      if (!answer.ok) throw new Error(String(answer.status));
      facts = await answer.json();
    } catch {
      document.getElementById("line").textContent = "The app does not answer. Is it still running in the terminal?";
      setTimeout(look, 3000);
      return;
    }
    if (facts.state !== job.dataset.state) { location.reload(); return; }
    document.getElementById("share").value = facts.share;
    if (facts.line) document.getElementById("line").textContent = facts.line;
    for (const address of facts.pictures) {
      if (shown.has(address)) continue;
      shown.add(address);
      const image = document.createElement("img");
      image.src = address;
      image.alt = "A picture of the run so far";
      image.className = "thumb small";
      const item = document.createElement("li");
      item.append(image);
      pictures.append(item);
    }
    setTimeout(look, 700);
  };
  setTimeout(look, 400);
})();
