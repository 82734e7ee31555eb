"""Settings of WSL itself: every documented key of .wslconfig and wsl.conf, under WSL's own names, as data that is checked
before anything is written. What is left out (None) stays as the machine has it."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from wsllama.domain.wslconfig import UNSOUND, Kind, find
from wsllama.settings_base import FromList, Topic
from wsllama.settings_base import Text as Printable

Flag: TypeAlias = bool | None
Number: TypeAlias = int | None
Text: TypeAlias = str | None
Size: TypeAlias = str | int | None
Ports: TypeAlias = Annotated[tuple[int, ...], FromList] | None


def _set(meaning: str) -> Any:
    return Field(None, description=meaning)


class Section(Topic):
    """One section of a file; its fields are the section's keys."""

    kind: ClassVar[Kind]
    section: ClassVar[str]

    @model_validator(mode="after")
    def _as_wsl_takes_it(self) -> Section:
        wrong = []
        for name, value in self.changes().items():
            key = find(self.kind, name)
            assert key, name
            try:
                key.normal(value)
            except ValueError as e:
                wrong.append(str(e))
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    def changes(self) -> dict[str, Any]:
        """What is set, by full name, as `wslconfig.edit` takes it."""
        values = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {f"{self.section}.{name}": value for name, value in values if value is not None}


class Wsl2(Section):
    """[wsl2] of .wslconfig: the virtual machine that all distros of a Windows user share."""

    kind: ClassVar[Kind] = "wslconfig"
    section: ClassVar[str] = "wsl2"

    memory: Size = _set("Memory of the VM, as in 48GB; WSL's own default is half of the machine's.")
    swap: Size = _set("Swap file, as in 8GB; 0: none. WSL's own default is a quarter of the VM's memory.")
    swapFile: Text = _set("Path of the swap file on Windows, in ASCII.")
    processors: Number = _set("Processors of the VM; 0: all.")
    vmIdleTimeout: Number = _set("Milliseconds from the end of the last distro to that of the VM; -1: never.")
    networkingMode: Literal["none", "nat", "bridged", "mirrored", "consomme", "virtioproxy"] | None = _set(
        "How the VM reaches the network; virtioproxy is the older name of consomme."
    )
    localhostForwarding: Flag = _set("What listens in a distro is reached on Windows as localhost; not in mirrored mode.")
    firewall: Flag = _set("Windows' Hyper-V firewall filters the VM's traffic.")
    dnsTunneling: Flag = _set("DNS goes through Windows instead of the network.")
    dnsProxy: Flag = _set("In NAT mode DNS goes to Windows' address.")
    autoProxy: Flag = _set("Distros get Windows' HTTP proxy.")
    dhcp: Flag = _set("Bridged mode asks for an address.")
    dhcpTimeout: Number = _set("Milliseconds for that.")
    ipv6: Flag = _set("IPv6 in the VM.")
    macAddress: Text = _set("Address of the VM's network card, as in 00:15:5D:01:02:03.")
    vmSwitch: Text = _set("Name of the switch for bridged mode.")
    gpuSupport: Flag = _set("Distros get the GPU.")
    guiApplications: Flag = _set("Graphical programs (WSLg).")
    nestedVirtualization: Flag = _set("Virtual machines inside the VM; Windows 11.")
    hardwarePerformanceCounters: Flag = _set("The processor's performance counters in the VM.")
    kernel: Text = _set("Path of another kernel on Windows, in ASCII.")
    kernelModules: Text = _set("Path of that kernel's modules (a VHD).")
    kernelCommandLine: Text = _set("More words for the kernel.")
    kernelBootTimeout: Number = _set("Milliseconds for the kernel's start.")
    kernelDebugPort: Number = _set("Port of a kernel debugger; 0: none.")
    loadKernelModules: Text = _set("Modules to load, with commas.")
    loadDefaultKernelModules: Flag = _set("Load WSL's own modules.")
    isolateDistroCgroup: Flag = _set("Every distro has its own control group.")
    distributionStartTimeout: Number = _set("Milliseconds for a distro's start.")
    mountDeviceTimeout: Number = _set("Milliseconds for a disk to appear.")
    defaultVhdSize: Size = _set("Largest size of a new distro's disk, as in 1TB.")
    systemDistro: Text = _set("Path of another system distro on Windows.")
    hostFileSystemAccess: Flag = _set("Distros see Windows' drives.")
    virtio: Flag = _set("Virtio devices.")
    virtiofs: Flag = _set("Windows' drives by virtiofs.")
    virtio9p: Flag = _set("Windows' drives by 9p over virtio; new versions of WSL pass over it.")
    safeMode: Flag = _set("Start with few features, to repair something.")
    telemetry: Flag = _set("Usage data to Microsoft.")
    debugConsole: Flag = _set("A window with the kernel's messages.")
    debugConsoleLogFile: Text = _set("File on Windows for these messages.")
    earlyBootLogging: Flag = _set("Messages from the kernel's first steps.")
    crashDumpFolder: Text = _set("Folder on Windows for crash dumps.")
    maxCrashDumpCount: Number = _set("Crash dumps that are kept.")


