"""Secrets show themselves to nobody who did not ask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_watch.sinks.secret import Secret, mask


def test_a_secret_has_no_text() -> None:
    secret = Secret("hunter2-long")
    assert "hunter2" not in f"{secret} {secret!r} {[secret]} {secret!s:>30}"
    assert secret.reveal() == "hunter2-long"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.slack.com/services/T0/B0/xyz", "https://hooks.slack.com/***"),
        ("https://user:pass@host.example:8443/a?b=c#d", "https://host.example/***"),
        ("slack://TokenA/TokenB/TokenC", "slack://***"),
        ("mailto://user:pass@gmail.com", "mailto://***"),
        ("tokenonly", "***"),
        ("", "***"),
        ("https://[::1", "***"),
    ],
)
def test_a_masked_url_keeps_scheme_and_host_only(url: str, shown: str) -> None:
    assert mask(url) == shown
    assert mask(Secret(url)) == shown


def test_an_echo_is_scrubbed_whole_in_pieces_and_decoded() -> None:
    secret = Secret("https://h.example/hook/ab%20cdTOKEN?key=QUERYTOKEN")
    echo = "no /hook/ab%20cdTOKEN, ab cdTOKEN; QUERYTOKEN ?key=QUERYTOKEN https://h.example/hook/ab%20cdTOKEN?key=QUERYTOKEN"
    assert "TOKEN" not in secret.scrub(echo)


@given(st.text(), st.text())
def test_nothing_that_is_scrubbed_or_masked_crashes(secret: str, text: str) -> None:
    mask(secret)
    assert not secret or secret not in Secret(secret).scrub(text) or secret in "***"
