"""Fixtures of the integration tests; harness.py says how to use them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from nvrx_chain.sandbox import SandboxConfig
from tests.integration.cluster import Cluster, ClusterPool
from tests.integration.harness import FT_LAUNCHER, NASTY_NAME, TORCHRUN, Chain, Launcher
from tests.integration.measure import Figures

_HERE = Path(__file__).parent
_CHAINS = pytest.StashKey[list[Chain]]()
_FIGURES = pytest.StashKey[Figures]()

SubmitChain = Callable[..., Chain]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cluster(**options): options of SandboxConfig for the cluster of this test")
    config.stash[_FIGURES] = Figures()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.integration)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        for chain in item.stash.get(_CHAINS, []):
            report.sections.append(("chain", chain.describe()))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash[_FIGURES].render()
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Figures:
    """Where a test puts what it measured."""
    return request.config.stash[_FIGURES]


@pytest.fixture(scope="session")
def cluster_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterPool]:
    pool = ClusterPool(tmp_path_factory.mktemp("clusters"))
    yield pool
    pool.close()


@pytest.fixture
def cluster(cluster_pool: ClusterPool, request: pytest.FixtureRequest) -> Cluster:
    """A real private Slurm with every node idle; `@pytest.mark.cluster(...)` sets options of SandboxConfig."""
    marker = request.node.get_closest_marker("cluster")
    options = dict(marker.kwargs) if marker else {}
    unknown = set(options) - set(SandboxConfig.__dataclass_fields__)
    assert not unknown, f"no options of a sandbox: {unknown}"
    return cluster_pool.get(**options)


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SubmitChain]:
    """Submit a chain into a run directory with a nasty name; see `Chain.submit`. Cancelled at the end of the test."""
    chains: list[Chain] = []
    request.node.stash[_CHAINS] = chains
    numbers = itertools.count(1)
    # On what stands for the shared file system, where that can be cut off.
    base = cluster.sandbox.shared / tmp_path.name if cluster.sandbox.config.network else tmp_path

    def submit_chain(launcher: Launcher, *, run_dir: Path | None = None, **options: object) -> Chain:
        number = next(numbers)
        directory = run_dir or base / (NASTY_NAME if number == 1 else f"{NASTY_NAME} {number}")
        chain = Chain.submit(cluster, directory, launcher, **options)  # type: ignore[arg-type]
        chains.append(chain)
        return chain

    yield submit_chain
    for chain in chains:
        chain.cancel()


@pytest.fixture(
    params=[
        pytest.param(FT_LAUNCHER, id="ft_launcher"),
        pytest.param(TORCHRUN, id="torchrun", marks=pytest.mark.slow),
    ]
)
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """A launcher that restarts ranks: ft_launcher, in the full run also torchrun."""
    chosen: Launcher = request.param
    return chosen
