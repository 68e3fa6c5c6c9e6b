// Keeps the cards and panels of jupyter_gpugate up to date in the pages of a Jupyter server, and makes
// their buttons work, also while the kernel is busy or gone.  It asks the server alone, with the page's
// own cookie.  What it shows comes from the server as finished, escaped HTML.

const WAIT_S = 25; // the server answers a question at the latest after so long
const PACE_MS = 700; // between two answers shown
const AWAY_MS = 10_000; // the longest pause while the server does not answer
const SURE_MS = 4_000; // how long a second press counts as meant

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Where the page's server is, or null in a page that has none. */
function pageServer() {
  try {
    const told = JSON.parse(document.getElementById("jupyter-config-data").textContent);
    return { root: `${told.baseUrl.replace(/\/$/, "")}/gpugate/api/v1`, token: told.token || "" };
  } catch {
    return null;
  }
}

async function ask(server, method, path) {
  const xsrf = document.cookie.match(/(?:^|;\s*)_xsrf=([^;]*)/);
  const headers = {};
  if (xsrf) headers["X-XSRFToken"] = decodeURIComponent(xsrf[1]);
  if (server.token) headers["Authorization"] = `token ${server.token}`;
  if (method === "POST") headers["Content-Type"] = "application/json";
  const body = method === "POST" ? "{}" : undefined;
  return fetch(server.root + path, { method, headers, body, credentials: "same-origin" });
}

/** The sentence in which the server says what went wrong. */
async function problemIn(response) {
  try {
    return (await response.json()).message || `the server answered ${response.status}`;
  } catch {
    return `the server answered ${response.status}`;
  }
}

/** Resolves once the page can be seen. */
function seen() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
  });
}

/** The place while it is on the page; undefined once it is gone for good.
 * A page takes cells that are scrolled away out of its document and puts them back later. */
async function onPage(place) {
  for (;;) {
    const element = place.deref();
    if (element === undefined || element.isConnected) return element;
    await pause(PACE_MS);
  }
}

/** Asks for `path` again and again and hands each new answer to `show(element, answer)`, until that
 * returns false.  `tell(element, words)` says why there is nothing new. */
async function follow(server, element, path, show, tell) {
  const place = new WeakRef(element);
  element = undefined;
  let etag = "";
  let away = PACE_MS;
  for (;;) {
    await seen();
    if ((await onPage(place)) === undefined) return;
    let response;
    let answer = null;
    try {
      // A page that looks on keeps no server from being idle.
      const wait = etag ? `&wait=${WAIT_S}&etag=${encodeURIComponent(etag)}` : "";
      response = await ask(server, "GET", `${path}?no_track_activity=1${wait}`);
      if (response.status === 200) answer = await response.json();
    } catch {
      response = null;
    }
    const now = await onPage(place);
    if (now === undefined) return;
    if (response !== null && (answer !== null || response.status === 304)) {
      tell(now, "");
      away = PACE_MS;
      if (answer !== null) {
        etag = response.headers.get("ETag") || "";
        if (!show(now, answer)) return;
      }
      await pause(PACE_MS);
      continue;
    }
    const refused = response !== null && response.status < 500;
    tell(now, response === null ? "the server does not answer" : await problemIn(response));
    if (refused) return;
    await pause(away);
    away = Math.min(2 * away, AWAY_MS);
  }
}

/** Puts new HTML in place.  Output shows its end; a reader who has scrolled up stays there.
 * Its box counts scrolling from the end, downwards from 0. */
function refill(box, html) {
  const scrolled = (output) => output.scrollHeight - output.clientHeight + output.scrollTop;
  const before = box.querySelector(".gpugate-output");
  const top = before !== null && before.scrollTop < -8 ? scrolled(before) : null;
  box.innerHTML = html;
  const after = box.querySelector(".gpugate-output");
  if (top !== null && after !== null) {
    after.scrollTop = top - (after.scrollHeight - after.clientHeight);
  }
}

function part(element, name) {
  let found = element.querySelector(`:scope > .gpugate-${name}`);
  if (!found) {
    found = document.createElement("div");
    found.className = `gpugate-${name}`;
    element.append(found);
  }
  return found;
}

