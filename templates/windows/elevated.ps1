# Written by wsllama. Does what needs an administrator: the steps in elevated.json, which lies beside this file.
# Started by a user it asks for one confirmation (UAC) and starts itself again as an administrator.
# What came of each step is written to elevated.result.json. For Windows PowerShell 5.1; nothing is pasted into this text.
$ErrorActionPreference = 'Stop'
$self = $MyInvocation.MyCommand.Path
$here = Split-Path -Parent $self
$order = Get-Content -LiteralPath (Join-Path $here 'elevated.json') -Raw -Encoding UTF8 | ConvertFrom-Json
$vm = '{40E0AC32-46A5-438A-A0B2-2B479E8F2E90}'
$programs = @{ netsh = 'netsh.exe'; schtasks = 'schtasks.exe'; powercfg = 'powercfg.exe' }

function Save-Result($state, $why, $steps) {
    $text = ConvertTo-Json -Depth 5 -InputObject @{ run = $order.run; state = $state; why = [string]$why; steps = @($steps) }
    [IO.File]::WriteAllText((Join-Path $here 'elevated.result.json'), $text)
}

function Invoke-Program($kind, $words) {
    $program = Join-Path ([Environment]::SystemDirectory) $programs[$kind]
    $ErrorActionPreference = 'Continue'
    $said = & $program @words 2>&1 | Out-String
    return @{ code = $LASTEXITCODE; said = $said.Trim() }
}

function Set-HyperVRule($step) {
    $there = Get-NetFirewallHyperVRule -Name $step.name -ErrorAction SilentlyContinue
    if ([bool]$there -eq $step.present) { return 'unchanged' }
    if ($step.present) {
        $null = New-NetFirewallHyperVRule -Name $step.name -DisplayName $step.name -Direction Inbound -VMCreatorId $vm `
            -Protocol TCP -LocalPorts $step.port -RemoteAddresses LocalSubnet -Action Allow
    } else {
        Remove-NetFirewallHyperVRule -Name $step.name
    }
    return 'changed'
}

function Invoke-Step($step) {
    if ($step.kind -eq 'hyperv') { return Set-HyperVRule $step }
    if (-not $programs.ContainsKey($step.kind)) { throw ('unknown kind of step: ' + $step.kind) }
    if ($step.look) {
        $found = (Invoke-Program $step.kind $step.look).code -eq 0
        if ($found -eq $step.present) { return 'unchanged' }
    }
    $did = Invoke-Program $step.kind $step.words
    if ($did.code -ne 0) { throw ('exit code ' + $did.code + ': ' + $did.said) }
    return 'changed'
}

$principal = New-Object Security.Principal.WindowsPrincipal([Security.Principal.WindowsIdentity]::GetCurrent())
if (-not $principal.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) {
    if ((Get-Process -Id $PID).SessionId -eq 0 -or -not [Environment]::UserInteractive) {
        Save-Result 'nobody' 'nobody is logged on who could confirm it' @()
        exit 3
    }
    $arguments = '-NoProfile -ExecutionPolicy Bypass -File "' + $self + '"'
    try {
        Start-Process -FilePath (Get-Process -Id $PID).Path -Verb RunAs -Wait -WindowStyle Hidden -ArgumentList $arguments
    } catch {
        Save-Result 'cancelled' $_.Exception.Message @()
        exit 4
    }
    exit 0
}

$done = @()
foreach ($step in $order.steps) {
    try {
        $done += @{ id = $step.id; state = [string](Invoke-Step $step); why = '' }
    } catch {
        $done += @{ id = $step.id; state = 'failed'; why = $_.Exception.Message }
    }
}
Save-Result 'done' '' $done
