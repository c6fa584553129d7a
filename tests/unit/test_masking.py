"""What looks like a secret is hidden, in text, in words and by name; what a training needs to be read stays."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.errors import NvrxError
from nvrx_chain.masking import HIDDEN, is_secret_name, mask_assignment, mask_text, mask_words

SECRET_NAMES = [
    "HF_TOKEN",
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "DB_PASSWORD",
    "PGPASSWD",
    "KEY",
    "apiKey",
    "hub.token",
    "--auth-token",
    "AUTH",
    "--api-key",
    "GITHUB_PAT",
    "MY_CREDENTIALS",
    "PASSPHRASE",
    "SSH_AUTH_SOCK",
    "MASTER_KEY",
    "++logger.wandb.token",
]
PLAIN_NAMES = [
    "TOKENIZER",
    "--tokenizer-type",
    "max_tokens",
    "--eos-token",
    "--text-key",
    "AUTHOR",
    "HF_TOKEN_PATH",
    "--token-budget",
    "PWD",
    "monkey",
    "keys",
    "--target-iteration",
    "AWS_ACCESS_KEY_ID",
    "--lr",
    "NCCL_DEBUG",
    "tokens_per_batch",
    "--api-key-file",
]
SECRETS = (
    "hf_AbCdEfGhIjKlMnOpQr",
    "sk-proj-0123456789abcdef",
    "nvapi-0123456789_abcdef",
    "ghp_0123456789abcdef01",
    "glpat-0123456789ab",
    "xoxb-12345678-abcdefgh",
    "AKIA0123456789ABCDEF",
    "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJ",
)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_value_under_such_a_name_is_hidden_however_it_is_written(name: str) -> None:
    assert is_secret_name(name)
    for text in (f"{name}=hunter2", f"x {name}='hunter two' y", f'{name}="hunter2"'):
        assert "hunter" not in mask_text(text)
    assert mask_words((f"{name}=hunter two", "x")) == (f"{name}={HIDDEN}", "x")
    if name.startswith("--"):
        assert mask_words((name, "hunter2", "--lr", "1")) == (name, HIDDEN, "--lr", "1")
        assert mask_text(f"python t.py {name} hunter2 --lr 1") == f"python t.py {name} {HIDDEN} --lr 1"


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_a_value_under_any_other_name_stays(name: str) -> None:
    assert not is_secret_name(name)
    words = (f"{name}=7", name, "8", "x")
    assert mask_words(words) == words
    assert mask_text(" ".join(words)) == " ".join(words)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_value_with_the_look_of_a_secret_is_hidden_wherever_it_stands(secret: str) -> None:
    for text in (secret, f"--lr={secret}", f"curl https://x/?a={secret}&b=1", f"'{secret}'", f"bash -c 'x {secret}'"):
        assert secret not in mask_text(text)
        assert secret not in " ".join(mask_words((text, "x")))


@pytest.mark.parametrize("url", ["https://me:pw@host/x", "postgres://me:p%40w@host:1/db", "https://pw@host"])
def test_of_a_url_the_password_is_hidden_and_the_host_stays(url: str) -> None:
    masked = mask_text(f"at {url} end")
    assert "pw" not in masked
    assert "p%40w" not in masked
    assert "host" in masked


@pytest.mark.parametrize(
    "text",
    [
        "/data/hf_llama/run-1",
        "git@github.com:x/y",
        "task-based disk-1234567890",
        "nvrx-chain:0123456789ab/1",
        "reading the routing key: there is no such file",
        "python -m nvrx_chain.workloads.mock_gpt --target-iteration 100",
        "user@node: command not found",
        "--partition=main,long --mem=0 --constraint=a&b",
        'pd-routing-key is a number, not a text (write pd-routing-key = "...")',
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert mask_text(text) == text
    assert mask_words(tuple(text.split())) == tuple(text.split())


def test_a_flag_that_is_followed_by_a_flag_has_no_value() -> None:
    assert mask_words(("--password", "--verbose")) == ("--password", "--verbose")


def test_an_assignment_shows_its_name_alone() -> None:
    assert mask_assignment("NCCL_DEBUG=INFO") == f"NCCL_DEBUG={HIDDEN}"
    assert mask_assignment("NCCL_DEBUG") == "NCCL_DEBUG"


@given(st.lists(st.text()))
def test_masking_again_changes_nothing_and_keeps_the_number_of_words(words: list[str]) -> None:
    once = mask_words(words)
    assert len(once) == len(words)
    assert mask_words(once) == once


@pytest.mark.parametrize("piece", ["a", "a-", "--", "x://", "'", "A=", "hf_"])
def test_a_long_word_costs_no_more_than_its_length(piece: str) -> None:
    began = time.monotonic()
    mask_text(piece * 10_000)
    assert time.monotonic() - began < 5


def test_an_error_shows_no_secret_whatever_it_quotes() -> None:
    error = NvrxError("reading x", part="HF_TOKEN=hunter2", hint="see https://me:hunter2@host")
    assert "hunter2" not in str(error)
    assert "host" in str(error)