class General(Section):
    """[general] of .wslconfig."""

    kind: ClassVar[Kind] = "wslconfig"
    section: ClassVar[str] = "general"

    instanceIdleTimeout: Number = _set("Milliseconds from the end of the last window to that of its distro; -1: never.")
    distributionInstallPath: Text = _set("Folder on Windows for new distros, in ASCII.")


class Experimental(Section):
    """[experimental] of .wslconfig."""

    kind: ClassVar[Kind] = "wslconfig"
    section: ClassVar[str] = "experimental"

    autoMemoryReclaim: Literal["gradual", "dropcache", "disabled"] | None = _set("How an idle VM gives memory back to Windows.")
    sparseVhd: Flag = _set("New disks are sparse; only False is taken, because it has damaged file systems.")
    bestEffortDnsParsing: Flag = _set("DNS tunnelling passes over what it doesn't know.")
    dnsTunnelingIpAddress: Text = _set("Address of the name server in the VM.")
    initialAutoProxyTimeout: Number = _set("Milliseconds for Windows' proxy to be known.")
    ignoredPorts: Ports = _set("Ports that mirrored mode leaves to the VM.")
    hostAddressLoopback: Flag = _set("In mirrored mode the machine reaches itself by its own addresses.")
    setVersionDebug: Flag = _set("Messages of wsl --set-version.")
    swiotlb: Size = _set("Bounce buffers of the VM.")
    virtioFsAggregateShares: Flag = _set("One virtiofs device for all drives.")

    @model_validator(mode="after")
    def _sound(self) -> Experimental:
        if self.sparseVhd:
            raise ValueError(UNSOUND["experimental.sparseVhd"])
        return self


class Automount(Section):
    """[automount] of wsl.conf: Windows' drives in the distro."""

    kind: ClassVar[Kind] = "wslconf"
    section: ClassVar[str] = "automount"

    enabled: Flag = _set("Mount them.")
    root: Text = _set("Folder that they are mounted below.")
    options: Text = _set("Options of DrvFs: metadata, uid, gid, umask, fmask, dmask, case.")
    mountFsTab: Flag = _set("Mount what /etc/fstab names.")
    ldconfig: Flag = _set("Make the GPU's libraries known to programs.")
    cgroups: Literal["v1", "v2"] | None = _set("Version of the control groups.")


class Filesystem(Section):
    """[filesystem] of wsl.conf."""

    kind: ClassVar[Kind] = "wslconf"
    section: ClassVar[str] = "filesystem"

    umask: Annotated[int, Field(ge=0, le=0o777)] | None = _set("Permissions that new files don't get, as in 0o022.")


class Interop(Section):
    """[interop] of wsl.conf."""

    kind: ClassVar[Kind] = "wslconf"
    section: ClassVar[str] = "interop"

    enabled: Flag = _set("Windows programs can be started from the distro.")
    appendWindowsPath: Flag = _set("Windows' PATH is a part of the distro's.")


class WslNetwork(Section):
    """[network] of wsl.conf."""

    kind: ClassVar[Kind] = "wslconf"
    section: ClassVar[str] = "network"

    hostname: Text = _set("Name of the distro's machine.")
    generateHosts: Flag = _set("WSL writes /etc/hosts.")
    generateResolvConf: Flag = _set("WSL writes /etc/resolv.conf.")


