"""A chat endpoint on localhost that answers as it is told, for tests of what talks to one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]
"""Status and body: an object becomes JSON, a text stays as it is."""


@dataclass
class ChatServer:
    """`answer` is asked for each request; the bodies and headers of all requests are kept."""

    url: str
    answer: Callable[[dict[str, Any]], Answer]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def completion(content: str | None = None, calls: list[tuple[str, dict[str, Any]]] | None = None) -> Answer:
    """A usual answer: text, or tool calls."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"call-{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for i, (name, arguments) in enumerate(calls)
        ]
    reason = "tool_calls" if calls else "stop"
    usage = {"prompt_tokens": 30, "completion_tokens": 7}
    return 200, {"choices": [{"message": message, "finish_reason": reason}], "usage": usage}


@contextmanager
def chat_server(answer: Callable[[dict[str, Any]], Answer]) -> Iterator[ChatServer]:
    """Serves until the block ends."""
    state = ChatServer("", answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.bodies.append(body)
            state.headers.append(dict(self.headers))
            status, content = state.answer(body)
            data = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            if status == 429:
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Tests are quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
