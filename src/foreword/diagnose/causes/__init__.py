"""Why a prefix stopped matching: the table of causes, and the detectors that name one for each change."""

from foreword.diagnose.causes.detect import detect
from foreword.diagnose.causes.table import Cause, Context, Verdict, all_causes, explain

__all__ = ["Cause", "Context", "Verdict", "all_causes", "detect", "explain"]
