"""`wsllama mirror`: a fleet takes a model from this machine, which downloaded it once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from wsllama import lock, mirror
from wsllama.commands.common import FAILED, Json
from wsllama.commands.lock import DEFAULT, LockFile, Refused, TokenFile, Unofficial, token_in

EPILOG = """\b
Examples:
  wsllama mirror Qwen3.6-35B-A3B-UD-Q4_K_M --address 192.0.2.10
  wsllama mirror --file /srv/Qwen3.6-35B-A3B-Q8_0.gguf --port 9000
  and of the hosts: model = {"name": "Qwen3.6-35B-A3B-UD-Q4_K_M", "source": "url", "url": "http://192.0.2.10:8766/"}

Exit codes: 0 ended by Ctrl-C or SIGTERM, 1 a model can't be had or the address is taken."""


def serve(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Models of the lock, with projector.")] = None,
    files: Annotated[list[Path] | None, typer.Option("--file", metavar="FILE", help="A GGUF here that the lock has.")] = None,
    address: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all of this machine.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any.")] = 8766,
    allow_unofficial: Unofficial = False,
    token_file: TokenFile = None,
    file: LockFile = DEFAULT,
    as_json: Json = False,
) -> None:
    """Serve models of the lock to hosts, over HTTP with ranges, until Ctrl-C.

    What isn't here yet is downloaded from the Hub first, and every file is held against the lock. Whoever reaches the address can
    read the files; nothing else is served.
    """
    try:
        held = lock.load(file).models
        if unknown := [name for name in names or [] if name not in held]:
            raise Refused(f"the lock has no model {', '.join(unknown)}: it has {', '.join(sorted(held)) or 'none'}")
        if not names and not files:
            raise Refused("nothing is to be served: give names of the lock, or --file")
        paths = mirror.verified(files or [], held, lambda text: typer.echo(text, err=True))
        for name in names or []:
            pin, token = held[name], token_in(token_file)
            if unknown_sum := not pin.refusal(name) and pin.refusal(name, with_mmproj=True):
                typer.echo(f"its projector is not served: {unknown_sum}", err=True)
            paths += mirror.bring(name, pin, mmproj=not unknown_sum, token=token, allow_unofficial=allow_unofficial)
        server = mirror.server(paths, address, port)
    except (lock.LockError, mirror.MirrorError, Refused) as e:
        _failed(str(e), as_json)
    except OSError as e:
        _failed(f"{address}:{port} can't be listened on: {e.strerror}: give another --address or --port", as_json)
    shown = mirror.reached(address)
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{server.server_port}/"
    if as_json:
        print(json.dumps({"ok": True, "url": url, "files": [path.name for path in paths]}), flush=True)
    else:
        for path in paths:
            typer.echo(f"{url}{path.name}  {path.stat().st_size} bytes")
    server.serve_forever()


def _failed(sentence: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"ok": False, "errors": [sentence]}))
    typer.echo(sentence, err=True)
    raise typer.Exit(FAILED)
