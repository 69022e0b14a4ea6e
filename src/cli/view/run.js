"use strict";
// Around the page of a recording, which keeps what the reader chose in its address: `#sel=12,14.5&table=steps`. This script
// copies that to the own address, loads the page again when the recording has grown, and loads an interval in full detail.

const POLL_MS = 2000;
// Loading a page again takes at most this part of the time: the server may share its machine with the trainer.
const SHARE = 20;
const LEAST_MS = 5000;
const RESTORE_MS = 5000;

const frame = document.getElementById("page");
const status = document.getElementById("status");
const detail = document.getElementById("detail");
const whole = document.getElementById("whole");
const name = document.body.dataset.name;

let shown = ""; // The stamp of what is shown.
let loading = 0; // When loading began; 0 if it has ended.
let loaded = -Infinity;
let took = 0;
let scrolled = 0;

const interval = () => {
  const query = new URLSearchParams(location.search);
  return query.has("from") && query.has("to") ? [Number(query.get("from")), Number(query.get("to"))] : null;
};

function selection() {
  const [from, to] = (new URLSearchParams(hash().slice(1)).get("sel") ?? "").split(",").map(Number);
  return to > from ? [from, to] : null;
}

function hash() {
  try {
    return frame.contentWindow.location.hash;
  } catch {
    return "";
  }
}

const rounded = (seconds) => String(Math.round(seconds * 1e6) / 1e6);

function load(stamp, hash) {
  const part = interval();
  const query = new URLSearchParams({ v: stamp });
  if (part) {
    query.set("from", rounded(part[0]));
    query.set("to", rounded(part[1]));
  }
  shown = stamp;
  loading = performance.now();
  whole.hidden = !part;
  frame.contentWindow.location.replace(`../page/${name}?${query}${hash}`);
}

frame.addEventListener("load", () => {
  if (!loading) return;
  took = performance.now() - loading;
  [loading, loaded] = [0, performance.now()];
  const page = frame.contentWindow;
  // The page fills itself after it is loaded.
  const restore = () => {
    if (!scrolled || performance.now() - loaded > RESTORE_MS) return;
    if (page.document.documentElement.scrollHeight - page.innerHeight < scrolled) return void requestAnimationFrame(restore);
    page.scrollTo(0, scrolled);
    scrolled = 0;
  };
  restore();
});

async function poll() {
  let found;
  try {
    const answer = await fetch(`../state/${name}`);
    if (!answer.ok) throw new Error("the recording is gone");
    found = await answer.json();
  } catch (error) {
    status.textContent = error instanceof TypeError ? "torchspy view has ended" : error.message;
    return;
  }
  const part = interval();
  const isDue = performance.now() - loaded > Math.max(LEAST_MS, SHARE * took);
  if (!shown) load(found.stamp, location.hash);
  else if (found.stamp !== shown && !part && !loading && (isDue || !found.growing)) {
    scrolled = frame.contentWindow.scrollY;
    load(found.stamp, hash());
  }
  if (part) status.textContent = `${rounded(part[0])} to ${rounded(part[1])} s, times are since ${rounded(part[0])} s`;
  else status.textContent = found.growing ? "being recorded: this page follows it" : "";
  if (found.growing || loading || found.stamp !== shown) setTimeout(next, POLL_MS);
}

// Nobody looks at a page in the background.
function next() {
  if (document.hidden) document.addEventListener("visibilitychange", next, { once: true });
  else poll();
}

function follow() {
  const now = hash();
  if (!loading && now !== location.hash && loaded > 0) history.replaceState(null, "", now || location.pathname + location.search);
  const chosen = loading ? null : selection();
  detail.hidden = !chosen;
  if (chosen) detail.textContent = `Load ${chosen.map(rounded).join(" to ")} s alone: all detail, and its own verdict`;
}

/** Goes to an interval, or to the whole recording. */
function show(part, hash) {
  const query = part ? `?${new URLSearchParams({ from: rounded(part[0]), to: rounded(part[1]) })}` : "";
  history.pushState(null, "", location.pathname + query + hash);
  go();
}

function go() {
  const stamp = shown;
  shown = "";
  scrolled = 0;
  if (stamp) load(stamp, location.hash);
  poll();
}

/** What the reader chose, with another selection. */
function without(selected) {
  const kept = new URLSearchParams(hash().slice(1));
  kept.delete("sel");
  if (selected) kept.set("sel", selected.map(rounded).join(","));
  const text = kept.toString().replaceAll("%2C", ",");
  return text ? `#${text}` : "";
}

detail.addEventListener("click", () => {
  const chosen = selection();
  const base = interval()?.[0] ?? 0;
  if (chosen) show([base + chosen[0], base + chosen[1]], without(null));
});
whole.addEventListener("click", () => show(null, without(interval())));
window.addEventListener("popstate", go);
setInterval(follow, 300);
poll();
