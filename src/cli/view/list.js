"use strict";
// Fills in what takes reading a recording, one after the other; of growing ones again and again.

const AGAIN_MS = 10000;
// Reading takes at most this part of the time: the server may share its machine with the trainer.
const SHARE = 20;

function duration(seconds) {
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  if (parts[0]) return `${parts[0]} h ${parts[1]} min`;
  return parts[1] ? `${parts[1]} min ${Math.floor(seconds % 60)} s` : `${seconds.toFixed(1)} s`;
}

async function fill(row) {
  const verdict = row.querySelector(".verdict");
  const answer = await fetch(`row/${row.dataset.name}`);
  verdict.classList.toggle("error", !answer.ok);
  verdict.classList.toggle("dim", false);
  if (!answer.ok) {
    verdict.textContent = (await answer.text()).split("\n")[0];
    return;
  }
  const found = await answer.json();
  row.querySelector(".duration").textContent = duration(found.duration_s);
  row.querySelector(".steps").textContent = found.steps ?? "";
  verdict.textContent = [found.verdict ?? "nothing trains", ...found.missing.map((text) => `MISSING ${text}`)].join("; ");
  row.classList.toggle("growing", found.growing);
}

async function fillAll(rows) {
  const begun = performance.now();
  for (const row of rows) {
    try {
      await fill(row);
    } catch {
      return; // The server has ended.
    }
  }
  setTimeout(again, Math.max(AGAIN_MS, SHARE * (performance.now() - begun)));
}

// Nobody looks at a page in the background.
function again() {
  if (document.hidden) document.addEventListener("visibilitychange", again, { once: true });
  else fillAll(document.querySelectorAll("tr.growing"));
}

fillAll(document.querySelectorAll("tr[data-name]"));
