"use strict";
// Verdicts stay in the browser until the server says that they are on its disk.
const Verdicts = (() => {
  const key = document.querySelector("meta[name=form-key]").content;
  const home = document.getElementById("review");
  const { run, reviewer, role } = home.dataset;
  const place = JSON.stringify(["counterlens-verdicts", run, reviewer, role]);
  let memory = null; // where the browser keeps nothing for us
  let sending = false;
  let pause = 500;
  const listeners = [];

  const read = () => {
    if (memory) return memory;
    try { return JSON.parse(localStorage.getItem(place) || "[]"); } catch { return memory = []; }
  };
  const write = (list) => {
    if (memory) { memory = list; return; }
    try { localStorage.setItem(place, JSON.stringify(list)); } catch { memory = list; }
  };
  const mark = () =>
    Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");

  const waiting = (text = "") => {
    const count = read().length;
    document.getElementById("waiting").textContent = count ? `${count} not yet saved${text}` : "";
  };
  const problem = (text) => {
    const shown = document.getElementById("problem");
    shown.textContent = text;
    shown.hidden = !text;
  };

  const send = async (list) => {
    const answer = await fetch(`/review/verdicts.json?run=${encodeURIComponent(run)}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Form-Key": key },
      body: JSON.stringify(list),
    });
    if (answer.ok) return answer.json();
    const text = await answer.text();
    const error = new Error(answer.status === 403
      ? "The app was started anew. Open the address that its terminal shows: what waits here is sent then."
      : text);
    error.refused = answer.status === 400;
    error.stale = answer.status === 403;
    throw error;
  };
  const drop = (marks) => write(read().filter((one) => !marks.includes(one.mark)));

  const flush = async () => {
    if (sending) return;
    sending = true;
    let size = 20;
    while (read().length) {
      const some = read().slice(0, size);
      try {
        const facts = await send(some);
        drop(facts.kept);
        pause = 500;
        size = 20;
        problem("");
        for (const tell of listeners) tell(facts);
      } catch (error) {
        if (error.refused && some.length > 1) { size = 1; continue; } // find the one that is refused
        if (error.refused) { drop([some[0].mark]); problem(`Not saved: ${error.message}`); continue; }
        if (error.stale) problem(error.message);
        waiting(", trying again");
        sending = false;
        setTimeout(flush, pause);
        pause = Math.min(8000, pause * 2);
        return;
      }
    }
    waiting();
    sending = false;
  };

  addEventListener("beforeunload", (event) => { if (memory && read().length) event.preventDefault(); });
  setTimeout(flush, 0); // what an earlier page left
  return {
    run, reviewer, role,
    give(item, verdict, tags, reason) {
      write([...read(), { item, reviewer, role, verdict, tags, reason, mark: mark() }]);
      waiting();
      flush();
    },
    told(listener) { listeners.push(listener); },
    pending: () => read().length,
    problem,
    address: (path, query) => `${path}?${new URLSearchParams({ run, reviewer, role, ...query })}`,
    progress(done, total) {
      const share = document.getElementById("share");
      share.max = Math.max(1, total);
      share.value = done;
      document.getElementById("count").textContent = `${done.toLocaleString()} of ${total.toLocaleString()}`;
    },
  };
})();
