"""What wsl.exe and cmd.exe print: lists, versions, the user's folder, and errors in any language. Pure.

Texts are translated, codes are not, nor is the order of lines (microsoft/WSL, localization/strings). wsl.exe writes UTF-16LE
without a mark into a pipe; cmd.exe writes in the console's code page.
"""

from __future__ import annotations

import re
from typing import Any

from wsllama.domain.text import is_utf16

_ERRORS = (
    ("vhd_compressed", r"0xc03a001a"),
    ("timeout", r"HCS_E_\w*TIMEOUT|0x80370109|0x80370118"),
    (
        "virtualization_off",
        r"HYPERV_NOT_INSTALLED|HCS_E_SERVICE_NOT_AVAILABLE|VIRTUAL_MACHINE_PLATFORM_REQUIRED|0x80370102|0x80370114",
    ),
    ("out_of_memory", r"0x800705aa|0x8007000e|E_OUTOFMEMORY|ERROR_NO_SYSTEM_RESOURCES|ERROR_OUTOFMEMORY"),
    ("distro_not_found", r"WSL_E_(?:DEFAULT_)?DISTRO_NOT_FOUND|no distribution with the supplied name|aka\.ms/wslstore"),
    ("access_denied", r"E_ACCESSDENIED|0x80070005"),
    ("store_alias_session0", r"0x80070780|ERROR_CANT_ACCESS_FILE"),
    ("wsl_not_installed", r"OPTIONAL_COMPONENT_REQUIRED|0x8007019e|0x80040154|REGDB_E_CLASSNOTREG"),
    ("virtualization_off", r"aka\.ms/enablevirtualization|Virtual Machine Platform"),
    (
        "interop_broken",
        r"exec format error|cannot execute binary file|unable to find an interpreter for|Fehler im Format der Programmdatei"
        r"|erreur de format pour exec|可执行文件格式错误|実行形式エラー",
    ),
    (
        "store_alias_session0",
        r"file cannot be accessed by the system|kann nicht auf die Datei zugreifen|ne peut pas accéder au fichier"
        r"|no (?:tiene acceso|puede obtener acceso|puede tener acceso) al archivo|não pode ser acessado pelo sistema"
        r"|o sistema não (?:pode|consegue) ace\w+ a?o (?:arquivo|ficheiro)|impossibile accedere al file|系统无法访问此文件"
        r"|系統無法存取(?:該)?檔案|システムからアクセスすることはできません|시스템에서 파일에 액세스할 수 없"
        r"|не имеет доступа к файлу"
        r"|nie może uzyskać dostępu do pliku|Системе не удается получить доступ к файлу",
    ),
    (
        "access_denied",
        r"access is denied|access denied|Zugriff verweigert|Accès refusé|Acceso denegado|Accesso negato|Acesso negado"
        r"|アクセスが拒否されました|拒绝访问|存取被拒|액세스가 거부|Отказано в доступе|Odmowa dostępu|Toegang geweigerd"
        r"|Permission denied"
        r"|Åtkomst nekad|Přístup byl odepřen|Erişim engellendi",
    ),
    ("wsl_not_installed", r"aka\.ms/wslinstall\b|not installed\. You can install|wsl(?:\.exe)?['\"]?: (?:command )?not found"),
    ("wsl_not_installed", r"wsl(?:\.exe)?['\"]? is not recogni[sz]ed|wsl\.exe --install['’”」]"),
)
_DRIVE = re.compile(r"^(?:[A-Za-z]:[\\/]|\\\\(?!wsl(?:\$|\.localhost))[^\\]+\\)")
_LIST = re.compile(r"\s(-l|--list|-lv|-lq)\b")
_BANNER = re.compile(r"^['\"]?\\\\(?:wsl\$|wsl\.localhost)\\", re.I)
_RUNS = re.compile(
    r"running|wird ausgeführt|ausgeführt|cours d.ex|ejecuci|execução|executando|esecuzione|正在运行"
    r"|執行中|正在執行|実行中|실행|выполня"
    r"|работает|запущен|uruchomion|działa|spuštěn|çalışıyor|wordt uitgevoerd|körs|actief",
    re.I,
)
_RESTS = re.compile(
    r"stopped|nicht ausgeführt|beendet|angehalten|gestoppt|arrêt|deten|parad|interromp|arrest|已停止|停止|중지"
    r"|останов|zatrzyman|zastaven|durdur"
    r"|gestopt|stoppad|installing|converting|exporting|uninstalling",
    re.I,
)


