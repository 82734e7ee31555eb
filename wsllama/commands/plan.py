"""`wsllama plan`: what fits a machine, before anything is downloaded, built or started."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wsllama import layout, lock, model_files, planning
from wsllama.commands.common import FAILED, REFUSED, UNREACHABLE, Json, Limit, connected, refuse
from wsllama.domain import memory, plan_report, planner
from wsllama.domain.memory import MIB
from wsllama.domain.toolkit import NEAREST
from wsllama.settings import LOCK, Settings

if TYPE_CHECKING:
    from wsllama.remote import Fleet

EPILOG = """\b
Examples:
  wsllama plan inventory
  wsllama plan --gpu 'RTX 4070:12282' --guest-ram-mib 24576 --host-ram-mib 32768 --model Qwen3.6-35B-A3B
  wsllama plan --gpu 'RTX 3090:24576' --gpu 'RTX 3060:12288' --guest-ram-mib 32768 --host-ram-mib 65536 \\
    --model Qwen3.6-35B-A3B --quant UD-Q5_K_XL --ctx-size 65536 --headless --json

The order in which something is given up: slots and host caches, experts to RAM, micro-batch, KV cache to q8_0, context, layers
to RAM, a smaller quant. A quant that was named is not changed.

Exit codes: 0 there is a plan, 1 a host could not be asked, 2 a plan is refused, or the input or settings are wrong,
4 a host can't be reached."""


def plan(
    inventory: Annotated[
        str | None, typer.Argument(metavar="[INVENTORY]", help="Plan its hosts, which are asked; or describe one machine below.")
    ] = None,
    limit: Limit = None,
    gpu: Annotated[list[str] | None, typer.Option(metavar="NAME:MIB", help="A GPU and its memory; may be repeated.")] = None,
    guest_ram_mib: Annotated[int | None, typer.Option(metavar="N", help="RAM of the Linux guest now.")] = None,
    host_ram_mib: Annotated[int | None, typer.Option(metavar="N", help="RAM of the Windows machine.")] = None,
    headless: Annotated[bool, typer.Option("--headless", help="No desktop is drawn by these GPUs.")] = False,
    model: Annotated[str | None, typer.Option(metavar="NAME|FILE", help="A model of wsllama.lock, or a GGUF.")] = None,
    quant: Annotated[str | None, typer.Option(metavar="Q", help="Its quantisation, as in UD-Q4_K_M.")] = None,
    ctx_size: Annotated[int | None, typer.Option(metavar="N", help="Context in tokens.")] = None,
    cache_type: Annotated[str | None, typer.Option(metavar="T", help="Type of the KV cache: f16, q8_0, q4_0 …")] = None,
    parallel: Annotated[int | None, typer.Option(metavar="N", help="Requests at a time.")] = None,
    mmproj: Annotated[bool | None, typer.Option("--mmproj/--no-mmproj", help="Load the projector, for pictures.")] = None,
    as_json: Json = False,
) -> None:
    """Plan a server: does it fit, with which settings, and what is given up for it.

    Reckons memory of every GPU and of RAM, threads, load mode, .wslconfig, download and build. Changes nothing.
    """
    wishes = {
        "ctx_size": ctx_size,
        "parallel": parallel,
        "cache_type_k": cache_type,
        "cache_type_v": cache_type,
        "mmproj": mmproj,
    }
    wishes = {name: value for name, value in wishes.items() if value is not None}
    machine_given = gpu or guest_ram_mib is not None or host_ram_mib is not None or headless
    if inventory is not None:
        if machine_given or model or quant:
            refuse(["an inventory's hosts are asked: leave the options that describe a machine or a model out"], as_json)
        _hosts(inventory, limit, wishes, as_json)
    else:
        _described(gpu or [], guest_ram_mib, host_ram_mib, headless, model or planning.FAMILY, quant, wishes, as_json)


