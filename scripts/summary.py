"""One closing line over several pytest runs: `N passed, N failed, N skipped`, from their JUnit files."""

import sys
import xml.etree.ElementTree as ElementTree


def main(paths: list[str]) -> int:
    """Print the line; the exit code is 1 when something failed or nothing ran."""
    count = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for path in paths:
        for suite in ElementTree.parse(path).getroot().iter("testsuite"):
            for key in count:
                count[key] += int(suite.get(key, "0"))
    failed = count["failures"] + count["errors"]
    passed = count["tests"] - failed - count["skipped"]
    print(f"{passed} passed, {failed} failed, {count['skipped']} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
