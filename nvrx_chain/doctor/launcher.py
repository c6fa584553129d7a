"""Whether an interpreter can import a launcher, and how long that takes. Touches: one process of that interpreter."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from nvrx_chain.doctor.facts import Launcher
from nvrx_chain.errors import Unobserved
from nvrx_chain.launchers import ft_launcher, nvrx, torchrun
from nvrx_chain.submit.children import ask_child

_WANTED = {
    "ft_launcher": (ft_launcher.MODULE, "nvidia-resiliency-ext"),
    "torchrun": (torchrun.MODULE, "torch"),
    "nvrx": (nvrx.LAUNCHER, "nvrx-chain"),
}
# First what is installed, which imports nothing; a second line comes only when the import has ended.
_PROGRAM = """
import importlib, importlib.metadata, importlib.util, json, sys, time
wanted, kind = json.loads(sys.argv[1]), sys.argv[2]
versions = {}
for name, (module, distribution) in wanted.items():
    if importlib.util.find_spec(module.partition(".")[0]) is not None:
        try:
            versions[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "unknown"
kind = kind or next((name for name in wanted if name in versions), "")
answer = {"python": sys.executable, "versions": versions, "kind": kind or None}
def tell():
    sys.stdout.write("\\n" + json.dumps(answer) + "\\n")
    sys.stdout.flush()
tell()
if kind in versions:
    began = time.monotonic()
    try:
        importlib.import_module(wanted[kind][0])
        answer["import_seconds"] = time.monotonic() - began
    except BaseException as error:
        answer["problem"] = f"{type(error).__name__}: {error}".replace("\\n", "; ")[:300]
    tell()
"""


def read_launcher(
    python: str, kind: str | None, environ: Mapping[str, str], *, seconds: float
) -> Launcher | Unobserved:
    """What `python` says; without a kind the first one that is installed is tried, as `nvrx-chain demo` does.

    An import that took longer has neither `import_seconds` nor a `problem`.
    """
    answer = ask_child(
        [python, "-c", _PROGRAM, json.dumps(_WANTED), kind or ""], environ, seconds=seconds, is_partial_enough=True
    )
    if isinstance(answer, Unobserved):
        return answer
    try:
        # A library may print while it is imported.
        return msgspec.json.decode(answer.strip().rpartition(b"\n")[2], type=Launcher)
    except msgspec.DecodeError as error:
        return Unobserved(f"{python} printed no answer of ours: {error}")
