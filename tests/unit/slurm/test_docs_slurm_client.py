"""docs/slurm-client.md names every client and every question of the protocol that a person could wonder about."""

from __future__ import annotations

from pathlib import Path

from nvrx_chain.slurm.client_kind import ENVIRONMENT_NAME, SlurmClientKind, describe_unproven

PAGE = (Path(__file__).parents[3] / "docs" / "slurm-client.md").read_text()


def test_every_client_and_the_variable_are_on_the_page() -> None:
    assert all(f"| `{kind.value}`" in PAGE for kind in SlurmClientKind)
    assert ENVIRONMENT_NAME in PAGE


def test_the_page_and_the_note_name_the_same_recordings() -> None:
    said = describe_unproven(SlurmClientKind.PYSLURM)
    assert said is not None
    for version in ("PySlurm 25.11.2", "Slurm 25.11.7"):
        assert version in said
        assert version in PAGE
