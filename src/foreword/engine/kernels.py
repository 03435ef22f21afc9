"""The arithmetic of one layer on arrays of rows: products, normalisation, rotation, attention, activation."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import numpy as np

from foreword.engine.weights import Array

ATTENTION_ROWS = 64
"""Rows that attend at once: bounds the scores at 64 * heads per kv head * context floats."""
FEW_ROWS = 32
"""Below this, a product's time is that of reading the weights."""
_GEMV_ROWS = 3
"""Up to this many rows, matrix-vector products beat OpenBLAS's matrix product, which repacks the weights first."""

_FUTURE = np.triu(np.full((ATTENTION_ROWS, ATTENTION_ROWS), -np.inf, np.float32), 1)
"""Added to the scores of rows that attend together: none sees the rows after it."""

ScoreBuffer = Callable[[tuple[int, ...]], Array]
"""Gives an uninitialised array of a shape."""


def linear(x: Array, weight: Array, out: Array) -> Array:
    """Multiply x [rows, in] by the transpose of weight [out, in] into ``out`` [rows, out]."""
    if len(x) <= _GEMV_ROWS:
        for row, result in zip(x, out, strict=True):
            np.matmul(weight, row, out=result)
    elif len(x) < FEW_ROWS:
        out[...] = np.matmul(weight, x.T).T  # in this order OpenBLAS repacks the rows rather than the weights
    else:
        np.matmul(x, weight.T, out=out)
    return out


def rms_norm(x: Array, weight: Array, eps: float, out: Array) -> Array:
    """Root-mean-square normalisation: x / sqrt(mean(x ** 2) + eps) * weight, over the last axis."""
    mean_square = np.einsum("ij,ij->i", x, x) / x.shape[1]
    scale = 1 / np.sqrt(mean_square + np.float32(eps))
    np.multiply(x, scale[:, None], out=out)
    out *= weight
    return out


def rotate(x: Array, cos: Array, sin: Array, out: Array) -> None:
    """Rotate each pair (x[i], x[i + half]) of the last axis by its angle."""
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    np.multiply(low, cos, out=out[..., :half])
    out[..., :half] -= high * sin
    np.multiply(high, cos, out=out[..., half:])
    out[..., half:] += low * sin


def silu_times(gate: Array, up: Array, out: Array) -> Array:
    """silu(gate) * up, with silu(x) = x / (1 + exp(-x)); overflow in exp is expected and gives 0."""
    np.negative(gate, out=out)
    np.exp(out, out=out)
    out += 1
    np.divide(gate, out, out=out)
    out *= up
    return out


def attend(query: Array, keys: SequenceOf[Array], values: SequenceOf[Array], buffer: ScoreBuffer) -> Array:
    """Causal attention of rows that are the last positions of their context.

    Args:
        query: [kv heads, rows, heads per kv head, head_dim], scaled.
        keys: runs of the context in order, each [tokens, kv heads, head_dim].
        values: likewise.
        buffer: where the scores may be kept.

    Returns:
        The mixed values, [kv heads, rows, heads per kv head, head_dim].
    """
    heads, rows, group, head_dim = query.shape
    length = sum(map(len, keys))
    scores = buffer((heads, rows * group, length))
    flat, at = query.reshape(heads, rows * group, head_dim), 0
    for run in keys:
        np.matmul(flat, run.transpose(1, 2, 0), out=scores[:, :, at : at + len(run)])
        at += len(run)
    if rows > 1:
        scores.reshape(heads, rows, group, length)[..., length - rows :] += _FUTURE[:rows, None, :rows]
    total = _exponentiate(scores)
    mixed: Array = np.matmul(scores[:, :, : len(values[0])], values[0].transpose(1, 0, 2))
    at = len(values[0])
    for run in values[1:]:
        mixed += np.matmul(scores[:, :, at : at + len(run)], run.transpose(1, 0, 2))
        at += len(run)
    mixed /= total
    return mixed.reshape(query.shape)


def _exponentiate(scores: Array) -> Array:
    """Turn scores into exp(score - row maximum), in place, and return the row sums with the last axis kept."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    total: Array = scores @ np.ones((scores.shape[-1], 1), np.float32)  # four times as fast as sum()
    return total
