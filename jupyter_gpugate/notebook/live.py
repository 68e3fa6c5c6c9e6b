"""Keeps one card up to date while its cell waits."""

from __future__ import annotations

import json
import os
import secrets
import sys
from html import escape
from typing import Any, Final

from IPython.display import display

from jupyter_gpugate.faces import card, groups
from jupyter_gpugate.faces.words import Json
from jupyter_gpugate.places import SOCKET_VARIABLE

_display: Any = display  # IPython gives it no types

#: Finds the script's address in a page of a Jupyter server, and throws elsewhere.  A server behind
#: a hub answers a cookie only with the page's own mark, and `import` sends no headers.
ADDRESS: Final = """\
const address = () => {
  const page = JSON.parse(document.getElementById("jupyter-config-data").textContent);
  const mark = document.cookie.match(/(?:^|;\\s*)_xsrf=([^;]*)/);
  const query = mark ? `?_xsrf=${encodeURIComponent(decodeURIComponent(mark[1]))}` : "";
  const path = page.baseUrl.replace(/\\/$/, "") + "/gpugate/static/live.js";
  return new URL(path + query, location.href).href;
};
"""
#: A page of a Jupyter server loads the card's script from there, with or without a kernel; any
#: other page, and one whose server lacks the extension, keeps what the card shows without it.
_SCRIPT: Final = """\
<script>(async () => {
%(address)s
// A notebook that is open twice in one page shows the card twice, under one name.
const find = () => document.querySelectorAll("#" + %(id)s);
const live = await import(address());
for (let n = 0; n < 100 && !find().length; n++) await new Promise((go) => setTimeout(go, 100));
for (const place of find()) live.%(shows)s(place, %(what)s);
})().catch(() => {})</script>"""


class LiveCard:
    """A display that is updated in place; in a plain terminal, a print at every turn of events."""

    def __init__(self, shell: Any) -> None:
        #: A terminal cannot update what it has printed.
        self.updates = getattr(shell, "kernel", None) is not None
        #: Content that the page's script updates is not rewritten under the reader's hand.
        self.scripted = SOCKET_VARIABLE in os.environ
        self._handle: Any = None
        self._shown: Any = None

    def show(self, run: Json, note: str = "") -> None:
        """Show the state and a note below it; nothing happens when both look the same."""
        each = self.updates and not self.scripted
        forms = self._forms(run, note) if each else self._turn(run, note)
        if forms == self._shown:
            return
        self._shown = forms
        if not self.updates:
            print(self._text(run, note))  # noqa: T201 - the terminal's display
        elif self._handle is None:
            self._handle = _display(self._bundle(run, note), raw=True, display_id=True)
        else:
            self._handle.update(self._bundle(run, note), raw=True)

    def _forms(self, run: Json, note: str) -> dict[str, str]:
        return card.bundle(card.without_traceback(run), note)

    def _bundle(self, run: Json, note: str) -> dict[str, str]:
        return bundle(card.without_traceback(run), note)

    def _text(self, run: Json, note: str) -> str:
        return card.text(card.without_traceback(run), note)

    def _turn(self, run: Json, note: str) -> tuple[Any, ...]:
        reasons = run.get("reasons") or [{}]
        kind, until = reasons[0].get("kind"), run.get("output_until")
        return (run.get("status"), run.get("phase"), kind, until, note)


class LiveGroup(LiveCard):
    """The same for the table of a group; a plain terminal gets a line, and the table at the end."""

    def _forms(self, run: Json, note: str) -> dict[str, str]:
        return groups.bundle(run, note)

    def _bundle(self, run: Json, note: str) -> dict[str, str]:
        return group_bundle(run, note)

    def _text(self, run: Json, note: str) -> str:
        if run.get("status") == "ended":
            return groups.text(run, note)
        return "; ".join(filter(None, (groups.title(run), note)))

    def _turn(self, run: Json, note: str) -> tuple[Any, ...]:
        return (run.get("status"), sorted((run.get("counts") or {}).items()), note)


def bundle(run: Json, note: str = "") -> dict[str, str]:
    """Both forms of a card by MIME type; the card of an unfinished run has a script of its own."""
    shown = card.bundle(run, note)
    if run.get("status") != "ended" and run.get("run_id"):
        # The page's script asks for no more of the output than this card has.
        until = "" if run.get("output_until") is None else int(run["output_until"])
        attributes = f'data-note="{escape(note, quote=True)}" data-until="{until}"'
        html = shown["text/html"]
        shown["text/html"] = _alive(html, "card", str(run["run_id"]), attributes)
    return shown


def group_bundle(group: Json, note: str = "") -> dict[str, str]:
    """Both forms of a group's table; that of an unfinished group has a script of its own."""
    shown = groups.bundle(group, note)
    if group.get("status") not in (None, "ended"):
        attributes = f'data-note="{escape(note, quote=True)}"'
        html = shown["text/html"]
        shown["text/html"] = _alive(html, "group", str(group["group"]), attributes)
    return shown


def _alive(html: str, shows: str, what: str, attributes: str) -> str:
    """Return content that the script of a page keeps up to date: a ``card`` or a ``group``."""
    place = f"gpugate-{secrets.token_hex(6)}"
    names = {"address": ADDRESS, "id": _quoted(place), "shows": shows, "what": _quoted(what)}
    return (
        f'<div id="{place}" {attributes}>'
        f'<div class="gpugate-body">{html}</div></div>{_SCRIPT % names}'
    )


def _quoted(text: str) -> str:
    # Nothing within a string literal may end the script around it.
    return json.dumps(text).replace("<", "\\u003c")


def is_interactive(shell: Any) -> bool:
    """Return whether a person is present, who could interrupt twice.

    A front end that cannot answer `input` (nbclient, papermill, nbconvert) is none; without a
    kernel, a terminal is one.
    """
    parent: Any = getattr(shell, "get_parent", dict)()
    content = parent.get("content") if isinstance(parent, dict) else None
    if content:
        return bool(content.get("allow_stdin", False))
    return sys.stdin is not None and sys.stdin.isatty()
