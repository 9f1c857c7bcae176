"""Records of attention calls in linear memory: the weights are computed again, exactly, when they are requested."""

from headwise.records.coverage import CallSite, Coverage
from headwise.records.grouping import grouped
from headwise.records.record import AttentionRecord, Extras
from headwise.records.seen import Seen
from headwise.records.site import Site
from headwise.records.statistics import Statistic, Statistics

__all__ = ["AttentionRecord", "CallSite", "Coverage", "Extras", "Seen", "Site", "Statistic", "Statistics", "grouped"]
