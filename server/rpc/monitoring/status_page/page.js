"use strict";
// Takes the page again every few seconds, and puts its content in the place of the old one.
(() => {
  const PAUSE_MS = 2000;
  const TIMEOUT_MS = 10000;
  const stale = document.getElementById("stale");

  // What the reader has opened or scrolled stays so.
  function keep(before, after) {
    for (const old of before.querySelectorAll("details")) {
      const fresh = after.querySelector(`#${old.id}`);
      if (fresh) fresh.open = old.open;
    }
    const regions = [...before.querySelectorAll(".table")].map((old) => [old, old.scrollLeft]);
    const focused = regions.findIndex(([old]) => old === document.activeElement);
    const { scrollX, scrollY } = window;
    before.replaceWith(after);
    const names = new Map(
      [...after.querySelectorAll(".table")].map((fresh) => [fresh.getAttribute("aria-label"), fresh])
    );
    regions.forEach(([old, left], place) => {
      const fresh = names.get(old.getAttribute("aria-label"));
      if (!fresh) return;
      fresh.scrollLeft = left;
      if (place === focused) fresh.focus({ preventScroll: true });
    });
    window.scrollTo(scrollX, scrollY);
  }

  async function refresh() {
    const signal = AbortSignal.timeout(TIMEOUT_MS);
    const answer = await fetch(location.pathname, { cache: "no-store", redirect: "error", signal });
    if (!answer.ok) throw new Error(answer.statusText);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const after = page.querySelector("main");
    if (!after) throw new Error("no status page");
    keep(document.querySelector("main"), document.adoptNode(after));
    document.title = page.title;
    stale.hidden = true;
  }

  async function run() {
    const isRead = !document.hidden && getSelection().isCollapsed;
    try {
      if (isRead) await refresh();
    } catch {
      const time = document.getElementById("now").textContent;
      stale.textContent = `The server does not answer. What you see is from ${time}.`;
      stale.hidden = false;
    }
    setTimeout(run, PAUSE_MS);
  }

  setTimeout(run, PAUSE_MS);
})();
