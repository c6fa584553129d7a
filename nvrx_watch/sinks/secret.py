"""Keys and URLs with tokens, which no log, error or repr may show. Pure."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from nvrx_chain.errors import UsageError

HIDDEN = "***"
_SHORTEST_PIECE = 4


class Secret:
    """A text that shows itself only to `reveal`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return f"Secret({HIDDEN!r})"

    __str__ = __repr__

    def reveal(self) -> str:
        """The text itself, for the one call that needs it."""
        return self._text

    def scrub(self, text: str) -> str:
        """`text` of somebody else (a reply may echo the request) without this secret or a telling piece of it."""
        for piece in sorted(_pieces(self._text), key=len, reverse=True):
            text = text.replace(piece, HIDDEN)
        return text


def mask(url: Secret | str) -> str:
    """Scheme and host of a web URL. Of any other only the scheme: `slack://` and its like carry a token as the host."""
    text = url.reveal() if isinstance(url, Secret) else url
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError:
        return HIDDEN
    if parts.scheme in ("http", "https") and host and host.isprintable():
        return f"{parts.scheme}://{host}/{HIDDEN}"
    is_word = parts.scheme.isascii() and parts.scheme.isalnum() and len(parts.scheme) <= 20
    return f"{parts.scheme}://{HIDDEN}" if is_word else HIDDEN


def web_url(text: str, option: str) -> Secret:
    """A URL that can be asked for. Raises UsageError, which does not show it."""
    hint = "a URL begins with https:// or http:// and a host"
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        # Reading the port is what checks it.
        usable = usable and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not text.isprintable() or " " in text:
        raise UsageError("reading the URL of a sink: it is none", part=option, hint=hint)
    return Secret(text)


def _pieces(secret: str) -> set[str]:
    found = {secret}
    try:
        parts = urlsplit(secret)
        words = [parts.path, parts.query, parts.username or "", parts.password or ""]
    except ValueError:
        words = []
    for word in list(words):
        words.extend(word.replace("&", "/").replace("=", "/").split("/"))
    found.update(words)
    found.update(unquote(word) for word in words)
    # A shorter piece gives nothing away, and hiding it would make the text unreadable.
    return {piece for piece in found if len(piece) >= _SHORTEST_PIECE or piece == secret} - {""}
