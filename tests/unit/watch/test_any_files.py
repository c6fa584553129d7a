"""Whatever lies in the files: a pass ends with an exit code, its lines are lines, nothing is asked without cause."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvrx_watch.command import report_text
from nvrx_watch.reading.worker import RunReader
from nvrx_watch.run_pass import PassResult
from tests.rundirs import CHAIN_ID, FIRST_ID
from tests.unit.watch.files_world import LIVE, Request, Scene, World
from tests.unit.watch.hostile import ODD_THINGS, Hostile, put_odd_thing

UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
STRANGERS_UID = 12345


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    # In memory where that can be had: each pass syncs what it writes.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def worlds(place: Path) -> dict[Scene, World]:
    return {scene: World(place / scene.name, scene) for scene in Scene}


def test_the_worlds_ask_for_what_they_should(worlds: dict[Scene, World]) -> None:
    # Without this the claim below could hold because no pass ever asks for anything.
    asked = {scene: {(one[0], one[1]) for one in world.justified} for scene, world in worlds.items()}
    spares = {("cancel", f"{LIVE}_{index}") for index in (4, 5)}
    assert asked[Scene.HEALTHY] == asked[Scene.THEIRS_HEALTHY] == set()
    assert asked[Scene.ORPHANED] == asked[Scene.THEIRS_ORPHANED] == spares
    assert asked[Scene.NO_RESTART] == {("cancel", f"{LIVE + 1}_{index}") for index in range(6)}
    assert asked[Scene.DEAD] > spares | {("cancel", f"{LIVE}_0")}


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(scene=st.sampled_from(Scene), as_cron=st.booleans(), seed=st.integers(0, 2**40))
def test_any_content_of_any_files(worlds: dict[Scene, World], scene: Scene, as_cron: bool, seed: int) -> None:
    world, random = worlds[scene], Random(seed)
    world.begin_anew()
    kinds = world.files()
    job_ids = [FIRST_ID, LIVE, LIVE + 1, *world.strangers]
    hostile = Hostile([world.unhurt(path) for kind in kinds for path in kind], job_ids, random)
    hurt = [random.choice(kind) for kind in random.sample(kinds, random.randint(1, 4))]
    for path in hurt:
        put(world.place / path, hostile.content(world.unhurt(path)), is_strangers=random.random() < 0.1)
    if random.random() < 0.5:
        # With the cache, closed cycle records are not read again.
        put(world.place / world.cache, None, is_strangers=False)
    check(world, worlds, hurt, *world.passes(as_cron=as_cron and scene.is_ours))


def put(path: Path, content: bytes | None, is_strangers: bool) -> None:
    path.unlink(missing_ok=True)
    if content is None:
        return
    path.write_bytes(content)
    if is_strangers and os.geteuid() == 0:
        # Only root can give a file away; then it is a record that looks right and must not be believed.
        os.chown(path, STRANGERS_UID, -1)


@pytest.mark.parametrize("scene", [scene for scene in Scene if scene.is_ours])
def test_a_record_that_names_the_job_of_somebody_else_gives_no_right_to_it(
    worlds: dict[Scene, World], scene: Scene
) -> None:
    world = worlds[scene]
    for path in (path for kind in world.files() for path in kind if path.parent.name == "submissions"):
        for stranger in world.strangers:
            world.begin_anew()
            record = json.loads(world.unhurt(path)) | {"array_job_id": stranger, "stamp": "nvrx-chain:another/2"}
            put(world.place / path, json.dumps(record).encode(), is_strangers=False)
            check(world, worlds, [path], *world.passes(2))


def says_it_by_stranger(path: Path, record: dict[str, Any]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    put(path, json.dumps(record).encode(), is_strangers=True)


def says_it_of_another_generation(path: Path, record: dict[str, Any]) -> None:
    put(path, json.dumps(record | {"array_job_id": FIRST_ID, "chain_id": "another"}).encode(), is_strangers=False)


def says_it_behind_a_link(path: Path, record: dict[str, Any]) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_text(json.dumps(record))
    path.unlink(missing_ok=True)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize("name", ["no_restart.json", "chain_outcome.json"])
@pytest.mark.parametrize(
    ("say", "is_believed"),
    [
        (says_it_by_stranger, False),
        (says_it_of_another_generation, False),
        (says_it_behind_a_link, False),
        (lambda path, record: path.write_text(json.dumps(record)), True),
    ],
    ids=["by a stranger", "of another", "behind a link", "as it should"],
)
def test_a_word_that_is_not_the_chains_own_stops_nothing(
    worlds: dict[Scene, World], name: str, say: Callable[[Path, dict[str, Any]], object], is_believed: bool
) -> None:
    world = worlds[Scene.HEALTHY]
    world.begin_anew()
    path = next(path for kind in world.files() for path in reversed(kind) if path.name == name)
    record = json.loads(world.unhurt(path)) | {"outcome": "no_restart", "verdict": "no_restart"}
    say(world.place / path, record)
    results, asked = world.passes()
    check(world, worlds, [path] if is_believed else [], results, asked)
    assert bool(asked) == is_believed


@pytest.mark.parametrize("thing", ODD_THINGS)
def test_what_is_no_file_hurts_no_pass_of_the_real_reader(worlds: dict[Scene, World], thing: str) -> None:
    world = worlds[Scene.HEALTHY]
    files = [kind[-1] for kind in world.files()]
    with contextlib.closing(RunReader(cache_directory=world.state_directory / "cycles")) as reader:
        for path in sorted({*files, *(path.parent for path in files)}):
            world.begin_anew()
            put_odd_thing(world.place / path, thing)
            results, asked = world.passes(1, reader=reader)
            check(world, worlds, [], results, asked)
            reasons = [why for one in results for why in one.snapshot.sources.unobserved.values()]
            assert not [why for why in reasons if any(word in why for word in ("no answer", "died", "failed:"))]


@pytest.mark.parametrize("thing", ODD_THINGS)
@pytest.mark.parametrize("name", ["lease.0.json", "closed.json", "left.1.json", "record.json", "chain.json"])
def test_what_is_no_file_hurts_no_fence(worlds: dict[Scene, World], name: str, thing: str) -> None:
    world = worlds[Scene.DEAD]
    world.begin_anew()
    below = world.run_directory / "generations" / str(LIVE)
    places = {"chain.json": world.run_directory, "record.json": below}
    put_odd_thing(places.get(name, below / "control") / name, thing)
    check(world, worlds, [], *world.passes(2))


def check(
    world: World, worlds: dict[Scene, World], hurt: list[Path], results: list[PassResult], asked: set[Request]
) -> None:
    for result in results:
        assert result.exit_code in (0, 1, 2)
        assert result.run.broken == {}
        for line in (*report_text(result, as_json=False).split("\n"), report_text(result, as_json=True)):
            assert not {unicodedata.category(one) for one in line} & UNSAFE, line
    justified = set(world.justified)
    if any(says_stop(world, path) for path in hurt):
        justified |= worlds[Scene.NO_RESTART].justified
    assert asked <= justified


def says_stop(world: World, path: Path) -> bool:
    """Whether a file of the chain itself now says that its queued generations are to be cancelled."""
    try:
        if (world.place / path).stat().st_uid == STRANGERS_UID:
            return False
        said = json.loads((world.place / path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(said, dict):
        return False
    if path.name == "chain_outcome.json":
        return bool(said.get("chain_id") == CHAIN_ID and said.get("verdict") == "no_restart")
    is_of_job = path.parent.name == "control" and str(said.get("array_job_id")) == path.parent.parent.name
    return is_of_job and (path.name == "no_restart.json" or said.get("outcome") == "no_restart")
