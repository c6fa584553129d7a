"""The one HTTP client of the sinks: bounded in time and size, follows no redirect, shows no URL.

Touches: the network. httpx is imported with the first request.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from nvrx_chain.errors import UsageError
from nvrx_watch.plain_text import plain
from nvrx_watch.sinks.secret import Secret, mask
from nvrx_watch.sinks.sink import SinkError

if TYPE_CHECKING:
    import httpx

DEFAULT_TIMEOUT_SECONDS = 5.0
_SHORTEST_TIMEOUT_SECONDS = 0.1
_MAX_REPLY_BYTES = 4096
_LONGEST_EXCERPT = 200
_RETRY_STATUSES = frozenset({408, 425, 429})


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP answer. `excerpt` has the beginning of the body of anything but a success, without the secrets."""

    status: int
    content_type: str
    retry_after_seconds: float | None
    location: str
    excerpt: str

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class Http:
    """Sends single requests. Threads may share it."""

    def __init__(self, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._client: httpx.Client | None = None
        self._lock = threading.Lock()

    def post(
        self, url: Secret, body: Mapping[str, Any], *, deadline_seconds: float, hide: Secret | None = None
    ) -> Reply:
        """Post JSON. Raises SinkError when there is no answer; `hide` is a further secret that a reply may echo."""
        return self._request("POST", url, body, deadline_seconds, (url,) if hide is None else (url, hide))

    def get(self, url: Secret, *, deadline_seconds: float) -> Reply:
        """Get. Raises SinkError when there is no answer."""
        return self._request("GET", url, None, deadline_seconds, (url,))

    def close(self) -> None:
        """Let go of the client."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _request(
        self,
        method: str,
        url: Secret,
        body: Mapping[str, Any] | None,
        deadline_seconds: float,
        secrets: tuple[Secret, ...],
    ) -> Reply:
        import httpx

        client = self._open()
        until = time.monotonic() + deadline_seconds
        patience = max(_SHORTEST_TIMEOUT_SECONDS, min(self._timeout_seconds, deadline_seconds))
        try:
            with client.stream(method, url.reveal(), json=body, timeout=patience) as response:
                excerpt = "" if response.is_success else _read_excerpt(response, until)
                return _reply(response, excerpt, secrets)
        except httpx.TimeoutException as error:
            words = "no connection" if isinstance(error, httpx.ConnectTimeout) else "no answer"
            raise SinkError(f"asking {mask(url)}: {words} within {patience:g} s") from None
        except httpx.RemoteProtocolError:
            raise SinkError(f"asking {mask(url)}: what answered does not speak HTTP, or broke off") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            # The text of the library can hold the URL: only the kind of error and the system's own words are shown.
            raise SinkError(f"asking {mask(url)}: {_cause(error)}") from None

    def _open(self) -> httpx.Client:
        import httpx

        with self._lock:
            if self._client is None:
                hide_urls_of_libraries()
                try:
                    self._client = httpx.Client(
                        follow_redirects=False,
                        headers={"User-Agent": "nvrx-watch"},
                        # A connection that is kept is closed by the other side between two passes.
                        limits=httpx.Limits(max_keepalive_connections=0),
                    )
                except (ValueError, ImportError, OSError):
                    # The text can hold a proxy URL with a password.
                    raise SinkError(
                        "opening the HTTP client",
                        hint="look at the proxy and certificate variables of the environment, e.g. HTTPS_PROXY",
                    ) from None
            return self._client


def require_httpx() -> None:
    """Raise UsageError when httpx is not installed: that is said at the start, not by the first page that is lost."""
    if importlib.util.find_spec("httpx") is None:
        raise UsageError("sending messages needs httpx", hint="pip install httpx")


def hide_urls_of_libraries() -> None:
    """Keep the URLs of requests out of the log: at INFO and DEBUG these libraries write them in full."""
    for name in ("httpx", "httpcore", "urllib3", "requests"):
        logging.getLogger(name).setLevel(logging.WARNING)


def refusal(reply: Reply, url: Secret) -> SinkError:
    """What an answer that is no acceptance means. A redirect is not followed: it would take the secrets elsewhere."""
    if 300 <= reply.status < 400:
        where = f" to {mask(reply.location)}" if reply.location else ""
        return SinkError(f"asking {mask(url)}: redirected{where}, which is not followed", hint="set the final URL")
    said = f": {reply.excerpt}" if reply.excerpt else ""
    return SinkError(
        f"asking {mask(url)}: status {reply.status}{said}",
        lasting=400 <= reply.status < 500 and reply.status not in _RETRY_STATUSES,
        retry_after_seconds=reply.retry_after_seconds,
    )


def _reply(response: httpx.Response, excerpt: str, secrets: tuple[Secret, ...]) -> Reply:
    for secret in secrets:
        excerpt = secret.scrub(excerpt)
    return Reply(
        status=response.status_code,
        content_type=response.headers.get("content-type", "").partition(";")[0].strip().lower(),
        retry_after_seconds=_retry_after(response.headers.get("retry-after", "")),
        location=response.headers.get("location", ""),
        excerpt=plain(excerpt, _LONGEST_EXCERPT),
    )


def _read_excerpt(response: httpx.Response, until: float) -> str:
    import httpx

    content = b""
    # The status is known; a body that breaks off, or never ends, changes nothing about it.
    with contextlib.suppress(httpx.HTTPError, httpx.StreamError):
        for chunk in _chunks(response):
            content += chunk
            if len(content) >= _MAX_REPLY_BYTES or time.monotonic() >= until:
                break
    return content[:_MAX_REPLY_BYTES].decode("utf-8", "replace").strip()


def _chunks(response: httpx.Response) -> Iterator[bytes]:
    # Raw: a small compressed body can unpack to gigabytes.
    return response.iter_raw()


def _retry_after(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() and len(text) <= 6 else None


def _cause(error: BaseException) -> str:
    import ssl

    kind = type(error).__name__
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            break
        if isinstance(seen, ssl.SSLCertVerificationError):
            return f"{kind}: {plain(seen.verify_message, _LONGEST_EXCERPT)}"
        if isinstance(seen, socket.gaierror):
            return f"{kind}: the host name is not known"
        if isinstance(seen, OSError) and seen.strerror:
            return f"{kind}: {plain(seen.strerror, _LONGEST_EXCERPT)}"
        seen = seen.__cause__ or seen.__context__
    return kind
