"""An empty cell is no limit, and a line of another shape is no answer."""

from __future__ import annotations

import pytest

from nvrx_chain.slurm.model import AssociationLimit
from nvrx_chain.slurm.parse.sacctmgr import association_arguments, parse_associations, parse_qos, qos_arguments


def test_the_smaller_of_own_and_group_limit_holds() -> None:
    text = "phys||normal|100|\nphys|gpu||50|20\nbio||normal||\n"
    assert parse_associations(text) == (
        AssociationLimit(account="phys", partition="", default_qos="normal", max_submit=100),
        AssociationLimit(account="phys", partition="gpu", default_qos="", max_submit=20),
        AssociationLimit(account="bio", partition="", default_qos="normal", max_submit=None),
    )
    assert parse_qos("normal||\nlong|5|\nshared|9|3\n") == {"normal": None, "long": 5, "shared": 3}
    assert parse_qos("") == {}


@pytest.mark.parametrize("text", ["phys|normal\n", "sacctmgr: hello\n"])
def test_another_shape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="read limits"):
        parse_associations(text)
    with pytest.raises(ValueError, match="read limits"):
        parse_qos(text)


def test_the_user_is_one_word_of_the_question() -> None:
    assert "user=alice" in association_arguments("alice")
    assert qos_arguments()[-1].startswith("format=Name,")
