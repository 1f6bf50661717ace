"""Report of a reproduction."""

from experiments.report.cards import Entry
from experiments.report.pages import PAGES, report_pages

__all__ = ["PAGES", "Entry", "report_pages"]
