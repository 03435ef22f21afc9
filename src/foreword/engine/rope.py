"""Rotary position embedding: the frequencies a model states, and the tables of angles.

The scaling rules are those of Hugging Face's ``modeling_rope_utils`` ("default", "linear", "llama3").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreword.errors import ModelError


def inverse_frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None) -> tuple[float, ...]:
    """Take theta ** (-2i / head_dim) for i in 0..head_dim/2, scaled as ``scaling`` (of config.json) says."""
    plain = tuple(theta ** (-2 * i / head_dim) for i in range(head_dim // 2))
    kind = (scaling or {}).get("rope_type") or (scaling or {}).get("type") or "default"
    if not scaling or kind == "default":
        return plain
    if kind == "linear":
        return tuple(frequency / scaling["factor"] for frequency in plain)
    if kind == "llama3":
        return tuple(_llama3(frequency, scaling) for frequency in plain)
    raise ModelError(f"Rotary scaling {kind!r} is not supported.", hint='Supported are "default", "linear", "llama3".')


def _llama3(frequency: float, scaling: Mapping[str, Any]) -> float:
    """Long waves are slowed by ``factor``, short ones kept, those between blended."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    blend = min(1.0, max(0.0, (turns - low) / (high - low)))
    return float((1 - blend) * frequency / scaling["factor"] + blend * frequency)


def rotation_tables(inv_freq: tuple[float, ...], positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines, each [positions, head_dim / 2]; angles are taken in float64."""
    angles = np.outer(np.arange(positions, dtype=np.float64), np.array(inv_freq))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
