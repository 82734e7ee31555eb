"""`python -m lab`: start, list, enter and remove throw-away hosts."""

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path

from lab import base, registry
from lab.lab import Host, Lab, dump
from lab.tools import LabError, require_root, say

EXAMPLES = """\
examples:
  python -m lab up 2                    two hosts of this machine's own release, left running
  python -m lab up 1 --suite trixie     one host with Debian 13
  python -m lab list                    what runs, and the ssh command line of each host
  python -m lab sh lab-1                a shell on a host
  python -m lab sh lab-1 systemctl status
  python -m lab sh lab-1 'apt-get update && apt-get install -y jq'
  python -m lab down                    the only lab; with ids, those; with --all, all of yours

`up` prints the path of a pyinfra inventory: pyinfra /var/lib/wsllama-lab/ID/inventory.py deploy.py
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        require_root()
        return int(options.run(options))
    except (LabError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start a lab and leave it running until `down`")
    up.add_argument("count", metavar="N", type=_count, help="how many hosts")
    up.add_argument("--suite", default=base.default_suite(), help="release (default: %(default)s)")
    up.add_argument("--name", default="lab", help="hosts are called NAME-1, NAME-2, … (default: %(default)s)")
    up.add_argument("--json", action="store_true", help="print one JSON document")
    up.set_defaults(run=_up)
    listing = commands.add_parser("list", help="show the labs of this machine")
    listing.add_argument("--json", action="store_true", help="print one JSON document")
    listing.set_defaults(run=_list)
    down = commands.add_parser("down", help="remove labs that `up` started")
    down.add_argument("ids", metavar="ID", nargs="*", help="id or name of a lab (default: the only one)")
    down.add_argument("--all", action="store_true", help="every lab that `up` started")
    down.set_defaults(run=_down)
    shell = commands.add_parser("sh", help="a shell, or one command, on a host")
    shell.add_argument("host", metavar="HOST", help="name of a host, or ID/NAME when two labs have it")
    shell.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="command and its arguments")
    shell.set_defaults(run=_sh)
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 50:
        raise argparse.ArgumentTypeError("choose a number of hosts from 1 to 50")
    return int(text)


def _up(options: argparse.Namespace) -> int:
    started = time.monotonic()
    ccache: dict[str | Path, str | Path] = {
        base.cache_dir() / "ccache": "/var/cache/wsllama/ccache"
    }  # a deploy finds what earlier labs compiled
    lab = Lab(options.count, options.suite, name=options.name, binds=ccache).open()
    try:
        inventory = lab.inventory(lab.record.folder / "inventory.py")
        lab.keep()
    except BaseException:
        lab.close()
        raise
    if options.json:
        print(json.dumps(dump(lab), indent=2))
        return 0
    _describe(lab)
    print(f"inventory: {inventory}")
    say(f"up after {time.monotonic() - started:.1f} s; remove it with: python -m lab down {lab.id}")
    return 0


def _describe(lab: Lab) -> None:
    record = lab.record
    kind = "kept until down" if record.keep else f"of process {record.owner_pid}"
    print(f"lab {record.id} ({record.suite}, {kind})")
    for host in lab.hosts:
        print(f"  {host.name}  {host.address}  {'running' if host.running else 'stopped'}")
        print(f"    user {host.ssh_user}, port {host.ssh_port}, key {host.key}, known hosts {host.known_hosts}")
        print(f"    {shlex.join(host.ssh_argv())}")


def _labs() -> list[Lab]:
    return [Lab.attach(record) for record in registry.records()]


def _list(options: argparse.Namespace) -> int:
    labs = _labs()
    if options.json:
        print(json.dumps([dump(lab) for lab in labs], indent=2))
        return 0
    for lab in labs:
        _describe(lab)
    if not labs:
        print("no lab is running")
    return 0


def _down(options: argparse.Namespace) -> int:
    swept = registry.sweep()
    labs = _labs()
    if options.all:
        chosen = [lab for lab in labs if lab.record.keep]
    elif options.ids:
        called = {lab.id: {lab.id, lab.record.name} if lab.record.keep else {lab.id} for lab in labs}
        chosen = [lab for lab in labs if called[lab.id] & set(options.ids)]
        if missing := set(options.ids).difference(swept, *called.values()):
            raise LabError(f"There is no lab {missing.pop()!r}: `python -m lab list` shows those that run.")
    else:
        chosen = [lab for lab in labs if lab.record.keep]
        if len(chosen) > 1:
            raise LabError(f"{len(chosen)} labs run: name the ids ({', '.join(x.id for x in chosen)}) or say --all.")
    for lab in chosen:
        name = lab.id
        lab.close()
        print(f"removed lab {name}")
    if not chosen and not swept:
        print("no lab to remove")
    return 0


def _find(text: str) -> Host:
    lab_id, _, name = text.rpartition("/")
    found = [h for lab in _labs() if lab_id in ("", lab.id, lab.record.name) for h in lab.hosts if h.name == name]
    if not found:
        raise LabError(f"There is no host {text!r}: `python -m lab list` shows those that run.")
    if len(found) > 1:
        raise LabError(f"{len(found)} labs have a host {name!r}: say ID/{name}.")
    return found[0]


def _sh(options: argparse.Namespace) -> int:
    host = _find(options.host)
    argv = host.ssh_argv()
    words = options.command
    if words:  # one word is a line for the host's shell, several are a command and its arguments
        argv += ["--", words[0] if len(words) == 1 else shlex.join(words)]
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    sys.exit(main())
