"""A chain on disk (tests/rundirs.py) and on a FakeSlurm beside strangers' jobs, and whole passes over it that may act.

Every world of one kind is the same: what a pass asks of Slurm with a hurt file is compared with what it asks without.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nvrx_chain.errors import NvrxError, Unobserved
from nvrx_chain.slurm.model import Node
from nvrx_watch.acting.desk import ActionDesk, CommandAnswer
from nvrx_watch.action_model import Rights
from nvrx_watch.gather import Gatherer, Reader
from nvrx_watch.history_model import Notice, SinkPolicy
from nvrx_watch.layout import Layout
from nvrx_watch.model import ActionKind, Severity, Subject
from nvrx_watch.reading.cache import CacheFile
from nvrx_watch.reading.disk import DiskReader
from nvrx_watch.reading.messages import GenerationChange, NotRead, ReadRequest, ReadSummary
from nvrx_watch.reading.view import RunView
from nvrx_watch.reading_model import RunReading
from nvrx_watch.resolve.by_directory import resolve_run_directory
from nvrx_watch.resolve.watched import Account
from nvrx_watch.run_pass import Outlets, PassParts, PassResult, Watch, run_pass
from nvrx_watch.sinks.prometheus import Textfile
from nvrx_watch.slurm_facts import SlurmFacts
from nvrx_watch.state_store import StateStore
from nvrx_watch.thresholds import WatchThresholds
from tests import rundirs
from tests.fakes.fake_clock import FakeClock
from tests.fakes.fake_controller import Limits
from tests.fakes.fake_slurm import FakeSlurm
from tests.rundirs import BEGAN_AT, CHAIN_ID, FIRST_ID, Size, write_nvrx, write_own

SIZE = Size(generations=3, cycles=2, nodes=2, queued=1, cold_spares=3)
LIVE = FIRST_ID + SIZE.generations - 1
NO_RESTART = {"node": "n1", "exit_code": 93, "cause": "loss is NaN", "written_at": "2026-03-01T12:40:00Z"}
USER = "alice"
NAME = "train"
_BETWEEN_PASSES = 100.0
_CYCLE_SECONDS = 11 * 60.0

_LARGEST_KEPT = 1 << 24
_COUNTER = re.compile(rb'"counter": \d+')

Request = tuple[object, ...]
"""What reached Slurm or the nvrx-chain command, one task a request: comparable."""


class Scene(str, enum.Enum):
    """How the chain is, beyond its files."""

    HEALTHY = "healthy"
    ORPHANED = "task 0 of the live generation has ended, its cold spares wait"
    NO_RESTART = "a launcher said that a restart is useless"
    DEAD = "the node of task 0 is lost"
    THEIRS_HEALTHY = "healthy, of NVRx's layout"
    THEIRS_ORPHANED = "orphaned, of NVRx's layout"

    @property
    def is_ours(self) -> bool:
        return self not in (Scene.THEIRS_HEALTHY, Scene.THEIRS_ORPHANED)


@dataclass
class Told:
    """A sink that takes everything."""

    notices: list[Notice] = field(default_factory=list)

    @property
    def policy(self) -> SinkPolicy:
        return SinkPolicy(name="told", minimum_severity=Severity.INFO, sends_resolve=True, cooldown_seconds=60)

    def send(self, notice: Notice, *, deadline_seconds: float) -> None:
        self.notices.append(notice)


class HereReader:
    """Reads as the reading process does, and in this one: hypothesis would wait for hundreds of children."""

    def __init__(self, cache_directory: Path) -> None:
        self._disk = DiskReader(cache_directory=cache_directory, iteration_pattern=None, log_tails=8)
        self._view = RunView()

    def read(
        self, layout: Layout, *, deadline_seconds: float, adopted: tuple[tuple[int, int], ...] = ()
    ) -> RunReading | Unobserved:
        for message in self._disk(ReadRequest(layout=layout, seconds=60.0, use_cache=True, adopted=adopted)):
            if isinstance(message, GenerationChange):
                self._view.apply(message)
            elif isinstance(message, ReadSummary):
                return self._view.reading(message)
            elif isinstance(message, NotRead):
                return Unobserved(message.reason)
        raise AssertionError("no summary")


class SlurmThatSees(FakeSlurm):
    """Whose sinfo says that the lost node does not answer, before the controller gives its tasks up."""

    lost = ""

    def nodes(self, names: Sequence[str]) -> Mapping[str, Node] | Unobserved:
        shown = super().nodes(names)
        if isinstance(shown, Unobserved) or self.lost not in shown:
            return shown
        return {**shown, self.lost: replace(shown[self.lost], responding=False, raw_state="allocated*")}


class World:
    """One chain. `place` is emptied; the files of a first, unhurt pass of the watcher lie there too."""

    def __init__(self, place: Path, scene: Scene) -> None:
        self.scene = scene
        self.place = place
        shutil.rmtree(place, ignore_errors=True)
        self.run_directory.mkdir(parents=True)
        self.layout: Layout = (write_own if scene.is_ours else write_nvrx)(self.run_directory, SIZE)
        if scene is Scene.NO_RESTART:
            path = self.run_directory / "generations" / str(LIVE) / "control" / "no_restart.json"
            path.write_text(json.dumps(rundirs.stamp(LIVE) | NO_RESTART))
        self._absent = self._absent_files()
        self.strangers: list[int] = []
        self.subject = self._subject()
        self._before = dict(_contents(place))
        self.passes(1, begin=0.0)
        self._before = dict(_contents(place))
        self.justified = self.passes()[1]

    @property
    def run_directory(self) -> Path:
        return self.place / "a run & #1 'q' 100%"

    @property
    def state_directory(self) -> Path:
        return self.place / "state"

    @property
    def cache(self) -> Path:
        """The cache of cycle records, from the place."""
        return CacheFile(self.state_directory / "cycles", repr(self.layout)).path.relative_to(self.place)

    def begin_anew(self) -> None:
        """All files as they were before anything was hurt."""
        now = dict(_contents(self.place))
        for path in sorted(now, reverse=True):
            if path not in self._before or now[path] != self._before[path]:
                path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
        for path in sorted(self._before):
            content = self._before[path]
            if path in now and content == now[path]:
                continue
            if content is None:
                path.mkdir()
            elif isinstance(content, str):
                path.symlink_to(content)
            else:
                path.write_bytes(content)

    def unhurt(self, path: Path) -> bytes:
        """What a file held at first; of one that was not there, what it might have held."""
        content = self._before.get(self.place / path, self._absent.get(path))
        assert isinstance(content, bytes)
        return content

    def files(self) -> list[list[Path]]:
        """Every file that a pass reads or would read, by kind, those of the watcher's own included, from the place."""
        below = [path for path in self.run_directory.rglob("*") if path.is_file() and not path.is_symlink()]
        kinds: dict[str, list[Path]] = {
            "cache": [self.cache],
            "state": [StateStore(self.state_directory).path_of(self.subject.key).relative_to(self.place)],
        }
        for path in sorted({path.relative_to(self.place) for path in below} | self._absent.keys()):
            # `lease.0.json` and `lease.1.json` are one kind, and so are the cycle records.
            kinds.setdefault(path.parent.name if path.parent.name == "submissions" else _word(path.name), []).append(
                path
            )
        return list(kinds.values())

    def passes(
        self, count: int = 3, *, begin: float = 300.0, reader: Reader | None = None, as_cron: bool = False
    ) -> tuple[list[PassResult], set[Request]]:
        """Passes that may do anything, and what they asked. `as_cron`: the chain is looked up anew for each."""
        clock, slurm = self._slurm()
        clock.advance(begin)
        asked: set[Request] = set()
        results: list[PassResult] = []
        store = StateStore(self.state_directory)
        reader = reader or HereReader(self.state_directory / "cycles")
        parts = self._parts(clock, slurm, reader, store, asked)
        watch = self._watch(store, self.subject, self.layout)
        for _ in range(count):
            if as_cron:
                try:
                    found = resolve_run_directory(self.run_directory, find_account=_find_account)
                except NvrxError:
                    continue
                watch = self._watch(store, found.subject, found.layout)
            results += run_pass(parts, [watch])
            self._beat(clock)
            clock.advance(_BETWEEN_PASSES)
        return results, asked | _requests(slurm)

    def _beat(self, clock: FakeClock) -> None:
        """What a healthy chain goes on writing: leases that move, in files that nobody hurt."""
        if self.scene not in (Scene.HEALTHY, Scene.NO_RESTART):
            return
        counter = b'"counter": %d' % clock.monotonic()
        control = self.run_directory / "generations" / str(LIVE) / "control"
        for index in range(SIZE.shape.throttle):
            path = control / f"lease.{index}.json"
            unhurt = self._before[path]
            with contextlib.suppress(OSError):
                is_record = path.is_file() and not path.is_symlink() and path.stat().st_size < _LARGEST_KEPT
                content = path.read_bytes() if is_record else b""
                if isinstance(unhurt, bytes) and _COUNTER.sub(b"", content) == _COUNTER.sub(b"", unhurt):
                    path.write_bytes(_COUNTER.sub(counter, content))

    def _watch(self, store: StateStore, subject: Subject, layout: Layout) -> Watch:
        memory, history, _ = store.load(subject.key)
        asked = None if self.scene.is_ours else LIVE
        return Watch(subject=subject, layout=layout, asked_job_id=asked, memory=memory, history=history)

    def _parts(
        self, clock: FakeClock, slurm: FakeSlurm, reader: Reader, store: StateStore, asked: set[Request]
    ) -> PassParts:
        def run_command(argv: Sequence[str], seconds: float) -> CommandAnswer:
            asked.add(("command", next(word for word in argv if word in ("extend", "hold"))))
            return CommandAnswer(returncode=1, stdout="", stderr="it was noted")

        rights = Rights(user=USER, uid=os.getuid(), act=True, allowed=frozenset(ActionKind))
        return PassParts(
            gatherer=Gatherer(reader=reader, facts=SlurmFacts(slurm), clock=clock, watcher_uid=os.getuid()),
            make_desk=lambda: ActionDesk(
                client=slurm,
                clock=clock,
                rights=rights,
                run_command=run_command,
                host="login",
                action_log=self.place / "actions.jsonl",
            ),
            outlets=Outlets(sinks=(Told(),), metrics=(Textfile(self.place, "nvrx_watch_x.prom").publish,)),
            store=store,
            clock=clock,
            thresholds=WatchThresholds(orphan_grace=5, running_orphan_grace=5),
        )

    def _subject(self) -> Subject:
        if self.scene.is_ours:
            return resolve_run_directory(self.run_directory, find_account=_find_account).subject
        return Subject(key="c/alice/train", name=NAME, user=USER, uid=os.getuid(), cluster="c")

    def _absent_files(self) -> dict[Path, bytes]:
        """Records that this chain could have, and has not: none of them asks for anything as it stands."""
        if not self.scene.is_ours:
            return {}
        of_chain = {"chain_id": CHAIN_ID, "by": "ann", "why": "it may", "schema": 1}
        of_job = rundirs.stamp(LIVE)
        at = "2026-03-01T12:40:00Z"
        outcome = {"verdict": "completed", "array_job_id": LIVE, "evidence": ["e"], "decided_at": at}
        held = {"held_at": at, "array_job_ids": [LIVE + 1], "released_at": None, "released_by": None}
        closed = {"outcome": "failed", "exit_code": 1, "closed_by": "x", "closed_at": at, "evidence": ["e"]}
        control = Path("generations", str(LIVE), "control")
        found = {
            Path("chain_outcome.json"): of_chain | outcome,
            Path("hold.json"): of_chain | held,
            control / "closed.json": of_job | closed,
            control / "no_restart.json": of_job | NO_RESTART,
        }
        below = self.run_directory.relative_to(self.place)
        return {
            below / path: json.dumps(record).encode()
            for path, record in found.items()
            if not (self.run_directory / path).exists()
        }

    def _slurm(self) -> tuple[FakeClock, FakeSlurm]:
        clock = FakeClock(BEGAN_AT)
        nodes = [f"n{number}" for number in range(1, 21)]
        # A controller that notices nothing by itself: who wants to know whether a node lives has to make it look.
        limits = Limits(slurmd_timeout_seconds=10**6)
        slurm = SlurmThatSees(clock, nodes=nodes, user=USER, uid=os.getuid(), first_job_id=FIRST_ID - 1, limits=limits)
        tasks = SIZE.shape.total
        # Tasks that start take ids: behind this one nothing starts, and the generations get theirs in a row.
        slurm.submit(_argv(NAME, "", 1, 1))
        for sequence in range(SIZE.generations + SIZE.queued):
            comment = f"nvrx-chain:{CHAIN_ID}/{sequence}" if self.scene.is_ours else ""
            slurm.submit(_argv(NAME, comment, tasks, SIZE.shape.throttle))
        # Each of them looks like an orphan: whoever takes one for the chain's own would cancel its spares.
        orphans = [
            slurm.submit(_argv("other", "nvrx-chain:another/1", tasks, 2)).array_job_id,
            slurm.submit_as("bob", _argv(NAME, f"nvrx-chain:{CHAIN_ID}/9", tasks, 2)),
        ]
        self.strangers = list(orphans)
        if self.scene.is_ours:
            # Another chain that somebody gave the same name waits in the same line.
            self.strangers.append(slurm.submit(_argv(NAME, "nvrx-chain:another/2", tasks, 2)).array_job_id)
        slurm.finish(f"{FIRST_ID - 1}_0")
        for job in range(FIRST_ID, LIVE):
            clock.advance(_CYCLE_SECONDS * SIZE.cycles)
            self._end(slurm, job)
        clock.advance(_CYCLE_SECONDS)
        for job in orphans:
            slurm.finish(f"{job}_0", exit_code=1)
        if self.scene in (Scene.ORPHANED, Scene.THEIRS_ORPHANED):
            slurm.finish(f"{LIVE}_0", exit_code=1)
        if self.scene is Scene.DEAD:
            slurm.lost = slurm.task(f"{LIVE}_0").nodelist
            slurm.lose_node(slurm.lost)
        slurm.calls.clear()
        return clock, slurm

    @staticmethod
    def _end(slurm: FakeSlurm, job: int) -> None:
        rows = [slurm.task(f"{job}_{index}") for index in range(SIZE.shape.total)]
        slurm.cancel([row.spec for row in rows if row.state.is_pending], pending_only=True)
        for row in rows:
            if not row.state.is_pending:
                slurm.finish(row.spec, exit_code=1)


