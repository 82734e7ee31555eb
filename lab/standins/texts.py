"""What Windows' programs say, in the languages that a lab machine can have. Codes are never translated, texts are."""

NO_RIGHTS = {
    "en": "The requested operation requires elevation (Run as administrator).\n",
    "de": "Der angeforderte Vorgang erfordert erhöhte Rechte (Als Administrator ausführen).\n",
    "zh": "请求的操作需要提升(作为管理员运行)。\n",
}
FILE_NOT_FOUND = {
    "en": "The system cannot find the file specified.\n",
    "de": "Das System kann die angegebene Datei nicht finden.\n",
    "zh": "系统找不到指定的文件。\n",
}
PATH_NOT_FOUND = {
    "en": "The system cannot find the path specified.\n",
    "de": "Das System kann den angegebenen Pfad nicht finden.\n",
    "zh": "系统找不到指定的路径。\n",
}
ACCESS_DENIED = {"en": "Access is denied.\n", "de": "Zugriff verweigert\n", "zh": "拒绝访问。\n"}
ALIAS_IN_SESSION_0 = {
    "en": "The file cannot be accessed by the system.\n",
    "de": "Das System kann auf die Datei nicht zugreifen.\n",
    "zh": "系统无法访问此文件。\n",
}
NOT_A_COMMAND = {
    "en": "'{}' is not recognized as an internal or external command,\noperable program or batch file.\n",
    "de": 'Der Befehl "{}" ist entweder falsch geschrieben oder\nkonnte nicht gefunden werden.\n',
    "zh": "'{}' 不是内部或外部命令，也不是可运行的程序\n或批处理文件。\n",
}
UNC_BANNER = {
    "en": "'{}'\nCMD.EXE was started with the above path as the current directory.\n"
    "UNC paths are not supported.  Defaulting to Windows directory.\n",
    "de": '"{}"\nCMD.EXE wurde mit dem oben angegebenen Pfad als aktuellem Verzeichnis gestartet.\n'
    "UNC-Pfade werden nicht unterstützt.\nStattdessen wird das Windows-Verzeichnis als aktuelles Verzeichnis gesetzt.\n",
    "zh": "'{}'\n用作为当前目录的以上路径启动了 CMD.EXE。\nUNC 路径不受支持。默认值设为 Windows 目录。\n",
}
VER = {
    "en": "\nMicrosoft Windows [Version {}]\n",
    "de": "\nMicrosoft Windows [Version {}]\n",
    "zh": "\nMicrosoft Windows [版本 {}]\n",
}

