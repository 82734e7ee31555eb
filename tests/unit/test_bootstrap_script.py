"""bootstrap.ps1 as Windows PowerShell 5.1 would read it: by its syntax tree, because no PowerShell can be had here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pytest
import tree_sitter_powershell
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_sitter import Language, Node, Parser

from wsllama.commands.bootstrap import script
from wsllama.domain.bootstrap import IMAGES, Settings

PARSER = Parser(Language(tree_sitter_powershell.language()))

# Cmdlets of Windows PowerShell 5.1 that are used, and whether they change something outside of the script.
# https://learn.microsoft.com/powershell/module/?view=powershell-5.1
CMDLETS = {
    "ConvertFrom-Json": False,
    "ConvertTo-Json": False,
    "Copy-Item": True,
    "ForEach-Object": False,
    "Get-ChildItem": False,
    "Get-CimInstance": False,
    "Get-FileHash": False,
    "Get-Item": False,
    "Get-ItemProperty": False,
    "Join-Path": False,
    "Move-Item": True,
    "New-Item": True,
    "New-ItemProperty": True,
    "New-Object": False,
    "Out-Null": False,
    "Read-Host": False,
    "Remove-Item": True,
    "Remove-ItemProperty": True,
    "Restart-Computer": True,
    "Select-Object": False,
    "Set-StrictMode": False,
    "Sort-Object": False,
    "Split-Path": False,
    "Start-Process": True,
    "Test-Path": False,
    "Where-Object": False,
    "Write-Host": False,
}
# Methods of .NET that are called, in the same way.
METHODS = {
    "Abs": False,
    "AddRange": False,
    "Close": False,
    "Contains": False,
    "ContainsKey": False,
    "CopyTo": True,
    "EndsWith": False,
    "Flush": True,
    "FromBase64String": False,
    "GetBytes": False,
    "GetCurrent": False,
    "GetEncoding": False,
    "GetFolderPath": False,
    "GetPathRoot": False,
    "GetResponse": False,
    "GetResponseStream": False,
    "GetString": False,
    "IsInRole": False,
    "ReadAllBytes": False,
    "ReadAllText": False,
    "Replace": False,
    "ShouldContinue": False,
    "ShouldProcess": False,
    "Subtract": False,
    "ToBase64String": False,
    "ToUniversalTime": False,
    "Trim": False,
    "TrimEnd": False,
    "Create": False,  # [Net.WebRequest]
    "WriteAllBytes": True,
    "WriteAllText": True,
    "WriteLine": False,
    "new": False,
}
TYPES = {  # of New-Object
    "IO.DriveInfo": False,
    "IO.FileStream": True,
    "PSObject": False,
    "Security.Principal.WindowsPrincipal": False,
    "System.Text.ASCIIEncoding": False,
    "System.Text.UTF8Encoding": False,
}
# Functions that change something without asking, so that each call of them has to stand where it was asked.
CHANGING = {"Set-Entry", "Invoke-Native", "Invoke-Inside", "Invoke-Elevated", "Receive-File"}
# What programs are asked without changing anything.
READING = re.compile(
    r"Invoke-Native \$Wsl @\('--list', '--running', '--quiet'\)"
    r"|Invoke-Native \$Wsl @\('-d', \$Settings\.name, '-u', 'root', '--exec', '/bin/cat', '/proc/1/comm'\)"
    r"|Invoke-Inside 'look'"
)
AUTOMATIC = {
    "whatifpreference",
    "_",
    "args",
    "true",
    "false",
    "null",
    "matches",
    "lastexitcode",
    "pscmdlet",
    "pscommandpath",
    "psscriptroot",
    "pshome",
}
NEWER = {  # what 7 has and 5.1 has not, and how it is seen
    "$a = $b ? 1 : 2": "ERROR",
    "$a = $b ?? 1": "ERROR",
    "$a ??= 1": "ERROR",
    "$a?.b": "ERROR",
    "function f { param() clean { 1 } }": "ERROR",
    "a && b": "pipeline_chain_tail",
    "a || b": "pipeline_chain_tail",
    "1 | ForEach-Object -Parallel { 2 }": "-parallel",
    "Get-Error": "command Get-Error",
}


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it, in the order of the text."""
    waiting = [node]  # a list, because the tree is some 60 deep, which recursion pays for at every node
    while waiting:
        yield (current := waiting.pop())
        waiting.extend(reversed(current.children))


def text(node: Node) -> str:
    assert node.text is not None
    return node.text.decode()


@cache
def tree(source: str) -> Node:
    return PARSER.parse(source.encode()).root_node


def default() -> Node:
    return tree(script(Settings()))


def of_type(node: Node, *kinds: str) -> list[Node]:
    return [n for n in walk(node) if n.type in kinds]


