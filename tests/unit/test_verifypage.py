"""Neither of the two commands that write docs/verification.md takes away what the other one wrote."""

from __future__ import annotations

from tests.verifypage import with_scenarios, with_versions


def test_each_part_survives_the_other_however_often_they_are_written() -> None:
    page = with_scenarios("", "# Verification\n\n| a |\n")
    page = with_versions(page, "old versions")
    page = with_scenarios(page, "# Verification\n\n| b |\n")
    page = with_versions(page, "new versions")
    assert page == "# Verification\n\n| b |\n\n## Other versions of Slurm\n\nnew versions\n"
    assert with_scenarios(page, "# Verification\n\n| b |\n") == page
    assert with_versions(page, "new versions") == page


def test_versions_alone_are_a_page_and_scenarios_alone_are_one() -> None:
    assert with_versions("", "x").endswith("## Other versions of Slurm\n\nx\n")
    assert with_scenarios("", "x\n") == "x\n"