# wsl.exe
DISTRO_NOT_FOUND = {
    "en": "There is no distribution with the supplied name.\n",
    "de": "Es ist keine Distribution mit dem angegebenen Namen vorhanden.\n",
    "zh": "不存在具有所提供名称的分发。\n",
}
USER_NOT_FOUND = {"en": "User not found.\n", "de": "Der Benutzer wurde nicht gefunden.\n", "zh": "找不到用户。\n"}
SERVICE_DISABLED = {
    "en": "The service cannot be started, either because it is disabled or because it has no enabled devices associated "
    "with it. \n",
    "de": "Der Dienst kann nicht gestartet werden. Er ist deaktiviert oder nicht mit aktivierten Geräten verbunden. \n",
    "zh": "无法启动服务，原因可能是已被禁用或与其相关联的设备没有启动。 \n",
}
ERROR_CODE = {"en": "Error code: {}\n", "de": "Fehlercode: {}\n", "zh": "错误代码: {}\n"}
NOT_INSTALLED = {
    "en": "The Windows Subsystem for Linux is not installed. You can install by running 'wsl.exe --install'.\n"
    "For more information please visit https://aka.ms/wslinstall\n",
    "de": 'Das Windows-Subsystem für Linux ist nicht installiert. Sie können es installieren, indem Sie "wsl.exe --install" '
    "ausführen.\nWeitere Informationen finden Sie unter https://aka.ms/wslinstall\n",
    "zh": "适用于 Linux 的 Windows 子系统未安装。可通过运行 “wsl.exe --install” 进行安装。\n"
    "有关详细信息，请访问 https://aka.ms/wslinstall\n",
}
LIST_HEADING = {
    "en": "Windows Subsystem for Linux Distributions:\n",
    "de": "Windows-Subsystem für Linux-Distributionen:\n",
    "zh": "适用于 Linux 的 Windows 子系统分发:\n",
}
LIST_DEFAULT = {"en": "{} (Default)\n", "de": "{} (Standard)\n", "zh": "{} (默认值)\n"}
NONE_RUNNING = {
    "en": "There are no running distributions.\n",
    "de": "Es sind keine ausgeführten Distributionen vorhanden.\n",
    "zh": "没有正在运行的分发。\n",
}
DONE = {
    "en": "The operation completed successfully. \n",
    "de": "Der Vorgang wurde erfolgreich beendet. \n",
    "zh": "操作成功完成。 \n",
}
STATUS = {
    "en": "Default Distribution: {}\nDefault Version: 2\n",
    "de": "Standarddistribution: {}\nStandardversion: 2\n",
    "zh": "默认分发: {}\n默认版本: 2\n",
}
VERSIONS = {
    "en": "WSL version: {}\nKernel version: {}\nWSLg version: 1.0.74\nMSRDC version: 1.2.6518\n"
    "Direct3D version: 1.615.2-90114120\nDXCore version: 10.0.26200.1-250512-1010.ge-release\nWindows version: {}\n",
    "de": "WSL-Version: {}\nKernelversion: {}\nWSLg-Version: 1.0.74\nMSRDC-Version: 1.2.6518\n"
    "Direct3D-Version: 1.615.2-90114120\nDXCore-Version: 10.0.26200.1-250512-1010.ge-release\nWindows-Version: {}\n",
    "zh": "WSL 版本: {}\n内核版本: {}\nWSLg 版本: 1.0.74\nMSRDC 版本: 1.2.6518\nDirect3D 版本: 1.615.2-90114120\n"
    "DXCore 版本: 10.0.26200.1-250512-1010.ge-release\nWindows: {}\n",
}
BAD_ARGUMENT = {
    "en": "Invalid command line argument: {}\nPlease use 'wsl.exe --help' to get a list of supported arguments.\n",
    "de": "Ungültiges Befehlszeilenargument: {}\n"
    'Verwenden Sie "wsl.exe --help", um eine Liste der unterstützten Argumente abzurufen.\n',
    "zh": "命令行参数无效: {}\n请使用 “wsl.exe --help” 获取支持的参数列表。\n",
}

# reg.exe
NO_KEY = {
    "en": "The system was unable to find the specified registry key or value.\n",
    "de": "Der angegebene Registrierungsschlüssel bzw. Wert wurde nicht gefunden.\n",
    "zh": "系统找不到指定的注册表项或值。\n",
}

# schtasks.exe: every message starts with one of these
ERROR = {"en": "ERROR: ", "de": "FEHLER: ", "zh": "错误: "}
TASK_CREATED = {
    "en": 'SUCCESS: The scheduled task "{}" has successfully been created.\n',
    "de": 'ERFOLGREICH: Der geplante Task "{}" wurde erfolgreich erstellt.\n',
    "zh": '成功: 成功创建计划任务 "{}"。\n',
}
TASK_DELETED = {
    "en": 'SUCCESS: The scheduled task "{}" was successfully deleted.\n',
    "de": 'ERFOLGREICH: Der geplante Task "{}" wurde erfolgreich gelöscht.\n',
    "zh": '成功: 计划的任务 "{}" 被成功删除。\n',
}
TASK_STARTED = {
    "en": 'SUCCESS: Attempted to run the scheduled task "{}".\n',
    "de": 'ERFOLGREICH: Es wurde versucht, den geplanten Task "{}" auszuführen.\n',
    "zh": '成功: 尝试运行 "{}"。\n',
}
TASK_MALFORMED = {
    "en": "The task XML is malformed.\n",
    "de": "Das XML für die Aufgabe ist falsch formatiert.\n",
    "zh": "任务 XML 格式错误。\n",
}
TASK_EXISTS = {
    "en": 'WARNING: The task name "{}" already exists. Do you want to replace it (Y/N)? ',
    "de": 'WARNUNG: Der Taskname "{}" ist bereits vorhanden. Möchten Sie ihn ersetzen (J/N)? ',
    "zh": '警告: 任务名称 "{}" 已经存在。要替换它吗(Y/N)? ',
}
TASK_CONFIRM = {
    "en": 'WARNING: Are you sure you want to remove the task "{}" (Y/N)? ',
    "de": 'WARNUNG: Möchten Sie den Task "{}" wirklich entfernen (J/N)? ',
    "zh": '警告: 确实要删除任务 "{}" 吗(Y/N)? ',
}

