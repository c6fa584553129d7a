"""Every check of the doctor, in the order of its lines. Pure: a new one is a function and a place in a tuple."""

from __future__ import annotations

from nvrx_chain.doctor.checks_node import NODE_CHECKS
from nvrx_chain.doctor.checks_place import PLACE_CHECKS
from nvrx_chain.doctor.checks_slurm import SLURM_CHECKS
from nvrx_chain.doctor.model import Check

CHECKS: tuple[Check, ...] = (*SLURM_CHECKS, *PLACE_CHECKS, *NODE_CHECKS)
