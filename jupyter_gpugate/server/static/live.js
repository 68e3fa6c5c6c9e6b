// Keeps the cards and panels of jupyter_gpugate up to date in the pages of a Jupyter server, and makes
// their buttons work, also while the kernel is busy or gone.  It asks the server alone, with the page's
// own cookie.  What it shows comes from the server as finished, escaped HTML.

const WAIT_S = 25; // the server answers a question at the latest after so long
const LOST_MS = 60_000; // a question that is still not answered never will be
const PACE_MS = 700; // between two answers shown, where there is little to ask about
const AWAY_MS = 10_000; // the longest pause while the server does not answer
const SURE_MS = 4_000; // how long a second press counts as meant
const CALM_MS = 500; // a confirmation counts only after this pause, so not a double click or a held key
// A browser keeps six lines to one server, for all its pages together.  Questions that wait for news
// keep no more than these busy; whatever finds them taken asks without waiting.  The more there is to
// ask about, the less often each is asked about.
const LINES = 2;
const CROWD_MS = 500;

let waiting = 0; // questions of this page that wait for news
let followed = 0; // cards and panels of this page that ask

const AWAY = { words: "the server does not answer", unknown: false };

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

async function ask(server, method, path, signal) {
  const xsrf = document.cookie.match(/(?:^|;\s*)_xsrf=([^;]*)/);
  const headers = {};
  if (xsrf) headers["X-XSRFToken"] = decodeURIComponent(xsrf[1]);
  if (server.token) headers["Authorization"] = `token ${server.token}`;
  if (method === "POST") headers["Content-Type"] = "application/json";
  const body = method === "POST" ? "{}" : undefined;
  return fetch(server.root + path, { method, headers, body, credentials: "same-origin", signal });
}

/** What went wrong: in a sentence of the server, and whether the gate knows no such thing. */
async function problemIn(response) {
  const number = `the server answered ${response.status}`;
  try {
    const { error, message } = await response.json();
    return { words: message || number, unknown: error === "not_found" };
  } catch {
    return { words: number, unknown: false };
  }
}

/** One question: the answer that is new, or null, and what went wrong, or null. */
async function question(server, path, etag, more) {
  const patient = etag !== "" && waiting < LINES;
  const lost = new AbortController();
  const timer = setTimeout(() => lost.abort(), LOST_MS);
  waiting += patient;
  try {
    const known = etag && `&etag=${encodeURIComponent(etag)}`;
    const wait = patient ? `&wait=${WAIT_S}` : "";
    // A page that looks on keeps no server from being idle.
    const asked = `${path}?no_track_activity=1${more}${known}${wait}`;
    const response = await ask(server, "GET", asked, lost.signal);
    if (response.status === 304) return { answer: null, etag, problem: null };
    if (!response.ok) return { answer: null, etag, problem: await problemIn(response) };
    const answer = await response.json();
    return { answer, etag: response.headers.get("ETag") || "", problem: null };
  } catch {
    return { answer: null, etag, problem: AWAY };
  } finally {
    waiting -= patient;
    clearTimeout(timer);
  }
}

/** How a place stands: "seen" by a reader, "unseen", or "gone" for good.
 * A page takes cells that are scrolled away out of its document and puts them back later. */
function standing(place) {
  const element = place.deref();
  if (element === undefined) return "gone";
  return !document.hidden && element.getClientRects().length > 0 ? "seen" : "unseen";
}

/** Resolves to whether the place is still there, once it can be seen. */
async function inSight(place) {
  while (standing(place) === "unseen") await pause(PACE_MS);
  return standing(place) === "seen";
}

/** Asks for `path` again and again and hands each new answer to `show(element, answer)`, until that
 * returns false.  `tell(element, problem)` says why there is nothing new, with null that there is
 * nothing wrong.  The element is no variable of this: what a function that waits has held, it keeps,
 * and an output that was cleared would be followed for ever. */
async function follow(server, place, path, show, tell, more = () => "") {
  let etag = "";
  let asked = "";
  let away = PACE_MS;
  followed += 1;
  while (await inSight(place)) {
    const wanted = more();
    if (wanted !== asked) etag = ""; // of another answer
    asked = wanted;
    const news = await question(server, path, etag, asked);
    etag = news.etag;
    if (!(await inSight(place))) break;
    tell(place.deref(), news.problem);
    if (news.problem?.unknown) break;
    if (news.answer !== null && !show(place.deref(), news.answer)) break;
    if (news.problem === null) {
      away = PACE_MS;
      await pause(Math.min(Math.max(PACE_MS, CROWD_MS * followed), AWAY_MS));
    } else {
      await pause(away);
      away = Math.min(2 * away, AWAY_MS);
    }
  }
  followed -= 1;
}

