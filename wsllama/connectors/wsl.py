"""`@wsl/<distro>`: a distro on this Windows machine. What runs pyinfra is Windows itself, or another distro of it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

from gevent.subprocess import PIPE, Popen
from pyinfra.api.exceptions import InventoryError
from typing_extensions import TypedDict

from wsllama.connectors.shell import INSTALLED, META, WslError, WslShell, distro_name

PLACES = (INSTALLED, "/mnt/c/Program Files/WSL/wsl.exe")  # before what PATH has, which may be the Store's alias


class ConnectorData(TypedDict):
    wsl_distro: str
    wsl_exe: str
    wsl_start_timeout: int


class WslConnector(WslShell):
    """A distro of WSL on this machine, as root.

    .. code:: shell

        pyinfra @wsl/Ubuntu-24.04 exec -- uname -r
    """

    data_cls = ConnectorData
    data_meta = META

    @staticmethod
    def make_names_data(name: str | None = None) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        if not name:
            raise InventoryError("@wsl needs a distro: @wsl/Ubuntu-24.04")
        yield f"@wsl/{name}", {"wsl_distro": distro_name(name)}, ["@wsl"]

    def connect(self) -> None:
        self.start_distro()

    def exe(self) -> str:
        found = self.data["wsl_exe"] or next(filter(os.path.exists, PLACES), None) or shutil.which("wsl.exe")
        if not found:
            raise WslError("there is no wsl.exe here: @wsl works on Windows and in its distros; set wsl_exe if it is elsewhere")
        return str(found)

    def start(self, words: list[str]) -> _Process:
        return _Process(words)


class _Process:
    def __init__(self, words: list[str]) -> None:
        try:
            self.process = Popen(words, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        except OSError as e:
            raise WslError(f"{words[0]} can't be run: {e.strerror}") from None
        self.out, self.err = self.process.stdout, self.process.stderr

    def write(self, data: bytes) -> None:
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def end_input(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self.process.stdin.close()

    def wait(self) -> int:
        status: int = self.process.wait()
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.out, self.err):
            with contextlib.suppress(OSError):
                pipe.close()
