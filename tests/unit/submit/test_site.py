"""What the site wants to know goes to sbatch by the same name, and only when sbatch could mean it."""

from __future__ import annotations

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.submit.passthrough import check_sbatch_arguments
from nvrx_chain.submit.site import SITE_OPTIONS
from tests.unit.submit.chains import make_config, make_plan

SOUND = {
    "partition": "batch,long",
    "account": "physics",
    "qos": "high",
    "constraint": "[rack1|rack2]&h100",
    "reservation": "maint_2",
    "exclude": "n[01-04,07]",
    "gres": "nvme:1,lustre:fast:2",
    "mem": "900G",
    "mail_type": "END,FAIL",
    "mail_user": "ann@example.org",
    "cpus_per_task": "96",
}


def test_every_option_reaches_sbatch_under_its_own_name() -> None:
    argv = make_plan(make_config(**SOUND)).generations[0].argv
    assert [f"--{key.replace('_', '-')}={value}" for key, value in SOUND.items()] == [
        word for word in argv if word.partition("=")[0][2:] in SITE_OPTIONS
    ]
    assert {key.replace("_", "-") for key in SOUND} == set(SITE_OPTIONS)


@pytest.mark.parametrize("key", sorted(SOUND))
def test_nothing_is_passed_that_was_not_asked_for(key: str) -> None:
    config = make_config(**{name: value for name, value in SOUND.items() if name != key})
    assert not any(word.startswith(f"--{key.replace('_', '-')}=") for word in config.site_arguments)
    assert make_config(**{**SOUND, key: ""}).site_arguments == config.site_arguments


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partition", "a b;c"),
        ("qos", "-x"),
        ("account", "a,b"),
        ("constraint", "h100; rm"),
        ("reservation", "a b"),
        ("exclude", "n[1-"),
        ("exclude", "n[9-1]"),
        ("gres", "gpu=8"),
        ("gres", "nvme:1,,x"),
        ("mem", "900 GB"),
        ("mem", "-1"),
        ("mail_type", "SOMETIMES"),
        ("mail_type", "END,"),
        ("mail_user", "a@b, c@d"),
        ("cpus_per_task", "0"),
    ],
)
def test_a_value_that_sbatch_could_not_mean_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(UsageError, match=key.replace("_", "-")):
        make_config(**{key: value})


@pytest.mark.parametrize("key", SITE_OPTIONS)
def test_a_second_way_to_say_the_same_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match=f"use --{key}"):
        check_sbatch_arguments((f"--{key}=1",))
