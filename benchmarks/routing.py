"""How the weights of ``cache_aware`` trade tokens hit against time to first token on the Mooncake conversation trace.

    python -m benchmarks.routing

One row a pair of weights and a prefill rate; the policy's defaults are marked. Deterministic.
"""

from __future__ import annotations

from pathlib import Path

from foreword.gateway.policies import CacheAware
from foreword.gateway.route_replay import WorkerModel, replay_routes
from foreword.trace.readers import read_mooncake

TRACE = Path(__file__).parent / "data" / "mooncake_conversation.jsonl"


def main() -> None:
    """Print the sweep."""
    requests = list(read_mooncake(TRACE))
    print("prefill/s  queue  balance  tokens hit  spread  mean TTFT  p99 TTFT")
    for rate in (5_000.0, 10_000.0, 30_000.0):
        for queue in (0.0, 0.02, 0.05, 0.1, 0.3, 1.0):
            for balance in (0.001, 0.005, 0.03):
                policy = CacheAware(queue, balance)
                result = replay_routes(requests, policy, 8, WorkerModel(6000, prefill_rate=rate))
                mean = sum(result.ttft) / len(result.ttft)
                mark = "  <- default" if policy == CacheAware() else ""
                print(
                    f"{rate:9.0f}  {queue:5.2f}  {balance:7.3f}  {result.hit_ratio:10.2%}  {result.load_spread:6.3f}"
                    f"  {mean:9.3f}  {result.ttft_percentile(99):8.2f}{mark}"
                )


if __name__ == "__main__":
    main()
