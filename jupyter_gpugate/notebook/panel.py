"""``%gpu_panel``: what runs, what waits and whose the memory is, kept up to date as a widget.

In a page of a Jupyter server the widget's own script asks that server, so it stays live and its
buttons work while the kernel is busy.  In any other page the kernel asks, from a thread.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from jupyter_gpugate.client.connection import Client, Pauses
from jupyter_gpugate.client.errors import GateError, GateUnreachable
from jupyter_gpugate.faces import tables
from jupyter_gpugate.notebook.live import ADDRESS

_WAIT_S: Final = 20.0
_SCRIPT: Final = (
    ADDRESS
    + """\
async function render({ model, el }) {
  const place = document.createElement("div");
  place.className = "gpugate-panel";
  el.append(place);
  try {
    const live = await import(address());
    if (live.panel(place)) return;
  } catch {
    // Not a page of a Jupyter server with the extension: the kernel is asked instead.
  }
  const show = () => { place.innerHTML = model.get("html"); };
  model.on("change:html", show);
  show();
  model.send({ "keep": true });
}
export default { render };
"""
)


def bundle(client: Client) -> dict[str, Any]:
    """The panel by MIME type: a widget, and the queue of this moment for where there is none.

    Raises `ImportError` without anywidget, `GateError` where the gate cannot be asked.
    """
    shown: dict[str, Any] = dict(tables.queue(client.queue()))
    view = _widget(client, shown["text/html"])._repr_mimebundle_()
    data = view[0] if isinstance(view, tuple) else view
    return {**data, **shown}


def _widget(client: Client, html: str) -> Any:
    import anywidget
    import traitlets

    class GatePanel(anywidget.AnyWidget):
        """The gate at a glance."""

        _esm = _SCRIPT
        html = traitlets.Unicode().tag(sync=True)

    widget = GatePanel(html=html)
    kept = threading.Lock()

    def keep(_widget: object, content: object, _buffers: object) -> None:
        # However many pages show it, one thread is enough.
        if content == {"keep": True} and kept.acquire(blocking=False):
            threading.Thread(
                target=_keep, args=(widget, client), name="gpugate-panel", daemon=True
            ).start()

    widget.on_msg(keep)
    return widget


def _keep(widget: Any, client: Client) -> None:
    """Send every change to the pages until the widget is closed; nothing is ever printed."""
    etag, pauses = "", Pauses()
    pause = threading.Event()
    while widget.comm is not None:
        query = {"wait": f"{_WAIT_S:g}", "etag": etag} if etag else {}
        try:
            answer = client.ask("GET", "/panel", query=query, extra_s=_WAIT_S)
        except GateUnreachable:
            pause.wait(pauses.next())
            continue
        except GateError:
            return
        etag, pauses = answer.etag or "", Pauses()
        if answer.body is not None:
            widget.html = answer.body["html"]
        pause.wait(1.0)
