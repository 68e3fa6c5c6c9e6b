"""A page whose server is a stand-in: it knows what a test tells it, and nothing else happens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import BrowserContext, Request, Route

import jupyter_gpugate
from tests.browser.notebook_page import PATIENCE_MS
from tests.kit.real_server import until

SCRIPT = Path(jupyter_gpugate.__file__).parent / "server" / "static" / "live.js"
#: Where a server of a hub would be, below a path of its own.
ORIGIN, BASE, TOKEN = "http://gate.test", "/user/ada", "a-token"
API, STATIC = f"{BASE}/gpugate/api/v1", f"{BASE}/gpugate/static/live.js"
CONFIG = json.dumps({"baseUrl": f"{BASE}/", "token": TOKEN})
AWAY = 0
#: When a page gives a question up.
LOST_MS = 60_000
#: All shorter timers of the page run twenty times faster than a reader's.
_FASTER = """\
const timer = setTimeout;
globalThis.setTimeout = (act, ms) => timer(act, ms < {limit} ? ms / 20 : {lost_ms});
"""
_NEW = "async ([kind, name, run]) => { const place = document.createElement('div'); "
_NEW += "place.id = name; document.body.append(place); "
_NEW += f"(await import('{STATIC}'))[kind](place, run); }}"


class Page:
    """A page with cards and panels, and its server."""

    def __init__(self, context: BrowserContext, body: str = "", lost_ms: int = LOST_MS) -> None:
        self.questions: Counter[str] = Counter()
        self.orders: list[Request] = []
        self.asked: list[Request] = []
        self.most_held = 0
        self._body = body
        self._answers: dict[str, tuple[int, Any]] = {}
        self._held: list[tuple[str, Route]] = []
        context.add_cookies([{"name": "_xsrf", "value": "2|abc", "url": ORIGIN}])
        context.route("**/*", self._serve)
        context.on("requestfailed", self._lose)
        context.add_init_script(_FASTER.format(limit=LOST_MS, lost_ms=lost_ms))
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.goto(f"{ORIGIN}{BASE}/lab")

    def close(self) -> None:
        """Close the page and let nobody wait any more."""
        for _, route in self._held:
            route.abort()
        self.page.context.close()

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Serve the page until a condition holds."""
        until(lambda: self.page.title() is not None and condition(), what)

    def answers(self, path: str, body: Any, status: int = 200) -> None:
        """Answer so from now on, those who wait for news as well."""
        self._answers[path] = status, body
        held, self._held = self._held, []
        for whose, route in held:
            if whose == path:
                self._answer(path, route)
            else:
                self._held.append((whose, route))

    def card(self, run_id: str, html: str = "", status: str = "active", *orders: str) -> None:
        """Answer so about a run's card."""
        self.answers(f"/runs/{run_id}/card", {"html": html, "status": status, "orders": orders})

    def panel(self, html: str, **runs: str) -> None:
        """Answer so about the panel."""
        self.answers("/panel", {"html": html, "runs": runs})

    def show(self, kind: str, name: str, run_id: str = "") -> Any:
        """Put a live card or panel onto the page; its place."""
        self.page.evaluate(_NEW, [kind, name, run_id])
        return self.page.locator(f"#{name}")

    # -- the server -----------------------------------------------------------------------------

    def _serve(self, route: Route) -> None:
        address = urlsplit(route.request.url)
        if address.path == STATIC:
            route.fulfill(path=SCRIPT, content_type="text/javascript")
        elif not address.path.startswith(API):
            config = f'<script id="jupyter-config-data" type="application/json">{CONFIG}</script>'
            route.fulfill(body=f"<!doctype html>{config}{self._body}", content_type="text/html")
        elif route.request.method == "POST":
            self.orders.append(route.request)
            self._answer(address.path.removeprefix(API), route)
        else:
            self._hear(address.path.removeprefix(API), parse_qs(address.query), route)

    def _hear(self, path: str, asked: dict[str, list[str]], route: Route) -> None:
        self.asked.append(route.request)
        self.questions[path] += 1
        if path not in self._answers:
            self._held.append((path, route))
        elif asked.get("etag") != [self._tag(path)]:
            self._answer(path, route)
        elif "wait" in asked:
            self._held.append((path, route))
            self.most_held = max(self.most_held, len(self._held))
        else:
            route.fulfill(status=304)

    def _lose(self, request: Request) -> None:
        self._held = [(path, route) for path, route in self._held if route.request != request]

    def _tag(self, path: str) -> str:
        return json.dumps(json.dumps(self._answers.get(path)))  # a string within quotes

    def _answer(self, path: str, route: Route) -> None:
        status, body = self._answers.get(path, (200, {}))
        if status == AWAY:
            route.abort()
            return
        text = body if isinstance(body, str) else json.dumps(body)
        route.fulfill(status=status, headers={"ETag": self._tag(path)}, body=text)
