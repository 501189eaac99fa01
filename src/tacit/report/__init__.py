"""Pages: the report of a run folder, a comparison of runs, the privacy sheet, an audit, a sweep.

``report.html`` is made from what may be shared; ``local.html`` from ``local.json``, the exact numbers that stay with
the data holder. They are read and written separately, so no exact number can get into the page to share.
"""

from tacit.report.audit_page import write_audit
from tacit.report.comparison import compare, comparison_table, verdict
from tacit.report.sheet_page import write_sheet
from tacit.report.summary import write
from tacit.report.sweeps import sweep_page

__all__ = ["compare", "comparison_table", "sweep_page", "verdict", "write", "write_audit", "write_sheet"]
