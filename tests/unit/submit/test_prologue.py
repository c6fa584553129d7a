"""A prologue is read once, checked, and kept where nobody else can read or change it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.submit.prologue import LARGEST_BYTES, read_prologue
from tests.unit.submit.conftest import Site


def test_a_chain_without_one_has_none(site: Site) -> None:
    site.submit()
    assert read_prologue(None) is None
    assert not site.run.prologue.exists()


def test_the_copy_is_the_owners_alone_and_outlives_the_original(site: Site, tmp_path: Path) -> None:
    original = tmp_path / "p.sh"
    original.write_text("export KEY=secret\n")
    site.submit(prologue=str(original))
    original.unlink()
    assert site.run.prologue.read_text() == "export KEY=secret\n"
    assert stat.S_IMODE(site.run.prologue.stat().st_mode) == 0o600
    assert json.loads(site.run.manifest.read_bytes())["prologue"] == str(site.run.prologue)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file"),
        (b"\xff\xfe", "UTF-8"),
        (b"if true; then\n", "cannot parse"),
        (b"echo 'open\n", "cannot parse"),
        (b"#" * (LARGEST_BYTES + 1), "bytes"),
    ],
)
def test_one_that_no_node_could_source_is_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "p.sh"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=says):
        read_prologue(path)
