"""``foreword route``: replay a trace through a routing policy, without servers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import click

from foreword.cli.numbers import FiniteRange
from foreword.errors import ConfigError
from foreword.gateway.policies import POLICIES, make_policy
from foreword.gateway.route_replay import RouteResult, WorkerModel, replay_routes
from foreword.trace.readers import MOONCAKE_BLOCK_SIZE, read_mooncake

MAX_WORKERS = 1024
"""As many as a gateway takes."""
POSITIVE = click.IntRange(min=1)
RATE = FiniteRange(min=0, min_open=True)


@click.command(name="route")
@click.option(
    "--trace", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Mooncake JSONL."
)
@click.option("--workers", default=8, show_default=True, type=click.IntRange(1, MAX_WORKERS), help="How many workers.")
@click.option("--blocks", default=6000, show_default=True, type=POSITIVE, help="Blocks each worker's cache holds.")
@click.option("--policy", default="cache_aware", show_default=True, help=f"{', '.join(POLICIES)}, or module:Class.")
@click.option(
    "--block-size",
    default=MOONCAKE_BLOCK_SIZE,
    show_default=True,
    type=POSITIVE,
    help="Tokens in a block of the trace.",
)
@click.option(
    "--prefill-rate", default=10_000.0, show_default=True, type=RATE, help="Prompt tokens a worker computes a second."
)
@click.option("--decode-rate", default=50.0, show_default=True, type=RATE, help="Tokens a second in each stream.")
@click.option("--seed", default=0, show_default=True, help="For policies that draw.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    trace: Path,
    workers: int,
    blocks: int,
    policy: str,
    block_size: int,
    prefill_rate: float,
    decode_rate: float,
    seed: int,
    as_json: bool,
) -> None:
    """Replay a trace through a routing policy: tokens hit, load spread, time to first token."""
    model = WorkerModel(blocks, block_size, prefill_rate, decode_rate)
    chosen = make_policy(policy, random.Random(seed))  # noqa: S311 - a simulation's chance
    result = replay_routes(read_mooncake(trace), chosen, workers, model)
    if not result.ttft:
        raise ConfigError(f"The trace {trace} holds no request.")
    report = summarize(result, policy, model)
    click.echo(json.dumps(report, indent=2) if as_json else render(report))


def summarize(result: RouteResult, policy: str, model: WorkerModel) -> dict[str, Any]:
    """The result as plain data; times in seconds, sizes in tokens."""
    return {
        "policy": policy,
        "workers": len(result.workers),
        "blocks": model.blocks,
        "block_size": model.block_size,
        "requests": len(result.ttft),
        "input_tokens": result.input_tokens,
        "hit_tokens": result.hit_tokens,
        "hit_ratio": round(result.hit_ratio, 6),
        "load_spread": round(result.load_spread, 4),
        "ttft_seconds": {
            "mean": round(sum(result.ttft) / max(len(result.ttft), 1), 4),
            **{f"p{percent}": round(result.ttft_percentile(percent), 4) for percent in (50, 90, 99)},
        },
        "per_worker": [
            {"requests": worker.requests, "prefill_tokens": worker.prefill_tokens, "hit_tokens": worker.hit_tokens}
            for worker in result.workers
        ],
    }


def render(report: dict[str, Any]) -> str:
    """The report for a reader."""
    ttft = report["ttft_seconds"]
    return "\n".join(
        [
            f"{report['policy']}: {report['requests']:,} requests over {report['workers']} workers x {report['blocks']:,} blocks",
            f"  tokens hit   {report['hit_ratio']:.2%} ({report['hit_tokens']:,} of {report['input_tokens']:,})",
            f"  load spread  {report['load_spread']:.3f} (busiest worker's prefill over the mean)",
            f"  first token  mean {ttft['mean']:.2f} s, p50 {ttft['p50']:.2f}, p90 {ttft['p90']:.2f}, p99 {ttft['p99']:.2f}",
        ]
    )