# netsh.exe
NETSH_OK = {"en": "Ok.\n\n", "de": "OK.\n\n", "zh": "确定。\n\n"}
NETSH_NO_RULE = {
    "en": "\nNo rules match the specified criteria.\n\n",
    "de": "\nEs stimmen keine Regeln mit den angegebenen Kriterien überein.\n\n",
    "zh": "\n没有与指定标准相匹配的规则。\n\n",
}
NETSH_DELETED = {
    "en": "\nDeleted {} rule(s).\nOk.\n\n",
    "de": "\n{} Regel(n) gelöscht.\nOK.\n\n",
    "zh": "\n已删除 {} 规则。\n确定。\n\n",
}
NETSH_PROXY_HEAD = {
    "en": ("Listen on ipv4:             Connect to ipv4:", "Address         Port        Address         Port"),
    "de": ("Abhören auf ipv4:            Verbinden mit ipv4:", "Adresse         Port        Adresse         Port"),
    "zh": ("侦听 ipv4:                 连接到 ipv4:", "地址            端口        地址            端口"),
}
NETSH_RULE_LABELS = {
    "en": "Rule Name|Enabled|Direction|Profiles|Grouping|LocalIP|RemoteIP|Protocol|LocalPort|RemotePort|Edge traversal|Action",
    "de": "Regelname|Aktiviert|Richtung|Profile|Gruppierung|Lokales IP|Remote-IP|Protokoll|Lokaler Port|Remoteport|Edgeausnahme"
    "|Aktion",
    "zh": "规则名称|已启用|方向|配置文件|分组|本地 IP|远程 IP|协议|本地端口|远程端口|边缘遍历|操作",
}
NETSH_RULE_VALUES = {
    "en": {"yes": "Yes", "no": "No", "in": "In", "out": "Out", "any": "Any", "allow": "Allow", "block": "Block"},
    "de": {
        "yes": "Ja",
        "no": "Nein",
        "in": "Eingehend",
        "out": "Ausgehend",
        "any": "Beliebig",
        "allow": "Zulassen",
        "block": "Blocken",
    },
    "zh": {"yes": "是", "no": "否", "in": "入", "out": "出", "any": "任何", "allow": "允许", "block": "阻止"},
}

# powershell.exe
UAC_CANCELLED = {
    "en": "The operation was canceled by the user.",
    "de": "Der Vorgang wurde durch den Benutzer abgebrochen.",
    "zh": "操作已被用户取消。",
}
UAC_NOBODY = {
    "en": "This operation requires an interactive window station.",
    "de": "Dieser Vorgang erfordert eine interaktive Windowstation.",
    "zh": "此操作需要交互式窗口工作站。",
}
SCRIPTS_DISABLED = {
    "en": "File {} cannot be loaded because running scripts is disabled on this system. For more information, see "
    "about_Execution_Policies at https:/go.microsoft.com/fwlink/?LinkID=135170.\n",
    "de": 'Die Datei "{}" kann nicht geladen werden, da die Ausführung von Skripts auf diesem System deaktiviert ist. Weitere '
    'Informationen finden Sie unter "about_Execution_Policies" (https:/go.microsoft.com/fwlink/?LinkID=135170).\n',
    "zh": "无法加载文件 {}，因为在此系统上禁止运行脚本。有关详细信息，请参阅 https:/go.microsoft.com/fwlink/?LinkID=135170 "
    "中的 about_Execution_Policies。\n",
}
NO_SCRIPT = {
    "en": "The argument '{}' to the -File parameter does not exist. Provide the path to an existing '.ps1' file as an argument "
    "to the -File parameter.\n",
    "de": 'Das Argument "{}" für den Parameter -File ist nicht vorhanden. Geben Sie den Pfad zu einer vorhandenen PS1-Datei als '
    "Argument für den Parameter -File an.\n",
    "zh": "-File 形式参数的实际参数“{}”不存在。请提供现有“.ps1”文件的路径，作为 -File 形式参数的实际参数。\n",
}
