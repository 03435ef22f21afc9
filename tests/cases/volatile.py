"""Group A: a volatile value ahead of stable text."""

from __future__ import annotations

from tests.cases.build import Case, assistant, block, case, chat, claude, prose, system, talk, tool, tools, user

RULES = prose(400, 7)
DEVICES = "\n".join(f"light.room_{n}: {'on' if n % 3 else 'off'}" for n in range(60))


@case
def voice_assistant_clock() -> Case:
    """A clock line ahead of a table of 60 devices."""

    def head(clock: str) -> str:
        return f"You control a house.\n{clock}{DEVICES}\n{RULES}"

    a = chat(system(head("Current time is 20:37:19.\n")), user("Kitchen light on, please."))
    b = chat(system(head("Current time is 20:39:02.\n")), user("What is open?"))
    fixed = chat(system(head("Current time is .\n")), user("Kitchen light on, please.\n20:37:19"))
    return Case(
        "02",
        "A1",
        "clock ahead of a device table",
        a,
        b,
        fixed=(fixed, chat(system(head("Current time is .\n")), user("What is open?\n20:39:02"))),
    )


@case
def clock_put_in_front_by_the_framework() -> Case:
    """The user's own template is static; a wrapper prepends date and time."""
    a = chat(system(f"Today is Monday, 30 November 2026 08:15.\n{RULES}"), user("One"))
    b = chat(system(f"Today is Tuesday, 1 December 2026 09:02.\n{RULES}"), user("Two"))
    return Case("03", "A1", "date and time prepended by the framework", a, b)


@case
def clock_and_retrieved_text() -> Case:
    """Two volatile places in one system text; fixing only the first shows no gain to speak of."""

    def body(clock: str, chunk: int, question: str) -> object:
        retrieved = f"Retrieved context:\n{prose(60, chunk)}"
        return chat(system(f"Now: {clock}\n{RULES}\n{retrieved}\n{prose(300, 9)}"), user(question))

    return Case(
        "06",
        "A1",
        "clock, and retrieved text behind it",
        body("2026-11-30T10:00:01Z", 31, "Why?"),
        body("2026-11-30T10:02:55Z", 32, "How?"),
        more=("C3",),
    )


@case
def timestamp_to_the_second() -> Case:
    """A timestamp with seconds in system.md."""
    a = chat(system(f"# Assistant\nGenerated 2026-11-30 14:05:09\n\n{RULES}"), user("Go on."))
    b = chat(system(f"# Assistant\nGenerated 2026-11-30 14:05:12\n\n{RULES}"), user("Go on, then."))
    return Case("07", "A1", "timestamp with seconds", a, b)


@case
def clock_leads_the_second_block() -> Case:
    """Block one is static; block two starts with a clock and holds the static sheet behind it."""

    def body(clock: str, question: str) -> object:
        return claude([block(prose(200, 3), marked=True), block(f"[{clock}] {prose(600, 4)}")], user(question))

    return Case(
        "10",
        "A1",
        "clock ahead of a static sheet in the second block",
        body("09:41", "Status?"),
        body("09:44", "Any change?"),
    )


def _nonce(chk: str, question: str, *, with_tools: bool) -> object:
    text = f"x-vendor-meta: v=2.1; chk={chk}; entry=cli\n{RULES}"
    fields = {"tools": tools(13)} if with_tools else {}
    return chat(system(text), *talk(6), user(question), **fields)


@case
def checksum_behind_the_tools() -> Case:
    """Five hex digits that differ per request; the tools ahead survive."""
    return Case(
        "11",
        "A2",
        "per-request checksum behind the tools",
        _nonce("ab12f", "Next?", with_tools=True),
        _nonce("90c4e", "Then?", with_tools=True),
    )


@case
def checksum_near_token_forty() -> Case:
    """The same without tools."""
    return Case(
        "13",
        "A2",
        "per-request checksum near the start",
        _nonce("1f3ac", "Next?", with_tools=False),
        _nonce("d00b5", "Then?", with_tools=False),
    )


@case
def git_snapshot_in_the_first_message() -> Case:
    """A process per turn puts a new git status into the first message."""

    def body(state: str, *rest: object) -> object:
        first = user([block(f"<env>\ngit status: {state}\n</env>"), block(f"Refactor the parser. {prose(80, 2)}")])
        return claude(RULES, first, *rest)

    a = body("branch main, 3 modified", assistant("Reading."), user("Go on."))
    b = body(
        "branch main, 4 modified, 1 untracked",
        assistant("Reading."),
        user("Go on."),
        assistant("Done."),
        user("Test it."),
    )
    return Case("15", "A3", "git status in the first message", a, b)