def _described(
    cards: list[str],
    guest: int | None,
    host: int | None,
    headless: bool,
    name: str,
    quant: str | None,
    wishes: Any,
    as_json: bool,
) -> None:
    """Plan a machine that is described by options."""
    wrong = []
    if guest is None:
        wrong.append("the RAM of the guest is needed: give --guest-ram-mib, or an inventory whose hosts are asked")
    gpus = []
    for text in cards:
        card = read_card(text)
        gpus += [card] if isinstance(card, planner.Gpu) else []
        wrong += [card] if isinstance(card, str) else []
    candidates: list[planner.Model] = []
    others: list[planner.Model] = []
    try:
        candidates, others = planning.candidates_of(name, quant, bool(wishes.get("mmproj")))
    except (ValueError, lock.LockError) as e:
        wrong.append(str(e))
    if wrong or guest is None:
        refuse(wrong, as_json, refusals=wrong)
        return
    machine = planner.Machine(tuple(gpus), guest * MIB, None if host is None else host * MIB, headless)
    wanted = planner.Wanted(**wishes, backend="cuda" if gpus else "cpu")
    report = plan_report.report(machine, wanted, candidates, others)
    document = plan_report.document(report)
    if as_json:  # a machine without a name, so that one reader serves both forms
        typer.echo(json.dumps({**document, "hosts": {"": document}}, ensure_ascii=False))
    else:
        show(document)
    raise typer.Exit(0 if report.ok else REFUSED)


def read_card(text: str) -> planner.Gpu | str:
    """A GPU from NAME:MIB, or the sentence that says why it is none."""
    name, colon, size = (part.strip() for part in text.rpartition(":"))
    if not colon or not name:
        return f"--gpu {text!r} isn't NAME:MIB, as in 'RTX 4070:12282'"
    if size.upper() in ("[N/A]", "N/A"):
        return planner.Gpu(name, None)
    if not re.fullmatch(r"\d{1,7}", size, re.ASCII):
        return f"--gpu {text!r}: {size!r} is no number of MiB"
    return planner.Gpu(name, int(size) * MIB)


# Hosts that are asked


def _hosts(inventory: str, limit: list[str] | None, wishes: dict[str, Any], as_json: bool) -> None:
    documents: dict[str, Any] = {}
    failed: dict[str, str] = {}
    with connected(inventory, limit, as_json) as fleet:
        import gevent

        from wsllama.remote import RemoteError

        def one(host: Any) -> None:
            try:
                documents[host.name] = of_host(fleet, host, wishes)
            except (RemoteError, ValueError, lock.LockError, model_files.ModelError) as e:
                failed[host.name] = str(e)

        gevent.joinall([gevent.spawn(one, host) for host in fleet.hosts], raise_error=True)
    if as_json:
        documents |= {name: {"ok": False, "refusals": [reason], "warnings": []} for name, reason in failed.items()}
        typer.echo(json.dumps({"hosts": documents, "failed": failed, "unreachable": fleet.unreachable}, ensure_ascii=False))
    else:
        for name, document in sorted(documents.items()):
            typer.echo(f"{name}:")
            show(document, "  ")
    for name, reason in failed.items():
        typer.echo(f"{name}: {reason}", err=True)
    for name, reason in fleet.unreachable.items():
        typer.echo(f"{name} can't be reached: {reason}", err=True)
    refused = any(not document["ok"] for document in documents.values())
    raise typer.Exit(UNREACHABLE if fleet.unreachable else FAILED if failed else REFUSED if refused else 0)


def of_host(fleet: Fleet, host: Any, wishes: dict[str, Any]) -> dict[str, Any]:
    """A host's plan, as the JSON has it. Raises RemoteError when it can't be asked, ValueError for a file that can't be read."""
    from wsllama.guard import settings_of

    settings = settings_of(host)
    now = fleet.run(host, "probe", planning.looks(settings))
    ram = windows_memory(fleet, host) if settings.platform == "wsl" else None
    machine, problems = planning.machine_of(settings, now, ram, ours(fleet, host) if settings.backend == "cuda" else ())
    model = model_of(fleet, host, settings)
    wanted = planning.wanted_of(settings, wishes)
    known = [planning.of_lock(name, pin) for name, pin in lock.load(LOCK).models.items()]
    report = plan_report.report(machine, wanted, [model], [one for one in known if planning.family_of(one) == planning.FAMILY])
    report.refusals += problems
    if report.plan and model.exact:
        report.fit = asked_fit(fleet, host, report.plan, len(machine.gpus))
        report.warnings += report.fit or []
    return plan_report.document(report)


