"""The kernels, which run attention calls. Each says why it refuses a call or what it costs; the cheapest runs it."""

from headwise.kernels.plan import KERNELS, Plan, choose, make_plan, run_call
from headwise.kernels.sdpa import run_at_once
from headwise.kernels.site import make_site, site_key

__all__ = ["KERNELS", "Plan", "choose", "make_plan", "make_site", "run_at_once", "run_call", "site_key"]