@case
def snapshot_behind_the_base_system() -> Case:
    """A runtime snapshot rendered anew each turn, right after the base system text."""

    def body(snapshot: str, turns: int) -> object:
        return chat(system(RULES), system(f"Runtime snapshot: {snapshot}"), *talk(turns), user(f"Turn {turns}"))

    return Case(
        "16",
        "A3",
        "runtime snapshot ahead of the history",
        body("2 jobs running, queue 14", 5),
        body("3 jobs running, queue 9", 6),
    )


@case
def memory_in_the_system_text() -> Case:
    """Memories recalled for this turn, inside the system text."""

    def body(memories: list[str], turns: int) -> object:
        recalled = "\n".join(f"- {memory}" for memory in memories)
        return chat(
            system(f"{RULES}\n# Recalled memories\n{recalled}\n# Style\n{prose(60, 5)}"), *talk(turns), user("And now?")
        )

    a = body(["likes tea", "has two cats", "lives in Porto"], 3)
    return Case(
        "17", "A3", "recalled memory in the system text", a, body(["plays chess", "has two cats", "works at night"], 4)
    )


@case
def changed_files_and_tabs() -> Case:
    """The list of changed files inside the system text."""

    def body(files: list[str], turns: int) -> object:
        listed = "\n".join(f"  {name}" for name in files)
        return chat(
            system(f"{RULES}\nChanged files:\n{listed}\nOpen tabs: {len(files)}\n{prose(200, 6)}"),
            *talk(turns),
            user("Go."),
        )

    return Case(
        "18",
        "A3",
        "changed files in the system text",
        body(["app.py", "db.py"], 3),
        body(["app.py", "api.py", "ui.py"], 4),
    )


@case
def three_lanes() -> Case:
    """Three kinds of requests in one log; one loses nearly everything."""
    log = []
    for n in range(6):
        log.append({"lane": "chat", "time": 1000 + n, "body": chat(system(RULES), *talk(n), user("Next"))})
        extract = chat(
            system(f"Workspace state: {n} files open, {n * 7 % 5} modified\n{prose(500, 8)}"),
            user(f"Extract {prose(9, n)}"),
        )
        log.append({"lane": "memory:extraction", "time": 1000.3 + n, "body": extract})
        log.append(
            {
                "lane": "title",
                "time": 1000.6 + n,
                "body": chat(system(prose(60, 12)), user(f"Title for {prose(6, n + 50)}")),
            }
        )
    return Case("19", "A3", "three lanes, one of which churns", log=log)


@case
def scratchpad_path_of_the_session() -> Case:
    """A UUID path of the session in the system text; the same id in metadata is harmless."""

    def body(session: str, question: str) -> object:
        text = f"{prose(200, 1)}\nScratchpad directory: /tmp/pad/{session}/work\n{prose(300, 2)}"
        return claude(text, user(question), tools=[], metadata={"user_id": f"user_1_session_{session}"})

    first, second = "0f8c1c52-7f4e-4d7d-9a59-3f1f6e0c2b11", "b7e3d2aa-51c9-4f0e-8c55-94d1a7e6f002"
    a, b = body(first, "Fix the build."), body(second, "Fix the build.")
    fixed = tuple(
        claude(
            f"{prose(200, 1)}\nScratchpad directory: /tmp/pad//work\n{prose(300, 2)}",
            user(f"Fix the build.\n{pad}"),
            tools=[],
            metadata={},
        )
        for pad in (first, second)
    )
    return Case("21", "A4", "session path in the system text", a, b, fixed=(fixed[0], fixed[1]), same_session=False)


@case
def session_url_in_a_tool_description() -> Case:
    """One of 13 descriptions holds a session URL of the same length."""

    def body(session: str, turns: int) -> object:
        kit = tools(13)
        kit[4] = tool(
            "bash", f"Run a command. Attribute commits to https://code.example.com/{session} always. {prose(60, 3)}"
        )
        return chat(system(RULES), *talk(turns), user("Go."), tools=kit)

    return Case(
        "23", "A5", "session URL in a tool description", body("session_01ABCdef", 2), body("session_01XYZuvw", 3)
    )


@case
def path_merge_and_list_order() -> Case:
    """Three at once: a path in a tool, the machine in the system text, a list in another order."""

    def body(cwd: str, host: str, skills: list[str]) -> object:
        kit = [tool("bash", f"Run in {cwd} only. {prose(30, 1)}"), *tools(5)]
        listed = "\n".join(f"- {skill}: {prose(8, len(skill))}" for skill in skills)
        return chat(
            system(f"{prose(150, 2)}\nHostname: {host}\n{prose(120, 3)}\nSkills:\n{listed}\n{prose(200, 4)}"),
            user("Hi"),
            tools=kit,
        )

    a = body("/home/ann/src/api", "ann-laptop-7", ["pdf", "slides", "tables", "charts"])
    b = body("/srv/build/web", "ci-runner-12", ["tables", "pdf", "charts", "slides"])
    return Case("25", "A5", "path in a tool, host in the system text, list order", a, b, more=("A4", "B1"))
