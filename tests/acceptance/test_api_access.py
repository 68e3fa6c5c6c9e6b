"""Who may do what, walked over every route that a real server has."""

from __future__ import annotations

import http.cookiejar
import json
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpugate.server.http import handlers
from tests.kit.real_server import Answer, Places, Served, end_everything_of, extensions

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
ACTIONS = {
    **dict.fromkeys(("GET", "HEAD", "OPTIONS"), "read"),
    "POST": "execute",
    **dict.fromkeys(("PUT", "PATCH", "DELETE"), "write"),
}

#: An extension beside ours: it writes down the routes of the application that serves them, and lets
#: an authorizer refuse the actions that its file names.
PROBE = """
import json, os
from jupyter_server.auth import Authorizer
from tornado.ioloop import IOLoop
from tornado.routing import RuleRouter
from tornado.web import RequestHandler

HERE = os.path.dirname(__file__)


class Denying(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        with open(os.path.join(HERE, "denied")) as denied:
            return (resource, action) not in [("gpugate", word) for word in denied.read().split()]


def patterns(router):
    for rule in router.rules:
        if isinstance(rule.target, RuleRouter):
            yield from patterns(rule.target)
        elif hasattr(rule.matcher, "regex"):
            yield rule.matcher.regex.pattern


def _jupyter_server_extension_points():
    return [{"module": "probe_of_routes"}]


class Open(RequestHandler):
    def get(self):
        self.finish("anybody may read this")


def _load_jupyter_server_extension(app):
    app.web_app.add_handlers(".*$", [("/a%40b/open", Open)])
    def write():
        found = sorted(set(patterns(app.web_app.default_router)))
        with open(os.path.join(HERE, "routes"), "w") as routes:
            json.dump(found, routes)
    IOLoop.current().add_callback(write)
"""


@pytest.fixture(scope="module")
def probing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that allows nobody in unauthenticated, with the probe in it."""
    places = Places(tmp_path_factory.mktemp("probed"))
    folder = places.root / "probe"
    folder.mkdir()
    (folder / "probe_of_routes.py").write_text(PROBE)
    (folder / "denied").write_text("")
    served = Served(
        places,
        extensions(probe_of_routes=True),
        "--ServerApp.authorizer_class=probe_of_routes.Denying",
        "--ServerApp.allow_unauthenticated_access=False",
        "--ServerApp.base_url=/a%40b/",
        ready="/a%40b/gpugate/api/v1/machine",
        PYTHONPATH=str(folder),
    )
    yield served
    served.stop()
    end_everything_of(places)
    shutil.rmtree(places.runtime, ignore_errors=True)


@pytest.fixture
def probed(probing: Served) -> Served:
    """The probed server, which denies nothing so far."""
    (probing.places.root / "probe" / "denied").write_text("")
    return probing


def ask(served: Served, method: str, path: str, token: str = "", **headers: str) -> Answer:
    """One request that follows no redirect."""
    body = b"{}" if method in ("POST", "PUT", "PATCH") else None
    request = urllib.request.Request(served.url + path, data=body, method=method)  # noqa: S310
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    if token:
        request.add_header("Authorization", f"token {token}")
    try:
        with urllib.request.build_opener(Stays).open(request) as response:
            return Answer(response.status, dict(response.headers), response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, dict(error.headers), error.read())


class Stays(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other."""

    def redirect_request(self, *_: Any) -> None:
        return None


def routes(served: Served) -> list[str]:
    """A path for every route of ours: of the server's application, and of the gate's behind it."""
    patterns = json.loads((served.places.root / "probe" / "routes").read_text())
    ours = [pattern.rstrip("$") for pattern in patterns if "gpugate" in pattern]
    paths: list[str] = []
    for pattern in ours:
        plain = re.sub(r"\\(.)", r"\1", pattern)
        behind = [handler.path for handler in handlers.HANDLERS] if "(" in plain else [""]
        paths += [re.sub(r"/?\(.*\)", "", plain) + path for path in [*behind]]
    return [_filled(path) for path in paths]


#: Placeholders of paths, with ids of their form.
IDS = {"{run_id}": "20260101-000000-abcde", "{group_id}": "g20260101-000001-abcde"}


def _filled(path: str) -> str:
    for name, value in IDS.items():
        path = path.replace(name, value)
    return path


def test_a_stranger_is_refused_on_every_route(probed: Served) -> None:
    """Without the token each method of each route is a 403 in our form: never 200, no redirect."""
    walked = routes(probed)
    assert len(walked) > len(handlers.HANDLERS)
    for path in walked:
        for method in METHODS:
            for token in ("", "wrong"):
                # The XSRF check is passed, so that nothing but the missing token is in the way.
                answer = ask(probed, method, path, token, Cookie="_xsrf=6f", X_XSRFToken="6f")
                assert answer.status == 403, (method, path, answer.status)
                if method != "HEAD":
                    assert set(answer.json) == {"error", "message", "detail"}
    assert not (probed.places.runs).exists() or not list(probed.places.runs.glob("2*"))


