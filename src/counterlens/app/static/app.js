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
  const list = document.getElementById("live");
  const rows = [];
  const row = () => {
    const item = document.createElement("li");
    const [image, bar, name, value] = ["img", "meter", "span", "span"].map((tag) => document.createElement(tag));
    image.className = "thumb";
    name.className = "text";
    value.className = "sub";
    image.addEventListener("load", () => image.classList.toggle("small", image.naturalWidth <= 112));
    item.append(image, bar, name, value);
    list.append(item);
    return { image, bar, name, value };
  };
  const draw = (found) => found.forEach((one, k) => {
    const { image, bar, name, value } = rows[k] ??= row();
    if (image.getAttribute("src") !== one.image) image.src = one.image;
    image.alt = `Towards ${one.name}`;
    bar.value = one.confidence;
    bar.setAttribute("aria-label", `Confidence in ${one.name}`);
    name.textContent = one.name;
    value.textContent = `${(100 * one.confidence).toFixed(1)} %`;
  });
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
    draw(facts.live.rows || []);
    setTimeout(look, 700);
  };
  setTimeout(look, 400);
})();
