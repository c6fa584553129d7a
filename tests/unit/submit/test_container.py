"""--container-image and --container-mounts: what the user lists, what has to be there, and what cannot be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.records.manifest import Container
from nvrx_chain.submit.config import ChainConfig, build_config
from nvrx_chain.submit.container import Mount, is_mounted
from nvrx_chain.submit.interpreters import probe_interpreters
from nvrx_chain.submit.mounts import FileSystem, Reach
from nvrx_chain.submit.places import Place, is_installed, own_places, read_places
from nvrx_chain.submit.preflight import find_problems
from nvrx_chain.submit.problem import Severity
from tests.unit.submit.chains import HERE, make_config, make_facts, make_plan, make_settings

RUN = "/data/run"
OWN = ("/soft/venv", "/soft/python")


def config(own: tuple[str, ...] = OWN, **flags: Any) -> ChainConfig:
    settings = make_settings(**{"run_dir": RUN, "container_image": "img", **flags})
    return build_config(settings, directory=HERE, interpreter="/soft/venv/bin/python", own_places=own)


def container(own: tuple[str, ...] = OWN, **flags: Any) -> Container:
    found = config(own, **flags).container
    assert found is not None
    return found


def said(chain: ChainConfig, severity: Severity, **facts: Any) -> str:
    found = find_problems(chain, make_facts(**facts), dry_run=False)
    return "\n".join(map(str, (problem for problem in found if problem.severity is severity)))


def test_without_an_image_there_is_no_container_and_a_mount_alone_is_refused() -> None:
    assert make_config().container is None
    with pytest.raises(UsageError, match="there is no container"):
        make_config(container_mounts="/data")


def test_what_has_to_be_there_is_mounted_whatever_is_listed() -> None:
    needed = ("/data/run:/data/run", "/soft/venv:/soft/venv", "/soft/python:/soft/python")
    assert container(container_mounts="").mounts == needed
    assert container(container_mounts="/data:/data:ro,/x:/y").mounts == ("/data:/data:ro", "/x:/y", *needed)


def test_with_no_list_the_directories_of_workload_and_checkpoints_are_mounted_too() -> None:
    flags = {"command": ("src/train.py",), "checkpoint_iteration_file": "/ckpt/a/latest.txt"}
    assert container(**flags).mounts[:2] == (f"{HERE}/src:{HERE}/src", "/ckpt/a:/ckpt/a")
    assert not is_mounted(container(container_mounts="", **flags), f"{HERE}/src/train.py")
    # What lies in the run directory comes with it and may not be there yet.
    assert container().mounts[0] == "/data/run:/data/run"


def test_an_empty_list_says_what_the_container_lacks() -> None:
    chain = config(container_mounts="", command=("src/train.py",))
    assert f"the workload {HERE}/src/train.py is in no mount" in said(chain, Severity.WARNING)
    assert "is in no mount" not in said(config(command=("src/train.py",)), Severity.WARNING)


def test_a_directory_of_the_system_is_never_mounted_over_the_image_and_that_is_said() -> None:
    own = ("/soft/venv", "/usr", "/usr/local")
    assert container(own, container_mounts="").mounts == ("/data/run:/data/run", "/soft/venv:/soft/venv")
    assert "a Python of the system (/usr)" in said(config(own), Severity.WARNING, own_places=("/usr",))
    assert "a Python of the system" not in said(config(), Severity.WARNING, own_places=OWN)


def test_a_place_inside_another_one_is_mounted_once() -> None:
    own = ("/data/run/venv", "/soft", "/soft/python", "/software")
    assert container(own, container_mounts="").mounts == (
        "/data/run:/data/run",
        "/soft:/soft",
        "/software:/software",
    )


@pytest.mark.parametrize(
    "text",
    [
        "data",
        "/a:b",
        "a:/b",
        "/a:/b:ro rw",
        "/a:/b:ro:x",
        "/a,,/b",
        "/a,",
        ",",
        "/a:",
        "/a:/b:",
        "/a::ro",
        "$HOME",
        "/a:/b:$(x)",
    ],
)
def test_what_is_no_mount_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="is no mount"):
        config(container_mounts=text)


@pytest.mark.parametrize("text", ["/a\n/b", "/a\0"])
def test_a_line_break_or_nul_is_refused(text: str) -> None:
    for option in ("container_mounts", "container_image"):
        with pytest.raises(UsageError, match="line break or NUL"):
            config(**{option: text})


@pytest.mark.parametrize("text", ["/a", "/a b:/c d", "/a:/b:ro+rprivate", "/a:/b:x-create=dir"])
def test_a_mount_is_read_and_written_alike(text: str) -> None:
    mount = Mount.parse(text)
    assert Mount.parse(str(mount)) == mount
    assert container(container_mounts=text).mounts[0] == str(mount)


@pytest.mark.parametrize("run_dir", ["/data/a,b", "/data/a:b"])
def test_a_run_directory_that_no_mount_can_name_is_refused(run_dir: str) -> None:
    assert make_config(run_dir=run_dir).container is None
    with pytest.raises(UsageError, match="a comma or a colon"):
        config(run_dir=run_dir)


@pytest.mark.parametrize(
    ("given", "image"),
    [
        ("nvcr.io#nvidia/pytorch:25.01-py3", "nvcr.io#nvidia/pytorch:25.01-py3"),
        ("docker://ubuntu:24.04", "docker://ubuntu:24.04"),
        ("/images/a b.sqsh", "/images/a b.sqsh"),
        ("./a.sqsh", f"{HERE}/a.sqsh"),
    ],
)
def test_an_image_is_a_name_or_a_path(given: str, image: str) -> None:
    assert container(container_image=given).image == image


def test_an_image_with_a_space_is_refused() -> None:
    with pytest.raises(UsageError, match="a space"):
        config(container_image="ubuntu --container-mounts=/")


def test_the_variables_are_read_too() -> None:
    from nvrx_chain.submit.settings import read_settings

    environ = {"NVRX_CONTAINER_IMAGE": "img", "NVRX_CONTAINER_MOUNTS": "/a", "NVRX_TRAIN_TASKS": "1"}
    chain = build_config(read_settings({}, environ, HERE), directory=HERE, interpreter="/py")
    assert chain.container is not None
    assert chain.container.mounts[0] == "/a:/a"


def test_the_python_is_that_of_the_image_unless_named() -> None:
    assert config().launcher.python == "python3"
    assert config(python="/opt/venv/bin/python").launcher.python == "/opt/venv/bin/python"
    assert "the image's python3" in said(config(), Severity.NOTE)


def test_nobody_looks_for_the_launcher_outside_of_the_image(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"nvrx_chain": "0.1.0"}\'\n')
    python.chmod(0o755)
    chain = build_config(
        make_settings(run_dir=RUN, container_image="img", launcher="ft_launcher"),
        directory=HERE,
        interpreter=str(python),
    )
    (probe,) = probe_interpreters(chain)
    assert "was not looked at" in said(chain, Severity.NOTE, probes=(probe,))


def test_the_manifest_has_the_container_and_sbatch_is_told_nothing_of_it() -> None:
    plan = make_plan(config(container_mounts="/a"))
    assert plan.manifest.container == container(container_mounts="/a")
    assert not [word for generation in plan.generations for word in generation.argv if "container" in word]
    assert "container" not in plan.script


def place(what: str, reach: Reach, *, exists: bool = True, path: str = "/home/me/x") -> dict[str, Any]:
    on = FileSystem(mount_point="/", kind="xfs", reach=reach)
    return {"places": (Place(what=what, path=path, option="do that", exists=exists, file_system=on),)}


def test_a_mount_that_is_not_there_is_an_error_where_the_nodes_see_the_same() -> None:
    missing = place("the container mount", Reach.SHARED, exists=False)
    assert "the container mount /home/me/x is not there" in said(config(), Severity.ERROR, **missing)
    missing = place("the container mount", Reach.LOCAL_DISK, exists=False)
    assert said(config(), Severity.ERROR, **missing) == ""
    assert "on this machine" in said(config(), Severity.WARNING, **missing)
    assert said(config(), Severity.ERROR, **place("the container mount", Reach.SHARED)) == ""


def test_what_only_this_machine_sees_is_named_with_the_way_out() -> None:
    what = "nvrx-chain's interpreter"
    lines = said(make_config(), Severity.ERROR, **place(what, Reach.TEMPORARY))
    assert "nvrx-chain's interpreter, /home/me/x, is on xfs (/), which only this machine sees (do that, or" in lines
    assert "a disk of this machine" in said(make_config(), Severity.WARNING, **place(what, Reach.LOCAL_DISK))
    for quiet in (
        said(make_config(), Severity.ERROR, **place(what, Reach.SHARED)),
        said(make_config(allow_local_run_dir=True), Severity.ERROR, **place(what, Reach.TEMPORARY)),
        said(make_config(), Severity.ERROR, **place(what, Reach.TEMPORARY, path="/usr/bin/python3")),
    ):
        assert quiet == ""


def test_a_place_whose_file_system_cannot_be_seen_is_no_problem() -> None:
    from nvrx_chain.errors import Unobserved

    unseen = Place(what="w", path="/x", option="o", exists=True, file_system=Unobserved("no table"))
    assert said(make_config(), Severity.ERROR, places=(unseen,)) == ""


def test_the_places_of_a_chain_are_those_that_its_nodes_need(tmp_path: Path) -> None:
    real = tmp_path / "python3.12"
    real.touch()
    link = tmp_path / "python"
    link.symlink_to(real)
    chain = build_config(
        make_settings(run_dir=RUN, command=(str(tmp_path / "t.py"),), python="/opt/py"),
        directory=HERE,
        interpreter=str(link),
    )
    found = {each.path: each for each in read_places(chain)}
    assert {str(link), str(real), "/opt/py", str(tmp_path / "t.py")} <= set(found)
    assert found[str(link)].exists
    assert not found[str(tmp_path / "t.py")].exists
    mounted = {each.path for each in read_places(config(container_mounts="/a", container_image="/i.sqsh"))}
    assert {"/a", "/i.sqsh", *OWN} <= mounted
    assert RUN not in mounted


def test_the_own_places_hold_the_package() -> None:
    import nvrx_chain

    assert any(Path(nvrx_chain.__file__).is_relative_to(place) for place in own_places())
    assert is_installed("/opt/x")
    assert not is_installed("/optical/x")
