"""A parked worker: an interpreter that has imported what takes long and waits to be told which rank it is.

Started as `python -u parked.py SOCKET PARENT MODULES ROOM`, never imported. It must behave afterwards as a fresh
`python script.py` would, so it keeps to the standard library, leaves nothing behind in `__main__`, and touches no GPU.
ROOM is blank, so that the command line of the script fits into its place. Touches: the socket, prctl(2), /proc/self.
"""

import sys

# The directory of this file: its modules must not be found instead of the user's.
del sys.path[0]

from typing import Any  # noqa: E402


def _park() -> dict[str, Any]:
    import ctypes
    import gc
    import importlib
    import json
    import os
    import signal
    import socket

    pr_set_pdeathsig = 1
    descriptor, parent, modules, _room = sys.argv[1:]
    preload = modules.split(",") if modules else []
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):
        # It died before the line above: no signal will come any more.
        os._exit(1)
    control = socket.socket(fileno=int(descriptor))

    def say(**words: object) -> None:
        control.sendall(json.dumps(words).encode() + b"\n")

    try:
        for name in preload:
            importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - whatever it is, a cold start takes its place
        say(failed=f"importing {name}: {type(error).__name__}: {error}")
        os._exit(1)
    # It lives to the end: no collection, nor the one with which an interpreter ends, need go through a million objects.
    gc.freeze()
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            # A parked process must hold no GPU: memory, contexts and a reset would all meet it.
            say(failed=f"importing {' '.join(preload)} opened {target}")
            os._exit(1)
    client = _load_client()
    say(ready=True)
    line = control.makefile("rb").readline()
    if not line:
        # The launcher has no use for it.
        os._exit(0)
    order: dict[str, Any] = json.loads(line)
    say(taken=True)
    control.close()
    _show(order["command"], order["set"].get("RANK", ""))
    os.environ.pop("NVRX_CHAIN_RANK_PLACE", None)
    for name in order["unset"]:
        os.environ.pop(name, None)
    os.environ.update(order["set"])
    if client.SOCKET_VARIABLE in os.environ:
        # So that the stacks of a script can be had that never heard of the client.
        client.write_stacks_on_signal(os.environ[client.SOCKET_VARIABLE])
    return order


def _load_client() -> Any:
    """The client of this very launcher, by its path: the interpreter may know no nvrx_chain, or another one."""
    import importlib.util
    import os

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "client.py")
    spec = importlib.util.spec_from_file_location("_nvrx_chain_client", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _show(command: list[str], rank: str) -> None:
    """Have `ps`, `pgrep -f` and whoever reads /proc see the script and its rank, as of an interpreter started with it.

    The kernel shows the memory in which a process was given its words (proc(5), arg_start to env_end in stat).
    """
    import ctypes

    with open("/proc/self/stat") as file:
        numbers = file.read().rpartition(")")[2].split()
    arg_start, arg_end, env_start = (int(numbers[field - 3]) for field in (48, 49, 50))
    if not arg_start or not env_start:
        return  # the kernel hides them
    room = arg_end - arg_start
    words = b"\0".join(word.encode(errors="surrogateescape") for word in command) + b"\0"
    ctypes.memmove(arg_start, words[: room - 1].ljust(room, b"\0"), room)
    with open("/proc/self/environ", "rb") as file:
        environment = file.read()
    place = b"NVRX_CHAIN_RANK_PLACE="
    at = (b"\0" + environment).find(b"\0" + place)
    if at < 0:
        return
    length = environment.index(b"\0", at) - at
    shown = b"RANK=" + rank.encode() + b"\0" + place
    if len(shown) <= length:
        # As long as before: a second zero in a row ends the environment for its readers.
        ctypes.memmove(env_start + at, shown.ljust(length, b"."), length)


def _become(order: dict[str, Any]) -> dict[str, Any]:
    """Make of this process what `python script.py` or `python -m module` would have started as."""
    import os

    if order["module"]:
        sys.path.insert(0, os.getcwd())
        sys.argv[:] = order["argv"]
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(order["argv"][0])))
        sys.argv[:] = order["argv"]
    return order


def _run(order: dict[str, Any]) -> None:
    import io
    import runpy

    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not (name.startswith("__") and name.endswith("__"))]:
        del main[name]
    if order["module"]:
        # What `python -m` itself calls: it runs in the real __main__.
        runpy._run_module_as_main(order["argv"][0])  # type: ignore[attr-defined]
        return
    path = order["argv"][0]
    main["__file__"] = path
    main.pop("__cached__", None)
    main["__doc__"] = None
    main["__annotations__"] = {}
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main)


_run(_become(_park()))
