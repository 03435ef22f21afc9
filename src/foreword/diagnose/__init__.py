"""Find the seam: where prompts part, why, and what a fix gives back; and assemble prompts that do not part.

Read ``seam`` (ids), ``changes`` (two requests as one tree), ``pair`` (every mixture of the two, encoded), ``diff`` (the
verdict), ``causes`` (why), ``sequence`` (a whole log); then ``fingerprint`` and ``ledger``, ``assemble`` and ``adapters``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreword.lazy import lazy_names

if TYPE_CHECKING:
    from foreword.diagnose.assemble import AssemblyError, Prompt, Segment, ToolSet, Volatility, canonical_json
    from foreword.diagnose.diff import Diff, Seam, diff_prompts
    from foreword.diagnose.fingerprint import Fingerprints, fingerprint_request, prefix_fingerprint
    from foreword.diagnose.notes import OutsideCause
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

_HOMES = {
    "AssemblyError": "foreword.diagnose.assemble",
    "Diff": "foreword.diagnose.diff",
    "Fingerprints": "foreword.diagnose.fingerprint",
    "OutsideCause": "foreword.diagnose.notes",
    "Prompt": "foreword.diagnose.assemble",
    "Seam": "foreword.diagnose.diff",
    "Segment": "foreword.diagnose.assemble",
    "ToolSet": "foreword.diagnose.assemble",
    "Volatility": "foreword.diagnose.assemble",
    "canonical_json": "foreword.diagnose.assemble",
    "diff_prompts": "foreword.diagnose.diff",
    "fingerprint_request": "foreword.diagnose.fingerprint",
    "first_divergence": "foreword.diagnose.seam",
    "prefix_fingerprint": "foreword.diagnose.fingerprint",
}

__getattr__ = lazy_names(__name__, _HOMES)
