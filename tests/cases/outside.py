"""Groups F, G and H: nothing in the prompt moves; usage, times, markers and routes tell."""

from __future__ import annotations

from typing import Any

from tests.cases.build import Body, Case, assistant, block, case, chat, claude, prose, system, talk, user

RULES = prose(900, 41)


def _openai(size: int, cached: int, **fields: Any) -> Body:
    return {"usage": {"prompt_tokens": size, "prompt_tokens_details": {"cached_tokens": cached}}, **fields}


def _anthropic(size: int, read: int, write: int, **fields: Any) -> Body:
    net = {"input_tokens": size - read - write, "cache_read_input_tokens": read, "cache_creation_input_tokens": write}
    return {"usage": net, **fields}


@case
def markers_lost_in_a_bridge() -> Case:
    """Cached stays at 23k while the prompt grows."""
    log = [
        _openai(30_000 + 25_000 * n, 23_040 if n else 0, time=1000 + 20 * n, session="s", model="claude-sonnet-4-5")
        for n in range(7)
    ]
    return Case("79", "F1", "markers lost behind the system text", log=log)


@case
def markers_lost_in_flattened_blocks() -> Case:
    """Cache reads pinned at 12k while the prompt grows to 33k."""
    log = []
    for n in range(5):
        body = claude([block(RULES, marked=True)], *talk(n * 4), user("Go."))
        log.append(
            _anthropic(
                15_000 + 4_500 * n, 12_000 if n else 0, 0 if n else 12_000, time=1000 + 20 * n, session="s", body=body
            )
        )
    return Case("80", "F1", "blocks flattened, markers dropped", log=log)


@case
def flag_ignored_by_the_formatter() -> Case:
    """No marker in the body, no write, no read."""
    log = [_anthropic(4000, 0, 0, time=1000 + 20 * n, body=claude(RULES, *talk(n), user("Go."))) for n in range(4)]
    return Case("81", "F1", "cache flag ignored by the formatter", log=log)


@case
def options_ignored_on_parts() -> Case:
    """The same where messages are parts."""
    log = [
        _anthropic(5200, 0, 0, time=1000 + 20 * n, body=claude([block(RULES)], *talk(n), user([block("Go.")])))
        for n in range(3)
    ]
    return Case("82", "F1", "marker options ignored on parts", log=log)


@case
def marker_frozen() -> Case:
    """Four breakpoints, then frozen at tool result 30 of 60."""
    log = []
    for n in range(20, 61, 5):
        turns = [
            user([block(f"result {k}: {prose(30, k)}", marked=k == min(n, 30) - 1)])
            if k % 2
            else assistant(f"call {k}")
            for k in range(n)
        ]
        read = 200 * min(n, 30)
        log.append(
            _anthropic(
                200 * n,
                read - 500 if n > 20 else 0,
                0 if n > 20 else read,
                time=1000 + n,
                session="s",
                body=claude(RULES, *turns),
            )
        )
    return Case("83", "F2", "breakpoint frozen at result 30", log=log)


@case
def marker_on_a_message_that_cannot_carry_it() -> Case:
    """Markers on tool messages that the converter drops."""
    log = []
    for n in range(3):
        result = {"role": "user", "cache_control": {"type": "ephemeral"}}
        turns = [
            turn
            for k in range(n + 1)
            for turn in (user(f"Ask {k}"), assistant("call"), {**result, "content": f"result {k} {prose(30, k)}"})
        ]
        log.append(_anthropic(4000 + 400 * n, 0, 0, time=1000 + 20 * n, session="s", body=claude(RULES, *turns)))
    return Case("84", "F2", "markers on messages that cannot carry them", log=log)


@case
def look_back_exceeded() -> Case:
    """One turn adds 24 blocks between two markers."""
    a = claude(RULES, user([block(prose(50, 1), marked=True)]))
    many = [block(f"result {n}: {prose(9, n)}", marked=n == 23) for n in range(24)]
    b = claude(RULES, user([block(prose(50, 1))]), assistant("calls"), user(many))
    log = [
        _anthropic(1500, 0, 1500, time=1000, session="s", body=a),
        _anthropic(2200, 0, 2200, time=1020, session="s", body=b),
    ]
    return Case("87", "F3", "24 blocks between two markers", log=log)


@case
def below_the_minimum() -> Case:
    """3,000 tokens on a model that caches from 4,096."""
    log = []
    for n in range(3):
        body = {**claude([block(RULES, marked=True)], user(f"Question {n}")), "model": "claude-opus-4-5"}
        log.append(_anthropic(3000, 0, 0, time=1000 + 20 * n, body=body))
    return Case("88", "F4", "prompt under the model's minimum", log=log)


@case
def effort_switched() -> Case:
    """Effort flips between turns."""
    log: list[Body] = []
    for n, effort in enumerate(("high", "high", "low", "low", "high")):
        cold = n == 0 or effort != log[-1]["body"]["reasoning_effort"]
        body = chat(system(RULES), *talk(n), user("Go."), reasoning_effort=effort)
        log.append(_openai(2000 + 200 * n, 0 if cold else 1920, time=1000 + 20 * n, session="s", body=body))
    return Case("91", "F6", "effort switched in mid-conversation", log=log)