def test_a_browsers_question_before_a_request_tells_nothing(probed: Served) -> None:
    """A preflight is answered without a token, as in all of the server, and has no content."""
    path = next(p for p in routes(probed) if p.endswith("/queue"))
    answer = ask(probed, "OPTIONS", path, Access_Control_Request_Method="GET")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("denied", ["read", "execute", "write"])
def test_each_action_can_be_denied_by_itself(probed: Served, denied: str) -> None:
    """An authorizer that denies an action of `gpugate` denies exactly the methods that it means."""
    (probed.places.root / "probe" / "denied").write_text(denied)
    for path in routes(probed):
        for method in METHODS:
            answer = ask(probed, method, path, probed.token)
            refused = answer.status == 403
            assert refused == (ACTIONS[method] == denied), (method, path, answer.status)


def test_a_method_that_does_not_exist_is_said_clearly(probed: Served) -> None:
    """Any other method is a 405 in our form that names those there are; another path a 404."""
    described = json.loads(handlers.described())["paths"]
    for path in routes(probed):
        plain = path.partition("/api/v1")[2]
        for name, value in IDS.items():
            plain = plain.replace(value, name)
        there = {method.upper() for method in described.get(plain, {"get": {}})}
        for method in set(METHODS) - there:
            answer = ask(probed, method, path, probed.token)
            assert answer.status == 405, (method, path, answer.status)
            assert set(answer.headers["allow"].split(", ")) == there
            if method != "HEAD":
                assert answer.json["error"] == "bad_method"
    assert ask(probed, "GET", "/a%40b/gpugate/api/v1/nothing", probed.token).json["error"] == (
        "not_found"
    )


def test_no_handler_of_ours_is_left_open(probed: Served) -> None:
    """A server that allows no unauthenticated access starts without a word about our handlers."""
    lines = [line for line in probed.log.read_text().splitlines() if " registered for " in line]
    assert any("GET of Open registered" in line for line in lines)  # so it would be said
    assert [line for line in lines if "gpugate" in line] == []


def test_a_cookie_is_worth_nothing_without_its_twin(server: Served) -> None:
    """Whoever is logged in by a cookie writes with the XSRF token and as JSON, or not at all."""
    jar = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    for page in ("/login", f"/api/status?token={server.token}"):
        browser.open(server.url + page).close()

    def send(method: str, path: str, **headers: str) -> int:
        body = b"{}" if method == "POST" else None
        request = urllib.request.Request(  # noqa: S310 - a server of this test's own
            f"{server.url}/gpugate/api/v1{path}", data=body, method=method
        )
        for name, value in headers.items():
            request.add_header(name, value)
        try:
            with browser.open(request) as response:
                status: int = response.status
                return status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    assert send("GET", "/queue") == 200
    assert (send("POST", "/drain"), send("DELETE", "/drain")) == (403, 403)
    assert server.queue()["draining"] is None
    (twin,) = [cookie.value for cookie in jar if cookie.name == "_xsrf"]
    assert twin is not None
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""):
        assert send("POST", "/drain", **{"X-XSRFToken": twin, "Content-Type": kind}) == 415
    assert server.queue()["draining"] is None
    kind = "application/json; charset=utf-8"
    assert send("POST", "/drain", **{"X-XSRFToken": twin, "Content-Type": kind}) == 200
    assert send("DELETE", f"/drain?_xsrf={twin}") == 200


def test_what_a_browser_adds_is_not_the_gates_business(shared_server: Served) -> None:
    """A token, the time against caches and `no_track_activity` in a query are no options; one that
    is left empty is.
    """
    for query in (f"token={shared_server.token}", "1764443999123", "no_track_activity=1"):
        assert shared_server.ask("GET", f"/queue?{query}").status == 200
    assert shared_server.ask("GET", "/runs?name=").json["detail"]["field"] == "name"


@pytest.mark.parametrize("path", ["/runs/a%0d%0aX:y", "/runs/a%20b", "/%2e%2e/%2e%2e/lease/v1/x"])
def test_a_path_is_passed_on_as_it_came(shared_server: Served, path: str) -> None:
    """What is quoted stays quoted: no path reaches anything but the API."""
    answer = shared_server.ask("GET", path)
    assert (answer.status, answer.json["error"]) == (404, "not_found")


def test_the_list_of_routes_is_the_applications_own(probed: Served) -> None:
    """The walk found the API and whatever else the extension serves, by asking the application."""
    assert any(path.endswith("live.js") for path in routes(probed))
    assert Path(probed.places.root, "probe", "routes").exists()