/** Puts new HTML in place.  Output shows its end; a reader who has scrolled stays there.
 * Its box counts scrolling from the end, downwards from 0. */
function refill(box, html) {
  const scrolled = (output) => output.scrollHeight - output.clientHeight + output.scrollTop;
  const before = box.querySelector(".gpugate-output");
  const top = before !== null && before.scrollTop < -8 ? scrolled(before) : null;
  const left = before !== null ? before.scrollLeft : 0;
  box.innerHTML = html;
  const after = box.querySelector(".gpugate-output");
  if (after === null) return;
  after.scrollLeft = left;
  if (top !== null) after.scrollTop = top - (after.scrollHeight - after.clientHeight);
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
  line.setAttribute("role", "status"); // read out, not only shown
  line.style.cssText = "margin:4px 0;font-size:13px;font-weight:bold";
  if (line.textContent !== words) line.textContent = words;
}

/** Says what keeps an element from being up to date; once nothing does, what was `told` before. */
function sayProblem(element, problem, told) {
  if (problem !== null || element.dataset.away) say(element, problem?.words || told);
  element.dataset.away = problem === null ? "" : "yes";
}

/** A button that does `act` when pressed; one that destroys work asks first, and takes for an answer
 * only a press that follows no other closely. */
function button(label, sure, title, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.title = title;
  made.className = "gpugate-button";
  made.style.cssText =
    "margin:4px 8px 4px 0;padding:2px 10px;font-size:13px;cursor:pointer;border-radius:3px;" +
    "border:1px solid var(--jp-border-color1,#8886);" +
    "background:var(--jp-layout-color2,#eee);color:var(--jp-ui-font-color1,#222)";
  let asked = false;
  let armed = !sure;
  let calm = 0;
  const ask = () => {
    asked = true;
    made.textContent = sure;
    made.dataset.sure = "";
    setTimeout(() => {
      clearTimeout(calm);
      asked = armed = false;
      delete made.dataset.sure;
      delete made.dataset.armed;
      if (!made.disabled) made.textContent = label;
    }, SURE_MS);
  };
  made.addEventListener("click", async (event) => {
    event.stopPropagation();
    if (!armed) {
      if (!asked) ask();
      clearTimeout(calm);
      calm = setTimeout(() => {
        armed = true;
        made.dataset.armed = "";
      }, CALM_MS);
      return;
    }
    made.disabled = true;
    await act();
    made.disabled = false;
    made.textContent = label;
  });
  return made;
}

/** The paths of a run and of a group. */
const runPath = (runId) => `/runs/${encodeURIComponent(runId)}`;
const groupPath = (group) => `/groups/${encodeURIComponent(group)}`;

/** Sends an order for a run or a group and says on `element` what went wrong with it. */
async function order(server, element, path, verb) {
  try {
    const response = await ask(server, "POST", `${path}/${verb}`);
    say(element, response.ok ? "" : (await problemIn(response)).words);
  } catch {
    say(element, AWAY.words);
  }
}

const RUN_ORDERS = {
  detach: { label: "Detach", title: "The cell ends, the run goes on" },
  cancel: { label: "Cancel", title: "Stop every process of this run" },
};
const GROUP_ORDERS = {
  detach: { label: "Detach", title: "The cell ends, the runs go on" },
  cancel: { label: "Cancel all", title: "Stop every process of every run of this group" },
};

/** Offers the available orders; a reader's focus stays on the button that it was on. */
function offer(server, element, path, known, { orders, status }) {
  const bar = part(element, "orders");
  const offered = `${orders} ${status}`;
  if (bar.dataset.offered === offered) return;
  bar.dataset.offered = offered;
  const focused = bar.querySelector(":focus")?.dataset.order;
  const buttons = orders.map((verb) => {
    const sure = verb === "cancel" && status === "active" ? "Really stop it?" : "";
    const { label, title } = known[verb];
    const made = button(label, sure, title, () => order(server, element, path, verb));
    made.dataset.order = verb;
    return made;
  });
  bar.replaceChildren(...buttons);
  buttons.find((made) => made.dataset.order === focused)?.focus();
}