function say(element, words) {
  const line = part(element, "note");
  line.style.cssText = "margin:4px 0;font-size:13px;font-weight:bold";
  if (line.textContent !== words) line.textContent = words;
}

/** A button that does `act` when pressed; one that destroys work wants a second press. */
function button(label, sure, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.className = "gpugate-button";
  made.style.cssText =
    "margin:4px 8px 4px 0;padding:2px 10px;font-size:13px;cursor:pointer;border-radius:3px;" +
    "border:1px solid var(--jp-border-color1,#8886);" +
    "background:var(--jp-layout-color2,#eee);color:var(--jp-ui-font-color1,#222)";
  let meant = !sure;
  made.addEventListener("click", async (event) => {
    event.stopPropagation();
    if (!meant) {
      meant = true;
      made.textContent = sure;
      made.dataset.sure = "";
      setTimeout(() => {
        meant = false;
        delete made.dataset.sure;
        if (!made.disabled) made.textContent = label;
      }, SURE_MS);
      return;
    }
    made.disabled = true;
    await act();
    made.disabled = false;
    made.textContent = label;
  });
  return made;
}

/** Sends an order for a run and says on `element` what went wrong with it. */
async function order(server, element, runId, verb) {
  try {
    const response = await ask(server, "POST", `/runs/${encodeURIComponent(runId)}/${verb}`);
    say(element, response.ok ? "" : await problemIn(response));
  } catch {
    say(element, "the server does not answer");
  }
}

const ORDERS = {
  detach: { label: "Detach", title: "The cell ends, the run goes on" },
  cancel: { label: "Cancel", title: "Stop every process of this run" },
};

/** One run's card. */
function card(element, runId) {
  const server = pageServer();
  if (server === null) return;
  const told = element.dataset.note || "";
  let orders = "";
  if (told) say(element, told);
  const show = (now, answer) => {
    refill(part(now, "body"), answer.html);
    const bar = part(now, "orders");
    const offered = answer.orders.join(" ") + answer.status;
    if (offered !== orders) {
      orders = offered;
      const buttons = answer.orders.map((verb) => {
        const sure = verb === "cancel" && answer.status === "active" ? "Really stop it?" : "";
        const { label, title } = ORDERS[verb];
        const made = button(label, sure, () => order(server, now, runId, verb));
        made.title = title;
        made.dataset.order = verb;
        return made;
      });
      bar.replaceChildren(...buttons);
    }
    now.dataset.status = answer.status;
    return answer.status !== "ended";
  };
  const tell = (now, words) => {
    if (words || now.dataset.away) say(now, words || told);
    now.dataset.away = words ? "yes" : "";
  };
  follow(server, element, `/runs/${encodeURIComponent(runId)}/card`, show, tell);
}

/** Whether a new table would move something that is about to be pressed. */
function inHand(body) {
  return body.querySelector("button:hover, button:disabled, button[data-sure]") !== null;
}

/** The whole gate: what runs, what waits, whose the memory is. */
function panel(element) {
  const server = pageServer();
  if (server === null) return false;
  let newest = null;
  let heldSince = 0;
  const fill = (now) => {
    const body = part(now, "body");
    if (newest === null) return;
    if (inHand(body) && Date.now() - heldSince < SURE_MS) {
      setTimeout(() => fill(now), PACE_MS);
      return;
    }
    const { html, runs } = newest;
    newest = null;
    refill(body, html);
    for (const row of body.querySelectorAll("tr")) {
      const runId = [...row.cells].map((cell) => cell.textContent).find((text) => text in runs);
      if (runId === undefined) continue;
      const sure = runs[runId] === "active" ? "Really stop it?" : "";
      const made = button("Cancel", sure, () => order(server, now, runId, "cancel"));
      Object.assign(made.style, { margin: "0 8px 0 0", padding: "0 6px", fontSize: "12px" });
      row.insertCell(0).append(made);
      const heads = row.parentElement.rows[0];
      if (heads.dataset.widened === undefined) heads.insertCell(0);
      heads.dataset.widened = "";
    }
  };
  const show = (now, answer) => {
    if (newest === null) heldSince = Date.now();
    newest = answer;
    fill(now);
    return true;
  };
  follow(server, element, "/panel", show, say);
  return true;
}

export { card, panel };
