"""A rank for the launcher's tests and benchmark: steps of a sleep and one all_reduce, each told in a file.

`rank.py DIRECTORY [--step SECONDS]`. It reads its orders from DIRECTORY/orders.RANK (one JSON object, taken once):
`{"do": "exit", "code": N}`, `"raise"`, `"stick"` (ignore TERM and stand still), `"finish"`. DIRECTORY/finish ends all.
"""

import json
import os
import sys
import time

BORN = time.time()
RANK = int(os.environ["RANK"])
ROUND = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
DIRECTORY = sys.argv[1]
STEP_SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 0.05
_EVENTS = open(os.path.join(DIRECTORY, f"events.{RANK}"), "a", buffering=1)  # noqa: SIM115 - for the whole life


def tell(what: str, **more: object) -> None:
    """One line about what happened."""
    line = {"what": what, "at": time.time(), "round": ROUND, "rank": RANK, "pid": os.getpid(), **more}
    _EVENTS.write(json.dumps(line) + "\n")


def orders() -> dict[str, object]:
    """What it was told to do, once."""
    path = os.path.join(DIRECTORY, f"orders.{RANK}")
    try:
        with open(path) as file:
            found: dict[str, object] = json.load(file)
        os.unlink(path)
    except FileNotFoundError:
        return {}
    return found


def obey(order: dict[str, object]) -> None:
    if order.get("do") == "exit":
        os._exit(int(str(order["code"])))
    if order.get("do") == "raise":
        raise RuntimeError("told to fail")
    if order.get("do") == "stick":
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        tell("stuck")
        while True:
            time.sleep(3600)


def main() -> None:
    tell("born", at=BORN, node=os.environ.get("NODE"), agent=os.getppid())
    import torch
    import torch.distributed as dist

    tell("imported")
    dist.init_process_group("gloo")
    tell("joined", world=dist.get_world_size())
    number, one = 0, torch.ones(1)
    while not os.path.exists(os.path.join(DIRECTORY, "finish")):
        order = orders()
        if order.get("do") == "finish":
            break
        obey(order)
        time.sleep(STEP_SECONDS)
        dist.all_reduce(one.clone())
        number += 1
        tell("step", number=number)
    dist.destroy_process_group()
    tell("done")


if __name__ == "__main__":
    main()
