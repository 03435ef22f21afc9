"""Write expected.json anew: ``python -m tests.cases.write_expected``. Read the difference before it is committed."""

import json
from pathlib import Path

from tests.cases.catalogue import all_cases, run_pair

from foreword.testing.words import WordTokenizer


def main() -> None:
    """Run every pair and write down its seam and what its fixes recover."""
    rows = {}
    for case in all_cases():
        if not case.log:
            diff = run_pair(case, WordTokenizer())
            rows[case.number] = {"seam": diff.shared_tokens, "recovered": diff.unreachable_tokens}
    lines = ",\n".join(f"  {json.dumps(number)}: {json.dumps(row)}" for number, row in rows.items())
    Path(__file__).with_name("expected.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
