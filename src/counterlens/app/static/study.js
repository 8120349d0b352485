"use strict";
// An answer is sent again until the server says that it is on its disk; then the next pair comes.
(() => {
  const form = document.getElementById("rate");
  const key = document.querySelector("meta[name=form-key]").content;
  const problem = document.getElementById("problem");
  const button = form.querySelector("button");
  const { run, rater, pair } = form.dataset;
  const mark = Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
  const send = async (body, pause) => {
    let answer;
    try {
      answer = await fetch(`/study/answer.json?run=${encodeURIComponent(run)}`, {
        method: "POST", headers: { "Content-Type": "application/json", "X-Form-Key": key }, body,
      });
    } catch { answer = null; }
    if (answer && answer.ok) { location.reload(); return; }
    problem.hidden = false;
    problem.textContent = !answer ? "The app does not answer; trying again."
      : answer.status === 403 ? "The app was started anew. Open the address that its terminal shows."
      : await answer.text();
    if (!answer) setTimeout(() => send(body, Math.min(8000, 2 * pause)), pause);
    else button.disabled = false;
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    button.disabled = true;
    const given = new FormData(form);
    const questions = {};
    for (const [name, value] of given) {
      const cut = name.lastIndexOf("-");
      if (cut > 0) (questions[name.slice(0, cut)] ??= {})[name.slice(cut + 1)] = value === "1";
    }
    send(JSON.stringify({ rater, pair, questions, better: given.get("better"), mark }), 500);
  });
})();
