"""What every HTTP request passes first: its size, the bearer token, and the counters.

The token itself is read once, by the process that starts the service; only its digest travels, and nothing logs it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import time
from typing import Any

from rl_cluster.errors import ConfigError
from rl_cluster.service.metrics import ServiceMetrics

MAX_BODY_BYTES = 8 << 20
"""Room for as many excluded ids as a search may have."""
OPEN_PATHS = ("/healthz", "/docs", "/openapi.json")


def token_digest(variable: str | None) -> str | None:
    """sha256 (hex) of the token in an environment variable; None where none is named. Raises ConfigError where it is empty."""
    if variable is None:
        return None
    token = os.environ.get(variable, "")
    if not token:
        raise ConfigError(f"search.token_env={variable}: that environment variable is not set; set it to the token.")
    return hashlib.sha256(token.encode()).hexdigest()


class AccessControl:
    """ASGI middleware: 411 and 413 for bodies, 401 without the token, and a count of everything."""

    def __init__(self, app: Any, digest: str | None, metrics: ServiceMetrics):
        """`digest`: that of the token, or None where none is asked for."""
        self._app = app
        self._digest = digest
        self._metrics = metrics

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def counted(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        refusal = self._refusal(scope)
        try:
            if refusal is None:
                await self._app(scope, receive, counted)
            else:
                await _respond(counted, *refusal)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.http_request(route, status, time.perf_counter() - started)

    def _refusal(self, scope: dict[str, Any]) -> tuple[int, str, str] | None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        if self._digest is not None and path not in OPEN_PATHS and not self._holds_token(headers):
            return (
                401,
                "unauthorized",
                "The bearer token is missing or wrong; send the header Authorization: Bearer TOKEN.",
            )
        if scope["method"] in ("POST", "PUT", "PATCH"):
            length = headers.get(b"content-length", b"")
            if not length.isdigit():
                return 411, "length_required", "The request has no Content-Length; send its body in one piece."
            if int(length) > MAX_BODY_BYTES:
                return 413, "too_large", f"The body has {int(length)} bytes; send at most {MAX_BODY_BYTES}."
        return None

    def _holds_token(self, headers: dict[bytes, bytes]) -> bool:
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        presented = hashlib.sha256(token.strip()).hexdigest()
        return kind.lower() == b"bearer" and hmac.compare_digest(presented, self._digest or "")


async def _respond(send: Any, status: int, kind: str, message: str) -> None:
    body = json.dumps({"error": {"type": kind, "message": message}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
