"""An identity provider that treats cookies as JupyterHub does: a cookie alone is not enough."""

from __future__ import annotations

from typing import Any

from jupyter_server.auth.identity import IdentityProvider, User
from tornado.web import HTTPError, RequestHandler


class HubIdentity(IdentityProvider):
    """Accepts a cookie in a script's request only with the XSRF token of the page.

    A token opens a page but does not authorize its scripts: pages of a hub have no token.
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