def windows_memory(fleet: Fleet, host: Any) -> int | None:
    """RAM of the Windows machine in bytes; None when Windows can't be asked."""
    from wsllama.remote import RemoteError

    try:
        found = fleet.run(host, "windows", {"ask": "machine"})["memory"]
    except RemoteError:
        return None
    return int(found) if found else None


def ours(fleet: Fleet, host: Any) -> list[int]:
    """Bytes that the running server holds on each GPU, by its own log: nvidia-smi tells no process's memory in WSL."""
    unit = layout.UNIT
    command = (
        f"systemctl is-active --quiet {unit} && journalctl -o cat --no-pager"
        f' "_SYSTEMD_INVOCATION_ID=$(systemctl show --value -p InvocationID {unit})"'
    )
    status, text, _ = fleet.shell(host, command)
    return planning.buffers(text) if status == 0 else []


def model_of(fleet: Fleet, host: Any, settings: Settings) -> planner.Model:
    """The model of a host's settings. Raises ValueError, ModelError and RemoteError."""

    def look(places: Sequence[str], mmproj: str | None) -> dict[str, Any]:
        argument = {"look": list(places), "mmproj": mmproj, "allow_unofficial": settings.model.allow_unofficial}
        return fleet.run(host, "model", argument)

    try:
        found = planning.model_of(settings, settings.model.on_host, look)
    except ValueError as e:
        raise ValueError(f"model.path: {e}") from e
    if found is None:
        raise ValueError(f"model.url: nothing is known of {settings.model.url} before it is installed: give model.name")
    return found


def asked_fit(fleet: Fleet, host: Any, plan: planner.Plan, gpus: int) -> list[str] | None:
    """What llama-fit-params on the host says otherwise than the plan; None where there is no build or no model yet."""
    program = f"{layout.CURRENT}/build/bin/llama-fit-params"
    words = shlex.join([program, *memory.fit_arguments(plan.load)])
    command = f'set -- {layout.CURRENT}/model/*.gguf; LD_LIBRARY_PATH=/usr/lib/wsl/lib exec timeout 60 {words} -m "$1"'
    status, out, err = fleet.shell(host, f"test -x {program} || exit 77; {command}")
    if status == 77:
        return None
    try:
        rows = memory.read_fit(out)
    except ValueError:
        return [f"llama-fit-params could not be asked: {(err.strip().splitlines() or ['no output'])[-1]}"]
    return memory.disagreements(memory.fit_rows(plan.model.summary, plan.load, gpus, plan.model.vocabulary), rows)


# For people


def show(document: dict[str, Any], indent: str = "") -> None:
    """Print a plan: its lines, what to mind, the table of quants."""
    for sentence in document["refusals"]:
        typer.echo(sentence if sentence.startswith(NEAREST) else f"refused: {sentence}", err=True)
    for line in document["explanation"]:
        typer.echo(indent + line)
    for sentence in document["warnings"]:
        typer.echo(f"{indent}mind: {sentence}")
    if document["fit"] == []:
        typer.echo(f"{indent}llama-fit-params on the host agrees.")
    if document["quants"]:
        typer.echo("")
        for line in table(document["quants"]):
            typer.echo(indent + line)


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """All quants: what each costs, and what it gives."""
    head = f"{'quant':<14} {'bits':>5} {'download':>9} {'VRAM':>9} {'RAM':>9} {'n_cpu_moe':>9} {'on GPU':>7} {'context':>8}  fits"
    out = [head]
    for row in rows:
        sizes = " ".join(f"{memory.text(row[key]):>9}" for key in ("bytes", "vram", "ram"))
        fits = "yes" if row["ok"] else "no"
        name, on_gpu = row["quant"] or row["name"][:14], row["experts_on_gpu_percent"]
        out.append(f"{name:<14} {row['bits']:>5} {sizes} {row['n_cpu_moe']:>9} {on_gpu:>6}% {row['ctx_size']:>8}  {fits}")
    return out
