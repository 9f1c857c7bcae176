"""The ways to run a call. Each kernel says why it refuses and what it costs; the plan takes the cheapest."""

from headwise.kernels.plan import KERNELS, Plan, choose, make_plan, run_call
from headwise.kernels.sdpa import run_at_once

__all__ = ["KERNELS", "Plan", "choose", "make_plan", "run_at_once", "run_call"]