def examine(
    data: bytes, command: str | None = None, returncode: int | None = None, codepage: int | None = None
) -> dict[str, Any]:
    """What an output says, for JSON: a list, status, version, the user's folder, or an error.

    codepage: of the console, for what is neither UTF-16 nor UTF-8; 850 where that isn't known.
    """
    encoding, text = _decode(data, command or "", codepage)
    lines = [line.rstrip() for line in text.splitlines()]
    lines = [line for line in lines if line.strip() and not line.startswith("wsl: ")]  # warnings about .wslconfig
    kind = _kind(lines, command or "")
    error = _error(text, lines, kind)
    asked = bool(_LIST.search(command or "")) or kind == "userprofile"  # both may be empty
    if error or (returncode and not asked and not _reads(kind, lines)):
        return {"kind": "error", "encoding": encoding, "error_id": error or _by_code(returncode)}
    return {"kind": kind, "encoding": encoding, **_document(kind, lines)}


def _decode(data: bytes, command: str, codepage: int | None) -> tuple[str, str]:
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data.startswith(b"\xff\xfe") or is_utf16(data):
        return "utf-16le", data.decode("utf-16-le", "replace").lstrip("\ufeff")
    try:
        return "utf-8", data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    if command.startswith("wsl") and codepage is None and len(data) % 2 == 0:
        return "utf-16le", data.decode("utf-16-le", "replace")  # letters without a single NUL
    name = f"cp{codepage or 850}"
    try:
        return name, data.decode(name)
    except (LookupError, UnicodeDecodeError):
        return "cp850", data.decode("cp850")


def _kind(lines: list[str], command: str) -> str:
    """What was asked: by the command, or by the form of the answer."""
    if re.search(r"USERPROFILE", command, re.I):
        return "userprofile"
    if re.search(r"--version\b|\s-v$", command) and not re.search(r"\s(-l|--list)\b", command):
        return "version"
    if "--status" in command:
        return "status"
    if _LIST.search(command):
        return "list"
    if any(_DRIVE.match(line.strip()) for line in lines) and not any("WSL" in line for line in lines):
        return "userprofile"
    if len(lines) >= 6 and all(re.search(r"[:：]\s*\S*\d+\.\d+\S*$", line) for line in lines[:6]):
        return "version"
    return "status" if re.search(r"[:：]\s*[12]$", "\n".join(lines), re.M) else "list"


def _error(text: str, lines: list[str], kind: str) -> str | None:
    for name, pattern in _ERRORS:
        if re.search(pattern, text, re.I):
            return name
    if any(_BANNER.match(line.strip()) for line in lines) and not any(_DRIVE.match(line.strip()) for line in lines):
        return "unc_banner_only"
    return None


def _reads(kind: str, lines: list[str]) -> bool:
    """Whether an output that ended with an error holds what was asked for all the same."""
    return (kind == "status" and bool(_document(kind, lines)["distros"])) or (
        kind == "version" and bool(_document(kind, lines)["wsl_version"])
    )


def _by_code(returncode: int | None) -> str | None:
    return "wsl_not_installed" if returncode == 50 else None  # what Windows' own stub of wsl.exe ends with


def _document(kind: str, lines: list[str]) -> dict[str, Any]:
    if kind == "version":
        parts = [re.split(r"[:：]", line, maxsplit=1)[-1].strip() for line in lines]
        values = [part if part[:1].isdigit() else None for part in parts] + [None] * 7
        return {"wsl_version": values[0], "kernel_version": values[1], "windows_build": values[6]}
    if kind == "userprofile":
        found = [line.strip() for line in lines if _DRIVE.match(line.strip())]
        return {"profile": found[-1] if found else None}
    if kind == "status":
        name = re.split(r"[:：]", f"{lines[0] if lines else ''}:", maxsplit=2)[1].strip()  # a digit is the version's line
        return {"distros": [_distro(name, default=True)] if name and not name.isdigit() else []}
    return {"distros": _list(lines)}


def _distro(name: str, running: bool | None = None, version: int | None = None, default: bool = False) -> dict[str, Any]:
    return {"name": name, "state_running": running, "version": version, "default": default}


def _list(lines: list[str]) -> list[dict[str, Any]]:
    rows = [m for line in lines if (m := re.match(r"\s*(\*?)\s*(\S+)\s{1,}(\S.*?)\s+([12])$", line))]
    if rows:
        return [_distro(m[2], _running(m[3]), int(m[4]), m[1] == "*") for m in rows]
    out = []
    for i, line in enumerate(lines):
        m = re.fullmatch(r"\s*(\S+?)(\s*[(（][^)）]+[)）])?\s*", line)
        if m and not (i == 0 and re.search(r"[:：]$|\s", line.strip()) and not m[2]):
            out.append(_distro(m[1], default=bool(m[2])))
    return out


def _running(state: str) -> bool | None:
    if _RESTS.search(state):
        return False
    return True if _RUNS.search(state) else None
