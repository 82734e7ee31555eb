"""`@wslssh/<windows-host>:<distro>`: a distro behind the OpenSSH server of Windows, which needs no sshd of its own."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from typing import Any, ClassVar

from paramiko import AuthenticationException, BadHostKeyException, SSHException
from pyinfra.api.exceptions import ConnectError, InventoryError
from pyinfra.connectors.base import DataMeta
from pyinfra.connectors.ssh import ConnectorData as SshData
from pyinfra.connectors.ssh import SSHConnector, connector_data_meta

from wsllama.connectors.shell import BLOCK, INSTALLED, META, WslError, WslShell, distro_name


class ConnectorData(SshData):  # type: ignore[misc]
    wsl_distro: str
    wsl_exe: str
    wsl_start_timeout: int


class WslSshConnector(WslShell, SSHConnector):  # type: ignore[misc]
    """A distro of WSL on another machine, as root, through SSH to Windows. All data of @ssh hold for that.

    .. code:: shell

        pyinfra @wslssh/win-01:Ubuntu-24.04 --data ssh_user=ada exec -- uname -r
    """

    data_cls = ConnectorData
    data_meta: ClassVar = {**connector_data_meta, **META, "wsl_exe": DataMeta("Path of wsl.exe on Windows", INSTALLED)}

    @staticmethod
    def make_names_data(name: str | None = None) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        host, _, distro = (name or "").rpartition(":")
        if not host or not distro:
            raise InventoryError("@wslssh needs a Windows host and a distro: @wslssh/win-01:Ubuntu-24.04")
        yield f"@wslssh/{name}", {"ssh_hostname": host, "wsl_distro": distro_name(distro)}, ["@wslssh"]

    def connect(self) -> None:
        try:
            SSHConnector.connect(self)
        except ConnectError as e:
            raise ConnectError(refused(e, self.data["ssh_hostname"])) from None
        try:
            self.start_distro()
        except (SSHException, EOFError) as e:
            raise ConnectError(f"{self.data['ssh_hostname']} runs no command over SSH: {e}") from None

    def exe(self) -> str:
        path: str = self.data["wsl_exe"]
        if not re.fullmatch(r"[A-Za-z0-9 _.:\\/~()-]+", path):
            raise WslError(
                f"wsl_exe {path!r} can't be a word of Windows' command line: use A-Z a-z 0-9 space and _ . : \\ / ~ ( ) -"
            )
        return path

    def start(self, words: list[str]) -> _Channel:
        program, *rest = words
        quoted = f'"{program}"' if re.search(r"[ ()]", program) else program
        assert self.client is not None
        return _Channel(self.client.get_transport().open_session(timeout=60), " ".join([quoted, *rest]))

    def check_can_rsync(self) -> None:
        raise NotImplementedError("@wslssh does not support rsync")


def refused(error: ConnectError, host: str) -> str:
    """One sentence for why SSH did not connect; error: pyinfra's, raised from what paramiko or the system raised."""
    cause = error.__context__
    if isinstance(cause, BadHostKeyException):
        return (
            f"{host} shows another host key than known_hosts has for it: if Windows was installed anew, remove the old one with"
            f" ssh-keygen -R {cause.hostname}"
        )
    if isinstance(cause, AuthenticationException) or "No authentication methods" in str(cause):
        return (
            f"Windows on {host} refused the login: check ssh_user and ssh_key; the key of an administrator belongs into"
            r" C:\ProgramData\ssh\administrators_authorized_keys"
        )
    if isinstance(cause, TimeoutError):
        return f"{host} did not answer in time: check that it is on, and that its firewall lets SSH in"
    if isinstance(cause, socket.gaierror):
        return f"{host} can't be found: check its name, or set ssh_hostname"
    return f"{host} can't be reached with SSH ({cause or error}): check that its OpenSSH server runs"


class _Channel:
    def __init__(self, channel: Any, command: str) -> None:
        self.channel = channel
        self.out, self.err = channel.makefile("rb"), channel.makefile_stderr("rb")
        channel.exec_command(command)

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), BLOCK):  # sendall copies all that is left for each packet
            self.channel.sendall(data[at : at + BLOCK])

    def end_input(self) -> None:
        with contextlib.suppress(OSError):
            self.channel.shutdown_write()

    def wait(self) -> int:
        status: int = self.channel.recv_exit_status()
        return status

    def close(self) -> None:
        self.channel.close()
