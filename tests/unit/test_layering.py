"""Imports point one way, third-party code stays at the edge, nothing imports in a circle. Read from the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ALLOWED: dict[str, frozenset[str]] = {
    "masking": frozenset(),
    "errors": frozenset({"masking"}),
    "bell": frozenset(),
    "interrupts": frozenset(),
    "sizes": frozenset(),
    "clock": frozenset(),
    "records": frozenset({"errors", "clock"}),
    "slurm": frozenset({"errors", "clock"}),
    "liveness": frozenset({"errors", "slurm"}),
    "launchers": frozenset({"errors", "records"}),
    "launcher": frozenset({"errors", "masking", "clock", "records", "slurm"}),
    "workloads": frozenset({"errors", "clock", "records", "launcher"}),
    "submit": frozenset({"errors", "masking", "clock", "records", "slurm", "launchers", "workloads"}),
    "generation": frozenset({"errors", "masking", "bell", "clock", "records", "slurm", "launchers", "liveness"}),
    "sandbox": frozenset({"errors", "clock", "records", "slurm"}),
    "ops": frozenset({"errors", "clock", "sizes", "records", "slurm", "liveness"}),
    "doctor": frozenset({"errors", "clock", "sizes", "records", "slurm", "launchers", "submit", "generation"}),
    "demo": frozenset(
        {
            "interrupts",
            "errors",
            "masking",
            "clock",
            "records",
            "slurm",
            "launchers",
            "submit",
            "sandbox",
            "generation",
            "ops",
            "workloads",
        }
    ),
    "commands": frozenset(
        {
            "interrupts",
            "sizes",
            "errors",
            "masking",
            "clock",
            "records",
            "slurm",
            "launchers",
            "launcher",
            "submit",
            "generation",
            "sandbox",
            "ops",
            "demo",
            "doctor",
        }
    ),
    "cli": frozenset({"errors", "ops"}),
    "__main__": frozenset({"cli"}),
}
"""Room -> rooms that it may import. A room that is not named here must be added with what it may see."""

WATCHER_MAY_SEE = frozenset({"bell", "errors", "clock", "records", "slurm", "liveness"})

THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "click": ("cli", "commands"),
    "torch": (
        "workloads",
        "launcher.agent",
        "launcher.launch",
        "launcher.rank_store",
        "launcher.rendezvous",
        "launcher.store",
    ),
    "numpy": ("workloads",),
    "pynvml": ("doctor.gpus", "launcher.gpus"),
    "pyslurm": ("slurm.pyslurm_worker",),
    "rich": ("ops", "demo", "commands", "sandbox"),
    "watchdog": ("ops",),
    "ClusterShell": ("slurm.nodelist",),
}
"""Library -> where it may be imported (a room, or a module by its dotted name)."""

WATCHER_THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "click": ("cli",),
    "rich": ("ui",),
    "watchdog": ("wake",),
    "httpx": ("sinks.http",),
    "apprise": ("sinks.apprise_sink",),
    "prometheus_client": ("sinks.prometheus",),
    "tree_sitter": ("resolve",),
    "tree_sitter_bash": ("resolve",),
    "torch": (),
    "pyslurm": (),
    "pynvml": (),
}
"""The same for nvrx_watch."""

WATCHER_PURE = (
    "model",
    "memory",
    "thresholds",
    "layout",
    "reading_model",
    "action_model",
    "history_model",
    "history",
    "detectors",
)
"""Rooms and modules of the watcher that look at nothing: they import no adapter and no library but msgspec."""

WATCHER_ADAPTERS = ("gather", "reading", "resolve", "acting", "sinks", "notify", "state_store", "ui", "daemon", "wake")


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Absolute names of everything a file imports."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            found.update({node.module} | {f"{node.module}.{alias.name}" for alias in node.names})
    return found


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@pytest.mark.parametrize("path", sources("nvrx_chain"), ids=module_name)
def test_a_room_imports_only_what_it_may_see(path: Path) -> None:
    own = room(module_name(path))
    if own == "__init__":
        return
    assert own in ALLOWED, f"{own} is a new room: say in ALLOWED what it may import"
    seen = {room(name) for name in imports(path) if name.startswith("nvrx_chain.")}
    # `from nvrx_chain import __version__` is not a room.
    seen -= {own, "__init__", "__version__"}
    assert seen <= ALLOWED[own]


@pytest.mark.parametrize("path", sources("nvrx_watch"), ids=module_name)
def test_the_watcher_sees_the_shared_rooms_only(path: Path) -> None:
    seen = {room(name) for name in imports(path) if name.startswith("nvrx_chain.")}
    assert seen - {"__version__"} <= WATCHER_MAY_SEE


def test_the_chain_never_imports_the_watcher() -> None:
    for path in sources("nvrx_chain"):
        assert not any(name.split(".")[0] == "nvrx_watch" for name in imports(path)), path


@pytest.mark.parametrize("library", sorted(THIRD_PARTY))
def test_third_party_code_stays_at_its_edge(library: str) -> None:
    places = THIRD_PARTY[library]
    for path in sources("nvrx_chain"):
        if not any(name.split(".")[0] == library for name in imports(path)):
            continue
        name = module_name(path).removeprefix("nvrx_chain.")
        assert any(name == place or name.startswith(place + ".") for place in places), f"{name} imports {library}"


@pytest.mark.parametrize("library", sorted(WATCHER_THIRD_PARTY))
def test_third_party_code_of_the_watcher_stays_at_its_edge(library: str) -> None:
    places = WATCHER_THIRD_PARTY[library]
    for path in sources("nvrx_watch"):
        if not any(name.split(".")[0] == library for name in imports(path)):
            continue
        name = module_name(path).removeprefix("nvrx_watch.")
        assert any(name == place or name.startswith(place + ".") for place in places), f"{name} imports {library}"


@pytest.mark.parametrize("path", sources("nvrx_watch"), ids=module_name)
def test_detectors_and_history_look_at_nothing(path: Path) -> None:
    name = module_name(path).removeprefix("nvrx_watch.")
    if not any(name == pure or name.startswith(pure + ".") for pure in WATCHER_PURE):
        return
    seen = {
        found.removeprefix("nvrx_watch.").split(".")[0] for found in imports(path) if found.startswith("nvrx_watch.")
    }
    assert not seen & set(WATCHER_ADAPTERS)
    assert not {found.split(".")[0] for found in imports(path)} & {"os", "subprocess", "socket", "time", "threading"}


@pytest.mark.parametrize("package", ["nvrx_chain", "nvrx_watch"])
def test_no_module_imports_itself_through_others(package: str) -> None:
    names = {module_name(path): path for path in sources(package)}
    graph = {}
    for name, path in names.items():
        targets = {target for target in imports(path, top_level_only=True) if target in names and target != name}
        # `from package import module` names the package too; what runs then is the module.
        graph[name] = {t for t in targets if not any(other.startswith(t + ".") for other in targets)}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name in done:
            return
        for target in sorted(graph[name]):
            visit(target, (*trail, name))
        done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "helpers", "common", "misc", "types", "platform"}
    assert not {path.stem for package in ("nvrx_chain", "nvrx_watch") for path in sources(package)} & empty