def ancestors(node: Node) -> Iterator[Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def problems(root: Node) -> set[str]:
    """What keeps 5.1 from reading a script, or from knowing what it names."""
    found = {n.type for n in walk(root) if n.type in ("ERROR", "pipeline_chain_tail")}
    found |= {"MISSING" for n in walk(root) if n.is_missing}
    found |= {p for p in (text(n).lower() for n in of_type(root, "command_parameter")) if p in ("-parallel", "-ashashtable")}
    functions = {text(n) for n in of_type(root, "function_name")}
    return found | {f"command {name}" for name in map(text, of_type(root, "command_name")) if name not in {*CMDLETS, *functions}}


def function_of(node: Node) -> str:
    """Name of the function that a node stands in; '' for the script itself."""
    for above in ancestors(node):
        if above.type == "function_statement":
            return next(text(n) for n in above.children if n.type == "function_name")
    return ""


def asked(node: Node) -> bool:
    """Whether a node stands in the branch of an if that is taken when Confirm-Change says yes."""
    below = node
    for above in ancestors(node):
        if above.type == "if_statement" and below.type == "statement_block":
            condition = above.child_by_field_name("condition")
            assert condition is not None
            if text(condition).startswith("Confirm-Change ") and " -or " not in text(condition):
                return True
        below = above
    return False


def changes(node: Node) -> bool:
    """Whether a call changes something outside of the script."""
    if node.type == "invokation_expression":
        return METHODS[text(next(n for n in node.children if n.type == "member_name"))]
    name = text(node).split()[0]
    if name == "New-Object":
        return TYPES[re.split(r"[\s(]", text(node))[1]]
    return CMDLETS[name] if name in CMDLETS else name == "&" or (name in CHANGING and not READING.match(text(node)))


def calls(root: Node) -> list[Node]:
    return of_type(root, "command", "invokation_expression")


def test_the_default_has_nothing_that_5_1_does_not_know() -> None:
    assert problems(default()) == set()


@pytest.mark.parametrize("snippet", NEWER)
def test_what_is_newer_than_5_1_is_seen(snippet: str) -> None:
    assert NEWER[snippet] in problems(tree(snippet))


@settings(deadline=None, max_examples=15)
@given(
    distro=st.sampled_from(sorted(IMAGES)),
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    location=st.none() | st.text("'@\"$`\u2019\u201c{}();& é\u7528", min_size=1).map("C:\\x\\{}x".format),
    git_url=st.none() | st.text("'@$`{}();&|%#", max_size=20).map("https://h/{}x".format),
    mirrored=st.booleans(),
)
def test_every_rendering_is_the_same_code(distro: str, name: str, location: str, git_url: str, mirrored: bool) -> None:
    try:
        chosen = Settings(distro, name, "ada", location, git_url, mirrored)
    except ValueError:
        return
    source = script(chosen)
    assert source.isascii()
    root = PARSER.parse(source.encode()).root_node
    assert problems(root) == set()
    assert [n.type for n in walk(root)] == [n.type for n in walk(default())]


def test_ascii_and_straight_quotes() -> None:
    source = script(Settings(location="C:\\\u2018x\u201d"))
    assert source.isascii()
    assert "\r" not in source
    assert source.endswith("\n")


def test_no_text_becomes_code() -> None:
    root = default()
    names = {text(n).lower() for n in of_type(root, "command_name")}
    assert not names & {"invoke-expression", "iex", "invoke-command", "icm", "add-type", "new-alias", "set-alias"}
    words = {text(n).lower() for n in of_type(root, "command_parameter")}
    words |= {text(n).lower().strip("'") for n in of_type(root, "string_literal")}
    assert not [w for w in words if w.startswith(("-enc", "-ec", "-e ")) or w == "-e"]
    assert not {text(n) for n in of_type(root, "member_name")} & {
        "Invoke",
        "InvokeScript",
        "ExpandString",
        "AddScript",
        "NewScriptBlock",
    }
    assert not [n for n in of_type(root, "type_literal") if "scriptblock" in text(n).lower()]


def test_no_string_is_filled_in_by_powershell() -> None:
    assert of_type(default(), "expandable_string_literal", "expandable_here_string_literal") == []


def test_programs_are_called_with_a_list_of_arguments_in_one_place() -> None:
    started = [n for n in of_type(default(), "command") if text(n).startswith(("&", "."))]
    assert {(function_of(n), text(n)) for n in started} == {("Invoke-Native", "& $Program @Arguments 2>&1 ")}
    assert [function_of(n) for n in of_type(default(), "command") if text(n).startswith("Start-Process")] == ["Invoke-Elevated"]


def test_an_administrator_s_powershell_gets_only_constants_and_names_of_the_settings() -> None:
    commands = [n for n in of_type(default(), "command") if text(n).startswith("Invoke-Elevated ")]
    assert [text(n).strip() for n in commands] == [
        "Invoke-Elevated $EnableFeatures $missing",
        "Invoke-Elevated $DisableFeatures $features",
    ]
    source = script(Settings())
    for name in ("missing", "features"):
        assert re.findall(rf"^ +\${name} = (.*)", source, re.M)[0].startswith("@($Settings.features | Where-Object")
    for name in ("EnableFeatures", "DisableFeatures"):
        (assigned,) = [n for n in of_type(default(), "assignment_expression") if text(n).startswith(f"${name} = ")]
        assert of_type(assigned, "variable") == [v for v in of_type(assigned, "variable") if text(v) == f"${name}"]
        assert '"' not in text(assigned)


def test_only_features_that_the_script_enabled_are_disabled() -> None:
    wanted = "    $features = @($Settings.features | Where-Object { @([string]$journal['features'] -split ',') -contains $_ })\n"
    assert wanted in script(Settings())


def test_what_is_started_at_logon_is_a_constant_that_windows_takes() -> None:
    (command,) = re.findall(r"^\$RunCommand = '([^']+)'$", script(Settings()), re.M)
    assert command == 'powershell.exe -NoProfile -ExecutionPolicy Bypass -File "%LOCALAPPDATA%\\wsllama\\bootstrap.ps1" -Resume'
    assert len(command) < 260  # Microsoft's documentation of the Run keys


def test_every_change_is_asked_for() -> None:
    unasked = [n for n in calls(default()) if changes(n) and not asked(n)]
    assert {function_of(n) for n in unasked} == CHANGING


def test_asking_is_should_process_and_a_no_is_named() -> None:
    (function,) = [n for n in of_type(default(), "function_statement") if "function Confirm-Change" in text(n)]
    body = re.sub(r"\s+", " ", re.sub(r"#.*", "", text(function)))
    assert body.endswith(
        "{ if ($Shell.ShouldProcess($What, 'bootstrap')) { return $true } Write-Step 'would change' $What return $false }"
    )
    assert "[CmdletBinding(SupportsShouldProcess = $true)]" in script(Settings())
    assert "$Shell = $PSCmdlet\n" in script(Settings())


def test_what_was_changed_is_said() -> None:
    for node in of_type(default(), "if_statement"):
        condition = node.child_by_field_name("condition")
        assert condition is not None
        if text(condition).startswith("Confirm-Change"):
            said = "Write-Step 'changed'" in text(node) or "Restart-Computer" in text(node) or "$done.Lines" in text(node)
            assert said, text(node)


def test_each_step_says_when_nothing_is_to_be_done() -> None:
    steps = {text(n).split()[0] for n in calls(default()) if function_of(n) == "Install-All"} - {"Write-Host"}
    silent = {"Assert-Name", "Assert-Folder", "Test-RestartPending", "Restart-Later", "Remove-Resume"}
    bodies = {text(n).split()[1]: text(n) for n in of_type(default(), "function_statement")}
    assert len(steps - silent) == 10
    for step in steps - silent:
        assert "'unchanged'" in bodies[step] or "$look.Lines" in bodies[step], step


def test_nothing_stops_before_it_is_said_who_runs() -> None:
    bodies = {text(n).split()[1]: text(n) for n in of_type(default(), "function_statement")}
    stopping = {
        name for name, body in bodies.items() if re.search(r"'--(update|uninstall|unregister|shutdown)'|Restart-Computer", body)
    }
    assert stopping == {"Update-Wsl", "Remove-Distro", "Undo-Wsl", "Restart-Later"}
    for name in stopping - {"Undo-Wsl"}:  # which goes on only where no other distro is left
        said, _, done = bodies[name].partition("Get-Running")
        assert done, name
        assert not re.search(r"'--(update|unregister)'|Restart-Computer\b", said), name
    assert "'--shutdown'" not in script(Settings())


def test_who_uninstalls_is_asked_before_anything_is_taken_back() -> None:
    steps = [text(n).split()[0] for n in of_type(default(), "command") if function_of(n) == "Uninstall-All"]
    first = min(steps.index(step) for step in ("Undo-Config", "Remove-Distro", "Undo-Wsl", "Remove-Resume"))
    assert "Assert-Consent" in steps[:first]
    (question,) = [n for n in calls(default()) if "ShouldContinue(" in text(n) and n.type == "invokation_expression"]
    assert function_of(question) == "Assert-Consent"


def test_every_variable_is_set_somewhere() -> None:
    set_ = {text(v).lower() for n in of_type(default(), "left_assignment_expression") for v in of_type(n, "variable")}
    set_ |= {text(v).lower() for n in of_type(default(), "script_parameter") for v in of_type(n, "variable")}
    set_ |= {text(n.children[2]).lower() for n in of_type(default(), "foreach_statement")}
    known = {name.removeprefix("$").removeprefix("script:") for name in set_} | AUTOMATIC
    used = {text(n).lower().removeprefix("$").removeprefix("@").removeprefix("script:") for n in of_type(default(), "variable")}
    assert {name for name in used - known if not name.startswith("env:")} == set()


def test_what_is_filled_into_a_sentence_is_there() -> None:
    checked = 0
    for node in of_type(default(), "format_expression"):
        if len(node.children) != 3 or node.children[1].type != "format_operator":
            continue
        places = {int(number) for number in re.findall(r"\{(\d)[^}]*\}", text(node.children[0]))}
        values = of_type(node.children[2], "array_literal_expression")[0]
        assert places == set(range(len([n for n in values.children if n.type != ","]))), text(node)
        checked += 1
    assert checked > 50


@pytest.mark.parametrize("name", ["Microsoft-Windows-Subsystem-Linux", "VirtualMachinePlatform"])
def test_features_stand_in_the_data_only(name: str) -> None:
    assert script(Settings()).count(name) == 1
