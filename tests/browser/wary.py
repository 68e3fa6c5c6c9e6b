"""Who a server takes a page for that stands behind a hub: a cookie alone is not enough."""

from __future__ import annotations

from typing import Any

from jupyter_server.auth.identity import IdentityProvider, User
from tornado.web import HTTPError, RequestHandler


class WaryIdentity(IdentityProvider):
    """Cookies count in a script's requests only with the page's own mark, as JupyterHub has it.

    A token opens a page and is worth nothing to the scripts on it: a hub's pages have none.
    """

    def get_token(self, handler: Any) -> str | None:
        return None if _is_by_script(handler) else super().get_token(handler)

    def get_user_cookie(self, handler: Any) -> Any:
        if _is_by_script(handler):
            try:
                RequestHandler.check_xsrf_cookie(handler)
            except HTTPError:
                return None
        user: User | None = super().get_user_cookie(handler)  # type: ignore[assignment]
        return user


def _is_by_script(handler: Any) -> bool:
    return handler.request.headers.get("Sec-Fetch-Mode") in ("cors", "same-origin")