def _word(name: str) -> str:
    return name.split(".")[0].split("_cycle")[0]


def _contents(place: Path) -> Iterator[tuple[Path, bytes | str | None]]:
    """Everything below: the bytes of a file, the target of a link, None for a directory, "" for anything else."""
    for top, directories, files in os.walk(place):
        for name in (*directories, *files):
            path = Path(top, name)
            if path.is_symlink():
                yield path, os.readlink(path)
            elif path.is_dir():
                yield path, None
            else:
                is_small = path.is_file() and path.stat().st_size <= _LARGEST_KEPT
                yield path, path.read_bytes() if is_small else ""


def _argv(name: str, comment: str, tasks: int, throttle: int) -> list[str]:
    array = f"--array=0-{tasks - 1}%{throttle}"
    return ["--parsable", f"--job-name={name}", array, "--dependency=singleton", f"--comment={comment}", "/w/x.sbatch"]


def _find_account(user: str) -> Account | None:
    return Account(uid=os.getuid(), home="/home/alice") if user == USER else None


def _requests(slurm: FakeSlurm) -> set[Request]:
    return set(_each_request(slurm))


def _each_request(slurm: FakeSlurm) -> Iterator[Request]:
    for call in slurm.calls:
        if call.operation == "cancel":
            specs, pending_only = call.arguments
            assert isinstance(specs, tuple)
            yield from (("cancel", spec, pending_only) for spec in specs)
        elif call.operation in ("hold", "release", "submit"):
            yield (call.operation, *call.arguments)
