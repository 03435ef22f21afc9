"""Find the seam: where prompts part, why, and what a fix gives back; and assemble prompts that do not part.

Read ``seam`` (ids), ``changes`` (two requests as one tree), ``pair`` (every mixture of the two, encoded), ``diff`` (the
verdict), ``causes`` (why), ``sequence`` (a whole log); then ``fingerprint`` and ``ledger``, ``assemble`` and ``adapters``.
"""

from foreword.diagnose.assemble import AssemblyError, Prompt, Segment, ToolSet, Volatility, canonical_json
from foreword.diagnose.diff import Diff, OutsideCause, Seam, diff_prompts
from foreword.diagnose.fingerprint import Fingerprints, fingerprint_request, prefix_fingerprint
from foreword.diagnose.seam import first_divergence

__all__ = [
    "AssemblyError",
    "Diff",
    "Fingerprints",
    "OutsideCause",
    "Prompt",
    "Seam",
    "Segment",
    "ToolSet",
    "Volatility",
    "canonical_json",
    "diff_prompts",
    "fingerprint_request",
    "first_divergence",
    "prefix_fingerprint",
]