class Time(Section):
    """[time] of wsl.conf."""

    kind: ClassVar[Kind] = "wslconf"
    section: ClassVar[str] = "time"

    useWindowsTimezone: Flag = _set("Take Windows' time zone.")


class FileServer(Section):
    """[fileServer] of wsl.conf: how Windows sees the distro's files."""

    kind: ClassVar[Kind] = "wslconf"
    section: ClassVar[str] = "fileServer"

    enabled: Flag = _set("Windows sees them.")
    logFile: Text = _set("File for messages.")
    logLevel: Number = _set("How many messages.")
    logTruncate: Flag = _set("Begin the file anew at each start.")


class Gpu(Section):
    """[gpu] of wsl.conf."""

    kind: ClassVar[Kind] = "wslconf"
    section: ClassVar[str] = "gpu"

    enabled: Flag = _set("The distro gets the GPU.")
    appendLibPath: Flag = _set("The GPU's libraries are in LD_LIBRARY_PATH of shells.")


class User(Section):
    """[user] of wsl.conf."""

    kind: ClassVar[Kind] = "wslconf"
    section: ClassVar[str] = "user"

    default: Text = _set("User that a session begins as.")


class Boot(Section):
    """[boot] of wsl.conf."""

    kind: ClassVar[Kind] = "wslconf"
    section: ClassVar[str] = "boot"

    systemd: Flag = _set("systemd runs the distro.")
    command: Text = _set("Command that root runs at each start; it doesn't keep the distro running.")
    initTimeout: Number = _set("Milliseconds that WSL waits for systemd.")
    protectBinfmt: Flag = _set("systemd doesn't remove what starts Windows programs.")


class WslConfGeneral(Section):
    """[general] of wsl.conf."""

    kind: ClassVar[Kind] = "wslconf"
    section: ClassVar[str] = "general"

    guiApplications: Flag = _set("Graphical programs in this distro.")


class Conf(Topic):
    """wsl.conf, in the distro."""

    automount: Automount = Automount()
    filesystem: Filesystem = Filesystem()
    interop: Interop = Interop()
    network: WslNetwork = WslNetwork()
    time: Time = Time()
    fileServer: FileServer = FileServer()
    gpu: Gpu = Gpu()
    user: User = User()
    boot: Boot = Boot()
    general: WslConfGeneral = WslConfGeneral()


class Wsl(Topic):
    """WSL itself, on platform wsl: what of it is ours, and the sections of .wslconfig, and of wsl.conf below `conf`; names and
    meanings in these sections are WSL's own."""

    windows: bool = Field(True, description="False: nothing on the Windows side is looked at or changed, .wslconfig included.")
    profile: Printable | None = Field(
        None, description="Folder of the Windows user, as in /mnt/c/Users/Ada or C:\\Users\\Ada; without it it is looked for."
    )
    distro: Printable | None = Field(None, description="Name of the distro, in ASCII; without it it is looked up.")
    restart: bool = Field(
        False, description="A run may call `wsl --shutdown`, which ends all distros and Docker Desktop, when a change needs it."
    )
    keep_alive: Literal["auto", "task", "startup", "off"] = Field(
        "auto",
        description="How the distro is started with the Windows user's session: task: a task of the Task Scheduler;"
        " startup: a file in the Startup folder; auto: the task, or else the file.",
    )
    wsl2: Wsl2 = Wsl2()
    general: General = General()
    experimental: Experimental = Experimental()
    conf: Conf = Conf()

    @field_validator("profile")
    @classmethod
    def _path(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"/|[A-Za-z]:[\\/]", value):
            raise ValueError("a folder is given whole, as in /mnt/c/Users/Ada or C:\\Users\\Ada")
        return value

    @field_validator("distro")
    @classmethod
    def _ascii(cls, value: str | None) -> str | None:
        # other letters have kept distros from being found (WSL#14039), and the name goes into command lines of Windows
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            raise ValueError("a distro's name has ASCII letters, digits, dots, - and _ only: import it under another name")
        return value

    def changes(self, kind: Kind) -> dict[str, Any]:
        """What is set for one of the two files, by full name, as `wslconfig.edit` takes it."""
        holder = self if kind == "wslconfig" else self.conf
        sections = (getattr(holder, name) for name in type(holder).model_fields)
        return {n: v for section in sections if isinstance(section, Section) for n, v in section.changes().items()}
