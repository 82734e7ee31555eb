"""`wsllama …`: what is done beside the deploy. Every command that reports has --json; exit codes are in each command's help."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from wsllama import recovery
from wsllama.commands import (
    accept,
    apply,
    bench,
    bootstrap,
    bundle,
    compare,
    diff,
    doctor,
    drift,
    gguf,
    lock,
    mirror,
    models,
    plan,
    rebuild_check,
    report,
    rollback,
    status,
    toolkit,
    uninstall,
    watch,
    windows,
    wslconfig,
)
from wsllama.commands.common import FAILED, ROOT, UNREACHABLE, Inventory, Json, Limit, connected, end, read

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def _about() -> None:
    """Servers of Qwen3.6-35B-A3B on Windows machines: llama.cpp in WSL2, provisioned by pyinfra.

    The deploy itself is `pyinfra inventory deploy.py`, in the project's folder. Run these commands there too: that is where
    group_data is looked for.
    """


@app.command(
    short_help="Check settings without connecting.",
    epilog="Example: wsllama check inventory. Exit codes: 0 all right, 2 something is wrong.",
)
def check(inventory: Inventory, limit: Limit = None, as_json: Json = False) -> None:
    """Check the settings of every host without connecting; all that is wrong is said at once."""
    _, hosts = read(inventory, limit, as_json)
    if as_json:
        print(json.dumps({"ok": True, "errors": [], "hosts": [h.name for h in hosts]}))
    else:
        typer.echo(f"{len(hosts)} host{'s' if len(hosts) != 1 else ''}, nothing wrong: {', '.join(h.name for h in hosts)}")
        for line in recovery.lines(inventory, {h.name for h in hosts}):
            typer.echo(line)


@app.command(
    short_help="Assert the end state of hosts.",
    epilog="Example: wsllama verify inventory --limit desk-1 --deep. Exit codes: 0 as wanted, 1 a check failed, 2 settings are"
    " wrong, 4 a host can't be reached.",
)
def verify(
    inventory: Inventory,
    limit: Limit = None,
    deep: Annotated[bool, typer.Option("--deep", help="Hash the models again: a minute for 20 GB, or several.")] = False,
    as_json: Json = False,
) -> None:
    """Assert the end state of hosts with testinfra: packages, files, build, model, service, socket, a reply. Changes nothing.

    With --deep a model file whose bytes are not what was installed loses its stamp, so that the next deploy brings it again;
    a server that has the right ones open goes on.
    """
    with connected(inventory, limit, as_json) as fleet:
        from wsllama import endstate

        report = endstate.check(ROOT / "tests" / "endstate", fleet, quiet=as_json)
        for host, sentence in endstate.hashed_again(fleet) if deep else ():
            report["failures"].append({"check": "the model's bytes", "reason": f"{host}: {sentence}"})
            report["failed"] += 1
            typer.echo(f"{host}: {sentence}", err=True)
    if as_json:
        print(json.dumps(report))
    else:
        typer.echo(f"{report['passed']} passed, {report['failed']} failed: {', '.join(report['hosts']) or 'no host was reached'}")
    for name, reason in report["unreachable"].items():
        typer.echo(f"{name} can't be reached: {reason}", err=True)
    raise typer.Exit(UNREACHABLE if report["unreachable"] else FAILED if report["failed"] or not report["passed"] else 0)


@app.command(
    short_help="Ask the served model.",
    epilog='Example: wsllama ask inventory "What is 2 + 2?" --limit desk-1. Exit codes: 0 answered, 1 no answer from a host,'
    " 2 settings are wrong, 4 a host can't be reached.",
)
def ask(
    inventory: Inventory,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What to ask.")],
    limit: Limit = None,
    thinking: Annotated[bool, typer.Option(help="Let the model think first.")] = True,
    max_tokens: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most tokens of thinking and answer.")] = None,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Don't ask: show what the chat template makes of the question.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Ask the served model; the question is put on the host itself, so no port need be reachable from here.

    A reply that was cut fails, with the limit that cut it. With --show-prompt nothing is computed: the text is shown that the
    model would go on from, with all marks of the template.
    """
    replies, failed = {}, dict[str, str]()
    with connected(inventory, limit, as_json) as fleet:
        from wsllama import layout
        from wsllama.domain import client
        from wsllama.guard import settings_of
        from wsllama.remote import RemoteError

        for host in fleet.hosts:
            settings = settings_of(host)
            argument = {
                "url": client.base_url(settings.server.host, settings.server.port),
                "alias": settings.model.alias,
                "key_file": layout.API_KEY if settings.server.api_key else None,
                "request_timeout_s": settings.acceptance.request_timeout_s,
                "question": question,
                "thinking": thinking,
                "max_tokens": max_tokens,
                "show_prompt": show_prompt,
            }
            try:
                replies[host.name] = fleet.run(host, "ask", argument)
            except RemoteError as e:
                failed[host.name] = str(e)
    failed |= {name: str(reply["cut"]) for name, reply in replies.items() if reply.get("cut")}
    if as_json:
        print(json.dumps({"replies": replies, "failed": failed, "unreachable": fleet.unreachable}, ensure_ascii=False))
    else:
        for name, reply in replies.items():
            if show_prompt:
                typer.echo(f"{name}:\n{reply['prompt']}")
                continue
            if reply["reasoning"]:
                typer.echo(f"{name} (thinks): {reply['reasoning'].strip()}")
            typer.echo(f"{name}: {reply['content'].strip()}")
    end(failed, fleet.unreachable)


app.command(epilog=accept.EPILOG)(accept.accept)
app.command(epilog=toolkit.EPILOG)(toolkit.toolkit)
app.add_typer(wslconfig.app, name="wslconfig")
app.command(epilog=apply.EPILOG)(apply.apply)
app.command(epilog=rebuild_check.EPILOG)(rebuild_check.rebuild_check)
app.command(epilog=rollback.EPILOG)(rollback.rollback)
app.command(epilog=doctor.EPILOG)(doctor.doctor)
app.command(epilog=drift.EPILOG)(drift.drift)
app.command(epilog=diff.EPILOG)(diff.diff)
app.command(epilog=status.EPILOG)(status.status)
app.command(epilog=watch.EPILOG)(watch.watch)
app.command(epilog=windows.EPILOG)(windows.windows)
app.command(epilog=uninstall.EPILOG)(uninstall.uninstall)
app.command(epilog=bundle.EPILOG)(bundle.bundle)
app.command(epilog=bootstrap.EPILOG)(bootstrap.bootstrap)
app.command(epilog=gguf.EPILOG)(gguf.gguf)
app.command(epilog=plan.EPILOG)(plan.plan)
app.add_typer(lock.app, name="lock")
app.command("mirror", epilog=mirror.EPILOG, short_help="Serve models to a fleet.")(mirror.serve)
app.command(epilog=models.EPILOG)(models.models)
app.command(epilog=bench.EPILOG)(bench.bench)
app.command(epilog=compare.EPILOG)(compare.compare)
app.command(epilog=report.EPILOG)(report.report)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
