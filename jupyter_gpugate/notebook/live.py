"""Keeps one card up to date while its cell waits."""

from __future__ import annotations

import json
import os
import secrets
from html import escape
from typing import Any, Final

from IPython.display import display

from jupyter_gpugate.faces import card
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
for (const place of find()) live.card(place, %(run_id)s);
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
        """Show the run's state and a note below it; nothing happens when both look the same."""
        shown = card.without_traceback(run)
        each = self.updates and not self.scripted
        forms = card.bundle(shown, note) if each else _turn(run, note)
        if forms == self._shown:
            return
        self._shown = forms
        if not self.updates:
            print(card.text(shown, note))  # noqa: T201 - the terminal's display
        elif self._handle is None:
            self._handle = _display(bundle(shown, note), raw=True, display_id=True)
        else:
            self._handle.update(bundle(shown, note), raw=True)


def bundle(run: Json, note: str = "") -> dict[str, str]:
    """Both forms of a card by MIME type; the card of an unfinished run has a script of its own."""
    shown = card.bundle(run, note)
    if run.get("status") != "ended" and run.get("run_id"):
        shown["text/html"] = _alive(shown["text/html"], run, note)
    return shown


def _alive(html: str, run: Json, note: str) -> str:
    place = f"gpugate-{secrets.token_hex(6)}"
    run_id = _quoted(str(run.get("run_id")))
    # The page's script asks for no more of the output than this card has.
    until = "" if run.get("output_until") is None else int(run["output_until"])
    names = {"address": ADDRESS, "id": _quoted(place), "run_id": run_id}
    return (
        f'<div id="{place}" data-note="{escape(note, quote=True)}" data-until="{until}">'
        f'<div class="gpugate-body">{html}</div></div>{_SCRIPT % names}'
    )


def _quoted(text: str) -> str:
    # Nothing within a string literal may end the script around it.
    return json.dumps(text).replace("<", "\\u003c")


def _turn(run: Json, note: str) -> tuple[Any, ...]:
    reasons = run.get("reasons") or [{}]
    kind, until = reasons[0].get("kind"), run.get("output_until")
    return (run.get("status"), run.get("phase"), run.get("ready"), kind, until, note)
