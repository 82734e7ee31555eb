"""One closing line over several pytest runs: `N passed, N failed, N skipped`, from their JUnit files."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def main(paths: list[str]) -> int:
    """Print the line; the exit code is 1 when something failed or nothing ran."""
    count = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for path in paths:
        if not Path(path).exists():  # a run that did not get so far as to write it
            count["tests"] += 1
            count["errors"] += 1
            continue
        for suite in ElementTree.parse(path).getroot().iter("testsuite"):
            for key in count:
                count[key] += int(suite.get(key, "0"))
    failed = count["failures"] + count["errors"]
    passed = count["tests"] - failed - count["skipped"]
    print(f"{passed} passed, {failed} failed, {count['skipped']} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