@case
def entry_expired() -> Case:
    """Seven minutes between two turns on a five-minute entry."""
    bodies = [claude([block(RULES, marked=True)], *talk(n), user("Go.")) for n in range(2)]
    log = [
        _anthropic(2600, 0, 1500, time=1000, session="s", body=bodies[0]),
        _anthropic(2700, 0, 1500, time=1420, session="s", body=bodies[1]),
    ]
    return Case("89", "F5", "entry expired", log=log)


@case
def writes_nobody_reads() -> Case:
    """Every request writes, none reads."""
    log = [
        _anthropic(5000, 0, 4900, time=1000 + 20 * n, model="claude-sonnet-4-5", session=f"job{n}") for n in range(6)
    ]
    return Case("92", "F7", "writes that nobody reads", log=log)


@case
def shards_without_affinity() -> Case:
    """One fingerprint; cached alternates between nothing and 12k."""
    log = [
        _openai(12_400, 0 if n % 3 == 0 else 12_032, time=1000 + 5 * n, prefix_fp="abc", model="gpt-5.2")
        for n in range(12)
    ]
    return Case("93", "G1", "shards without an affinity key", log=log)


@case
def upstream_hosts_alternate() -> Case:
    """The provider that served changes."""
    log: list[Body] = []
    for n, host in enumerate(("alpha", "alpha", "beta", "beta", "gamma")):
        cold = n == 0 or host != log[-1]["provider"]
        log.append(
            _openai(
                8000 + 300 * n,
                0 if cold else 7900,
                time=1000 + 20 * n,
                session="s",
                provider=host,
                body=chat(system(RULES), *talk(n), user("Go.")),
            )
        )
    return Case("94", "G1", "upstream host changes", log=log)


@case
def replicas_with_their_own_maps() -> Case:
    """Two router replicas, each with its own sticky map."""
    log: list[Body] = []
    for n in range(8):
        replica = f"r{n % 2 if n < 6 else 0}"
        cold = n == 0 or replica != log[-1]["replica"]
        log.append(
            _openai(
                8000 + 300 * n,
                0 if cold else 7900,
                time=1000 + 20 * n,
                session="s",
                replica=replica,
                body=chat(system(RULES), *talk(n), user("Go.")),
            )
        )
    return Case("96", "G1", "router replicas without shared state", log=log)


@case
def first_call_of_another_agent() -> Case:
    """A second subagent of the same kind starts cold."""
    bodies = [chat(system(RULES), user(f"Task {n}: {prose(15, n)}")) for n in range(2)]
    log = [
        _openai(1400, 0, time=1000 + 40 * n, session=f"agent{n}", body={**body, "model": "local"})
        for n, body in enumerate(bodies)
    ]
    return Case("99", "G2", "first call of another conversation", log=log)


@case
def state_cannot_roll_back() -> Case:
    """The engine says it must process the prompt again."""
    line = "slot update_slots: id 0 | task 12 | forcing full prompt re-processing due to lack of cache data (SWA)"
    log = [
        _openai(
            9000 + 100 * n,
            0,
            time=1000 + 20 * n,
            session="s",
            log=line,
            body={**chat(system(RULES), *talk(n), user("Go.")), "model": "local"},
        )
        for n in range(3)
    ]
    return Case("100", "G3", "engine cannot roll back", log=log)


@case
def outputs_not_inserted() -> Case:
    """Prompt 100 and output 50, of which the next turn reuses 100."""
    first = _openai(100, 0, time=1000, session="s", model="local")
    first["usage"]["completion_tokens"] = 50
    return Case(
        "102", "G3", "outputs not inserted", log=[first, _openai(170, 100, time=1020, session="s", model="local")]
    )


@case
def dead_zone() -> Case:
    """No hits between 9k and 17k tokens."""
    sizes = (5000, 7000, 8500, 10_000, 12_000, 14_000, 16_500, 18_000, 21_000)
    log = [
        _openai(
            size,
            0 if 9000 < size < 17_000 or n == 0 else sizes[n - 1] // 128 * 128,
            time=1000 + 20 * n,
            session="s",
            model="gpt-5.2",
        )
        for n, size in enumerate(sizes)
    ]
    return Case("104", "G4", "provider's dead zone", log=log)


@case
def unit_of_128() -> Case:
    """1,181 tokens of which 1,024 are counted."""
    log = [_openai(1181, 1024 if n else 0, time=1000 + 20 * n, session="s", model="gpt-5.2") for n in range(2)]
    return Case("105", "G4", "units of 128 tokens", log=log)


@case
def counter_counts_recomputed_requests() -> Case:
    """A counter of 32 % on random prompts."""
    log = [
        _openai(1000, 320 if n else 0, time=1000 + n, body={"model": "local", "prompt": f"{n} {prose(600, 900 + n)}"})
        for n in range(6)
    ]
    return Case("107", "H1", "counter above what content allows", log=log)


@case
def field_not_read() -> Case:
    """The response has cachedContentTokenCount, the log says 0."""
    usage = {"promptTokenCount": 9000, "cachedContentTokenCount": 8100, "candidatesTokenCount": 40}
    log = [
        {"time": 1000 + n, "model": "gemini-2.5-pro", "cached_tokens": 0, "response": {"usageMetadata": usage}}
        for n in range(3)
    ]
    return Case("109", "H2", "cached tokens under a name nobody reads", log=log)
