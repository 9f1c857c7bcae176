"""The kernels, which run attention calls. Each says why it refuses a call or what it costs; the cheapest runs it."""

from headwise.kernels.plan import KERNELS, Plan, choose, make_plan, run_call
from headwise.kernels.sdpa import run_at_once

__all__ = ["KERNELS", "Plan", "choose", "make_plan", "run_at_once", "run_call"]
