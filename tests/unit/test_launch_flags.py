"""The flags of the launcher: those of torchrun and ft_launcher are taken, dropped or refused, never lost silently."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from nvrx_chain.commands.launch import launch
from nvrx_chain.errors import UsageError
from nvrx_chain.launcher.flags import IGNORED, REFUSED, build_settings
from nvrx_chain.launcher.settings import LaunchSettings

FT_LAUNCHER_070 = """
--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --local-addr --standalone --max-restarts
--monitor-interval --workers-stop-timeout --term-timeout --start-method --role --log-dir --redirects --tee
--local-ranks-filter --module --no-python --run-path --node-rank --master-addr --master-port --logs-specs --ft-cfg-path
--ft-segment --ft-per-cycle-applog-prefix --ft-nvrx-logfile --ft-enable-log-server --ft-log-server-port
--ft-log-aggregator-count --ft-log-leaf-max-queue-chunks --ft-log-server-log-prefix
--ft-log-server-graceful-shutdown-timeout --ft-workload-check-interval --ft-initial-rank-heartbeat-timeout
--ft-rank-heartbeat-timeout --ft-rank-section-timeouts --ft-rank-out-of-section-timeout --ft-skip-section-response
--ft-rank-termination-signal --ft-safety-factor --ft-node-health-check-interval --ft-node-health-check-endpoint
--ft-enable-nic-monitor --ft-enable-nic-healthcheck --ft-pci-topo-file --ft-link-down-path-template
--ft-link-state-path-template --ft-enable-dist-storage-healthcheck --ft-storage-health-check-path
--ft-segment-health-check-dir --ft-numa-bind-strict --ft-gpu-memory-reclaim-timeout --ft-gpu-memory-tolerance-mb
--ft-gpu-memory-poll-interval --ft-check-remaining-processes --ft-install-exception-hook --ft-max-no-progress-cycles
--ft-min-progress-iterations --ft-checkpoint-iteration-file --ft-cycle-info-dir --ft-no-restart-exit-code
--ft-attribution-endpoint --ft-attribution-stop-action --ft-attribution-startup-timeout
--ft-attribution-llm-api-key-file --ft-attribution-llm-base-url --ft-attribution-llm-model
--ft-attribution-analysis-backend --ft-attribution-log-level --ft-attribution-export-url --ft-restart-policy
--ft-rdzv-impl --ft-restart-check-interval --ft-log-level --ft-ignore-missing-cfg
""".split()  # noqa: SIM905 - one name a line would be three pages
"""Every long flag of ft_launcher 0.7.0."""


def read(*words: str, environ: dict[str, str] | None = None) -> LaunchSettings:
    context = launch.make_context("launch", [*words])
    return build_settings(context.params, environ or {})


def ours() -> set[str]:
    return {word for option in launch.params if isinstance(option, click.Option) for word in option.opts}


@pytest.mark.parametrize("flag", FT_LAUNCHER_070)
def test_a_flag_of_ft_launcher_is_taken_dropped_or_refused_with_a_reason(flag: str) -> None:
    assert (flag in ours()) + (flag in IGNORED) + (flag in REFUSED) == 1


@pytest.mark.parametrize("flag", sorted(REFUSED))
def test_a_refused_flag_says_what_to_use(flag: str) -> None:
    with pytest.raises(UsageError, match=r"reading the command line: ") as caught:
        read(f"{flag}=x", "train.py")
    assert caught.value.hint


@pytest.mark.parametrize("words", [("--monitor-interval", "5"), ("--monitor_interval=5",), ("--ft-log-level", "DEBUG")])
def test_a_dropped_flag_takes_its_value_along(words: tuple[str, ...]) -> None:
    assert read(*words, "train.py", "--monitor-interval", "7").argv == ("train.py", "--monitor-interval", "7")


def test_words_of_the_script_are_left_to_it() -> None:
    settings = read("--nproc_per_node", "2", "train.py", "--nnodes=9", "--ft-cfg-path", "x", "-r", "3")
    assert settings.argv == ("train.py", "--nnodes=9", "--ft-cfg-path", "x", "-r", "3")
    assert settings.procs_per_node == 2


def test_a_value_that_looks_like_a_refused_flag_is_a_value() -> None:
    assert read("--health-check", "/bin/echo -r", "--role", "-t", "train.py").role == "-t"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nnodes", "3:2"), "reading --nnodes: 3:2"),
        (("--nnodes", "0"), "reading --nnodes: 0"),
        (("--nnodes", "x"), "reading --nnodes: x"),
        (("--nnodes", "2"), "joining the job: it is not said where"),
        (("--nnodes", "2", "--standalone"), "reading --standalone"),
        (("--rdzv-endpoint", "host:99999"), "reading --rdzv-endpoint: host:99999"),
        (("--rdzv-endpoint", ":5"), "reading --rdzv-endpoint: :5"),
        (("--rdzv-conf", "is_hots=1"), "reading --rdzv-conf: is_hots=1"),
        (("--rdzv-conf", "is_host=maybe"), "reading is_host in --rdzv-conf: maybe"),
        (("--rdzv-conf", "join_timeout=soon"), "reading join_timeout: soon"),
        (("--ft-enable-log-server", "perhaps"), "reading --log-funnel: perhaps"),
        (("--log-funnel", "1"), "reading --log-funnel: there is no log"),
        (("--segment", "0"), "reading --segment"),
        (("--ft-rank-section-timeouts", "step"), "hang detection: section time-outs"),
        (("--max-no-progress-cycles", "-1"), "--max-no-progress-cycles -1"),
        (("--gpus-per-numa", "0"), "binding ranks to NUMA nodes"),
        (("--health-check", "/no/such/program"), "reading --health-check"),
        (("--per-cycle-applog-prefix", "relative.log"), "reading where the application log goes: relative.log"),
        (("--capture-dir", "/tmp", "--capture-timeout", "-1"), "stack capture"),
    ],
)
def test_a_mistake_is_one_line_before_anything_starts(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(*words, "train.py")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("word\n")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="others can read its file"):
        read("--secret-file", str(path), "train.py")
    path.chmod(0o600)
    assert read("--secret-file", str(path), "train.py").secret == "word"


def test_a_secret_can_be_read_from_the_rendezvous_file_of_a_chain(tmp_path: Path) -> None:
    path = tmp_path / "rendezvous.json"
    path.write_text('{"secret": "word", "rendezvous_host": "n1"}')
    path.chmod(0o600)
    assert read("--secret-file", str(path), "train.py").secret == "word"


def test_one_node_alone_meets_nobody_and_hosts_itself() -> None:
    settings = read("train.py")
    assert (settings.host, settings.port, settings.is_host) == ("localhost", 0, True)


def test_variables_of_torchrun_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4")
    monkeypatch.setenv("PET_MAX_RESTARTS", "7")
    context = launch.make_context("launch", ["train.py"])
    settings = build_settings(context.params, os.environ)
    assert (settings.procs_per_node, settings.max_restarts) == (4, 7)
