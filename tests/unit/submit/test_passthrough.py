"""Options that would break a chain are refused by name, in every form that sbatch would take them."""

from __future__ import annotations

import pytest

from nvrx_chain.errors import UsageError
from nvrx_chain.submit.passthrough import check_sbatch_arguments


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("-d", "dependency"),
        ("-dafterany:999999", "dependency"),
        ("--dependency=afterany:1", "dependency"),
        ("--dependency", "dependency"),
        ("--dep=afterok:1", "dependency"),
        ("--de", "deadline"),
        ("-a0-4%0", "array"),
        ("--array=0-4%0", "array"),
        ("--arr=0-4", "array"),
        ("-J", "job-name"),
        ("-Jfoo", "job-name"),
        ("--job-name=foo", "job-name"),
        ("--requeue", "requeue"),
        ("--req", "requeue"),
        ("--no-requeue", "no-requeue"),
        ("-N4", "nodes"),
        ("--nodes=2", "nodes"),
        ("--wrap=true", "wrap"),
        ("-H", "hold"),
        ("-QH", "hold"),
        ("--hold", "hold"),
        ("--comment=x", "comment"),
        ("-D/tmp", "chdir"),
        ("-o/dev/null", "output"),
        ("-e/dev/null", "error"),
        ("--signal=USR2@10", "signal"),
        ("--export=NONE", "export"),
        ("--export-file=x", "export-file"),
        ("--parsable", "parsable"),
        ("--open-mode=truncate", "open-mode"),
        ("-n8", "ntasks"),
        ("--ntasks=8", "ntasks"),
        ("--ntasks-per-core=1", "ntasks-per-core"),
        ("-t10", "time"),
        ("--time=10", "time"),
        ("--deadline=now+1hour", "deadline"),
        ("-Mall", "clusters"),
        ("--cluster=x", "cluster"),
        ("--test-only", "test-only"),
        ("-W", "wait"),
        ("-k", "no-kill"),
        ("--gpus-per-node=8", "gpus-per-node"),
        ("--gpus-per-n=8", "gpus-per-node"),
        ("-pdebug", "partition"),
        ("-s", "oversubscribe"),
        ("-V", "version"),
        ("--uid=0", "uid"),
        ("-Qvd", "dependency"),
        ("-qhigh", "qos"),
        ("--mem=0", "mem"),
        ("-c8", "cpus-per-task"),
        ("--gres=gpu:8", "gres"),
        ("-xn1", "exclude"),
        ("-CaHd", "constraint"),
        ("--reservation=r", "reservation"),
        ("--mail-user=a", "mail-user"),
    ],
)
def test_a_breaking_option_is_refused_by_its_name(argument: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"--{name} cannot be passed") as caught:
        check_sbatch_arguments(("--nice=100", argument))
    assert argument in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "argument",
    [
        "--nice=100",
        "--gpus=8",
        "-G8",
        "--time-min=10",
        "--wait-all-nodes=1",
        "--nodelist=n[1-4]",
        "-wn1",
        "--nice=10",
        "--segment=4",
        "-v",
        "--stepmgr",
        "--some-spank-option=1",
    ],
)
def test_other_options_pass(argument: str) -> None:
    check_sbatch_arguments((argument,))


@pytest.mark.parametrize("argument", ["high", "", "-", "--", "script.sh"])
def test_a_bare_word_is_refused_because_sbatch_would_take_it_for_the_script(argument: str) -> None:
    with pytest.raises(UsageError, match="it is no option"):
        check_sbatch_arguments((argument,))