/** Where text below a run's card is shown that still grows; twice where the notebook is open twice. */
function growing(runId) {
  return [...document.querySelectorAll(`[data-run="${CSS.escape(runId)}"][data-from]`)];
}

const kept = new WeakSet();

/** Keeps a card or a table up to date until what it shows has ended, however often a page asks. */
function keepShown(element, path, orders, also = () => {}, more = undefined) {
  const server = pageServer();
  if (server === null || kept.has(element)) return;
  kept.add(element);
  const told = element.dataset.note || "";
  if (told) say(element, told);
  const show = (now, answer) => {
    refill(part(now, "body"), answer.html);
    also(answer);
    offer(server, now, path, orders, answer);
    now.dataset.status = answer.status;
    return answer.status !== "ended";
  };
  follow(server, new WeakRef(element), `${path}/card`, show, tellOf(told), more);
}

/** One run's card. */
function card(element, runId) {
  const showRest = (answer) => {
    for (const text of growing(runId)) {
      if (text.dataset.from === String(answer.rest?.start)) refill(text, answer.rest.html);
    }
  };
  // Output behind this byte is shown below the card, by the cell that waits.
  const until = element.dataset.until;
  const more = () => {
    if (!until) return "";
    const from = growing(runId).map((text) => `&rest=${encodeURIComponent(text.dataset.from)}`);
    return `&until=${encodeURIComponent(until)}${from.at(-1) ?? ""}`;
  };
  keepShown(element, runPath(runId), RUN_ORDERS, showRest, more);
}

/** Returns what says on an element that there is nothing new, and why; an unknown one has no buttons. */
function tellOf(told) {
  return (now, problem) => {
    sayProblem(now, problem, told);
    if (problem?.unknown) part(now, "orders").replaceChildren();
  };
}

/** One group's table. */
function group(element, groupId) {
  keepShown(element, groupPath(groupId), GROUP_ORDERS);
}

/** Whether a new table would move something that is about to be pressed. */
function inHand(body) {
  return body.querySelector("button:hover, button:disabled, button[data-sure]") !== null;
}

/** Puts a button before each row of a run that can be stopped, and nothing before the others. */
function addButtons(server, element, table, runs) {
  const [head, ...rows] = table.rows;
  const column = [...head.cells].findIndex((cell) => cell.textContent === "run");
  const stoppable = (row) => column >= 0 && Object.hasOwn(runs, row.cells[column].textContent);
  if (!rows.some(stoppable)) return;
  for (const row of rows) {
    const runId = row.cells[column].textContent;
    const place = row.insertCell(0);
    if (!Object.hasOwn(runs, runId)) continue;
    const sure = runs[runId] === "active" ? "Really stop it?" : "";
    const title = `Stop every process of ${runId}`;
    const made = button("Cancel", sure, title, () => order(server, element, runPath(runId), "cancel"));
    Object.assign(made.style, { margin: "0 8px 0 0", padding: "0 6px", fontSize: "12px" });
    place.style.verticalAlign = "top";
    place.append(made);
  }
  head.insertCell(0);
}

/** The whole gate: what runs, what waits, whose the memory is. */
function panel(element) {
  const server = pageServer();
  if (server === null) return false;
  let newest = null;
  let heldSince = 0;
  const fill = (now) => {
    const body = part(now, "body");
    body.style.overflowX = "auto"; // a widget's place cuts off what is too wide for it
    if (newest === null) return;
    if (inHand(body) && Date.now() - heldSince < SURE_MS) {
      setTimeout(() => fill(now), PACE_MS);
      return;
    }
    const { html, runs } = newest;
    newest = null;
    const focused = body.querySelector("button:focus")?.title;
    refill(body, html);
    for (const table of body.querySelectorAll("table")) addButtons(server, now, table, runs);
    if (focused) [...body.querySelectorAll("button")].find((b) => b.title === focused)?.focus();
  };
  const show = (now, answer) => {
    if (newest === null) heldSince = Date.now();
    newest = answer;
    fill(now);
    return true;
  };
  const tell = (now, problem) => sayProblem(now, problem, "");
  follow(server, new WeakRef(element), "/panel", show, tell);
  return true;
}

export { card, group, panel };
