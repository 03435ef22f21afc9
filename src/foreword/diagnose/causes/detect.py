"""The detectors in the order they are asked; the first that answers names the cause.

Structure comes first (order, keys, shape, whole messages), then what looks alike, then the kind of value, then prose.
"""

from __future__ import annotations

from foreword.diagnose.causes import a_volatile, b_order, c_placement, d_history, e_template
from foreword.diagnose.causes.table import Context, Verdict
from foreword.diagnose.changes import Change

_DETECTORS = (
    e_template.parameter,
    b_order.order,
    b_order.keys,
    c_placement.image,
    d_history.reasoning,
    b_order.serialised,
    b_order.shape,
    e_template.look_alike,
    d_history.window,
    c_placement.reminder,
    c_placement.behind_history,
    c_placement.moved_block,
    a_volatile.in_tools,
    a_volatile.value,
    d_history.pruned,
    c_placement.retrieved,
    a_volatile.state,
    c_placement.injected,
    d_history.removed,
)


def detect(change: Change, context: Context) -> Verdict:
    """The cause of one change between two requests."""
    for detector in _DETECTORS:
        verdict = detector(change, context)
        if verdict is not None:
            return verdict
    return Verdict.of("Z0", "no pattern fits this change")
