"""A rank that writes down what the launcher told it and stays until it is told to end. Run by path, without torch.

Touches: worlds/ and the file `told` of the run directory, which is the current one.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_ARRAY_TASK_ID", "SLURMD_NODENAME")


def main() -> None:
    told = {name: os.environ[name] for name in NAMES}
    path = Path("worlds") / f"{os.environ['SLURM_ARRAY_JOB_ID']}.{told['RANK']}.json"
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.new")
    temporary.write_text(json.dumps(told))
    temporary.replace(path)
    while not Path("told").exists():
        time.sleep(0.2)


if __name__ == "__main__":
    main()
