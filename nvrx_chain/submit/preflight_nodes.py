"""Would the nodes see what the chain needs there, and would a container? Pure checks over the facts of a submit."""

from __future__ import annotations

from collections.abc import Iterator

from nvrx_chain.submit.config import ChainConfig
from nvrx_chain.submit.container import hides_the_image, is_mounted
from nvrx_chain.submit.facts import SubmitFacts
from nvrx_chain.submit.launcher import PYTHON_OF_AN_IMAGE
from nvrx_chain.submit.mounts import FileSystem, Reach
from nvrx_chain.submit.places import Place, is_installed
from nvrx_chain.submit.problem import Problem, error, note, warning

_ANYWAY = "or give --allow-local-run-dir if the nodes see it"


def check_places(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """Interpreters, the package, the workload and what is mounted must be where the nodes are."""
    for place in facts.places:
        if not place.exists:
            yield from _missing(place)
        elif not config.allow_local_run_directory and not is_installed(place.path):
            yield from _local(place)


def _missing(place: Place) -> Iterator[Problem]:
    # A workload or an interpreter that is not there is found by the checks that look for it.
    if not place.what.startswith("the container"):
        return
    message = f"{place.what} {place.path} is not there"
    if place.is_local:
        # A scratch disk that only compute nodes have is mounted from them, not from here.
        yield warning(f"{message} on this machine", f"no launcher starts on a node that lacks it; {place.option}")
    else:
        yield error(message, place.option)


def _local(place: Place) -> Iterator[Problem]:
    found = place.file_system
    if not isinstance(found, FileSystem) or found.reach is Reach.SHARED:
        return
    message = f"{place.what}, {place.path}, is on {found.kind} ({found.mount_point})"
    if found.reach is Reach.TEMPORARY:
        yield error(f"{message}, which only this machine sees", f"{place.option}, {_ANYWAY}")
    else:
        yield warning(f"{message}, a disk of this machine", f"{place.option}, {_ANYWAY}")


def check_container(config: ChainConfig, facts: SubmitFacts) -> Iterator[Problem]:
    """What runs in the container must be in it: by the image, or by a mount."""
    container = config.container
    if container is None:
        return
    for place in facts.own_places:
        if hides_the_image(place):
            yield warning(
                f"nvrx-chain runs with a Python of the system ({place}), which is not mounted over that of the image",
                "an image with the very same Python does; else install nvrx-chain with one that has a directory of its"
                " own (uv, conda, pyenv)",
            )
    for what, path in (("workload", config.workload.program), ("checkpoint", config.checkpoint_iteration_file)):
        if path and not is_mounted(container, path):
            yield warning(
                f"the {what} {path} is in no mount of the container", "add its directory to --container-mounts"
            )
    if config.launcher.python == PYTHON_OF_AN_IMAGE:
        yield note(f"launcher and workload run with the image's {PYTHON_OF_AN_IMAGE}; --python names another one")
    yield note("whether the image has the launcher, and bash for a prologue, was not looked at")
