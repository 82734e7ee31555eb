#Requires -Version 5.1
<#
.SYNOPSIS
Takes a Windows machine from nothing to an Ubuntu distro in WSL 2 with wsllama in it, ready for its first run.

.DESCRIPTION
Checks Windows, virtualisation and the NVIDIA driver; enables the two features of Windows that WSL needs (one question of
Windows, a restart, and it goes on after your logon); updates WSL; downloads Ubuntu's root file system, whose sha256 is in this
file; imports it; makes a user in it; puts the project into it and sets it up. Each step says unchanged, changed or would change,
and a second run changes nothing. What was changed is written down in %LOCALAPPDATA%\wsllama\bootstrap.json, and -Uninstall takes
exactly that back.

.PARAMETER GitUrl
Clone the project from this repository. Without it the folder that this file lies in is copied.

.PARAMETER Restart
Restart Windows where the features need it. Without it you are asked to do it.

.PARAMETER StopRunning
WSL may be updated although distros run, which are named and stopped by it.

.PARAMETER Resume
Go on after the restart; this is what Windows starts at your logon.

.PARAMETER Uninstall
Take back what this script added, the distro and all in it among it.

.PARAMETER Force
Do not ask before the distro is deleted.

.EXAMPLE
powershell -NoProfile -ExecutionPolicy Bypass -File bootstrap.ps1 -WhatIf
#>
[CmdletBinding(SupportsShouldProcess = $true)]
param(
    [string]$GitUrl = '',
    [switch]$Restart,
    [switch]$StopRunning,
    [switch]$Resume,
    [switch]$Uninstall,
    [switch]$Force
)

# Windows PowerShell 5.1 runs this file, and that has traps:
# - It has no ternary, no ??, no ?., no && and || between commands; clean blocks and [NullString] arguments are newer too.
# - A file without a byte order mark is read in the machine's code page: this one is ASCII, with straight quotes.
# - Out-File, > and Set-Content write UTF-16 or the code page: what is written goes through [IO.File], as UTF-8.
# - An argument of a program that is empty gets lost, and one with a double quote in it breaks: Invoke-Native refuses both.
# - Start-Process joins its arguments with blanks and quotes nothing: only constants of this file get there.
# - What a program writes to stderr becomes an error record once it is redirected, and ends the script under 'Stop'.
# - A function returns all that it doesn't catch, and a list of one is no list: hence @() and Out-Null.
# - ConvertTo-Json goes two levels deep, and ConvertFrom-Json hands on a list at the top as one thing.
Set-StrictMode -Version 1.0
$ErrorActionPreference = 'Stop'
$OutputEncoding = New-Object System.Text.ASCIIEncoding # what a program gets on stdin: no byte order mark
$Shell = $PSCmdlet

# All that is set travels as this JSON. Its writer leaves no quote and no line break inside a value.
$Settings = @'
@PARAMETERS@
'@ | ConvertFrom-Json

# The commands that are carried out in the distro. They get their values as arguments.
$Inside = @'
@INSIDE@
'@

$UserFolder = [Environment]::GetFolderPath('UserProfile')
$State = Join-Path ([Environment]::GetFolderPath('LocalApplicationData')) 'wsllama'
$JournalFile = Join-Path $State 'bootstrap.json'
$Copy = Join-Path $State 'bootstrap.ps1'
$Wsl = Join-Path $env:ProgramFiles 'WSL\wsl.exe'
# HKCU's Run, not its RunOnce: the desktop waits until all of RunOnce has ended, and this takes minutes. It is the same user,
# without rights of an administrator. Nothing is put together here: Windows fills in the folder when it starts it.
$RunKey = 'HKCU:\Software\Microsoft\Windows\CurrentVersion\Run'
$RunName = 'wsllama bootstrap'
$RunCommand = 'powershell.exe -NoProfile -ExecutionPolicy Bypass -File "%LOCALAPPDATA%\wsllama\bootstrap.ps1" -Resume'
$Lxss = 'HKCU:\Software\Microsoft\Windows\CurrentVersion\Lxss'
# They run with an administrator's rights, and get names of features as $args: only names that stand in the settings above.
$EnableFeatures = '& { $ErrorActionPreference = ''Stop'';' +
    ' $r = Enable-WindowsOptionalFeature -Online -FeatureName $args -All -NoRestart;' +
    ' if ($r.RestartNeeded -contains $true) { exit 3010 } }'
$DisableFeatures = '& { $ErrorActionPreference = ''Stop'';' +
    ' $r = Disable-WindowsOptionalFeature -Online -FeatureName $args -NoRestart;' +
    ' if ($r.RestartNeeded -contains $true) { exit 3010 } }'
$RestartNeeded = 3010
$Again = $false # it goes on after a restart


# --- What is said, and what may be changed

function Write-Step([string]$Said, [string]$What) {
    Write-Host ('{0,-13} {1}' -f $Said, $What)
}

function Confirm-Change([string]$What) {
    # Every change stands in the branch of an if on this: with -WhatIf it is false, and the step is named.
    if ($Shell.ShouldProcess($What, 'bootstrap')) { return $true }
    Write-Step 'would change' $What
    return $false
}


# --- The journal: what was added, written down before it is

function Get-Journal {
    $journal = @{}
    if (Test-Path -LiteralPath $JournalFile) {
        $read = [IO.File]::ReadAllText($JournalFile) | ConvertFrom-Json
        foreach ($property in $read.PSObject.Properties) { $journal[$property.Name] = $property.Value }
    }
    return $journal
}

function Set-Entry([string]$Name, $Value) {
    $journal = Get-Journal
    $journal[$Name] = $Value
    New-Item -ItemType Directory -Force -Path $State | Out-Null
    $aside = Join-Path $State 'bootstrap.json.new'
    [IO.File]::WriteAllText($aside, ($journal | ConvertTo-Json -Depth 5))
    Move-Item -LiteralPath $aside -Destination $JournalFile -Force
}


# --- Programs

function Invoke-Native([string]$Program, [string[]]$Arguments, [string]$Stdin = '', [switch]$Show) {
    foreach ($argument in $Arguments) {
        if ($argument -eq '' -or $argument.Contains('"') -or $argument.EndsWith('\')) {
            throw ('{0} can not be handed to a program: leave quotes out, and a backslash at the end' -f $argument)
        }
    }
    if (-not (Test-Path -LiteralPath $Program)) {
        throw ('{0} is missing: install all updates of Windows, then run this again' -f $Program)
    }
    $ErrorActionPreference = 'Continue'
    # A program that does not know WSL_UTF8 writes UTF-16: without its zeros that is ASCII again, and nothing else is looked at.
    $read = { $line = ([string]$_).Replace([string][char]0, ''); if ($Show) { Write-Host ('              ' + $line) }; $line }
    if ($Stdin) {
        $lines = @($Stdin | & $Program @Arguments 2>&1 | ForEach-Object $read)
    } else {
        $lines = @(& $Program @Arguments 2>&1 | ForEach-Object $read)
    }
    return New-Object PSObject -Property @{ Code = $LASTEXITCODE; Text = ($lines -join ' ').Trim(); Lines = $lines }
}

function Invoke-Inside([string]$Mode, [switch]$Show) {
    $journal = Get-Journal
    $from = '-'
    $repository = '-'
    if ($journal['git_url']) { $repository = $journal['git_url'] } else { $from = $journal['project'].Replace('\', '/') }
    $arguments = @('-d', $Settings.name, '-u', 'root', '--exec', '/bin/bash', '-s', $Mode, $Settings.user, $from, $repository)
    $commands = $Inside.Replace([string][char]13, '') # a checkout may have given this file CR and LF, which bash does not take
    return Invoke-Native $Wsl $arguments $commands -Show:$Show
}

function Invoke-Elevated([string]$Command, [string[]]$Features) {
    $start = @{
        FilePath = Join-Path $env:SystemRoot 'System32\WindowsPowerShell\v1.0\powershell.exe'
        ArgumentList = @('-NoProfile', '-NonInteractive', '-ExecutionPolicy', 'Bypass', '-Command', $Command) + $Features
        Wait = $true
        PassThru = $true
    }
    $identity = New-Object Security.Principal.WindowsPrincipal([Security.Principal.WindowsIdentity]::GetCurrent())
    if (-not $identity.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) { $start['Verb'] = 'RunAs' }
    try {
        $process = Start-Process @start
    } catch {
        throw ('the features of Windows need an administrator: run this again and say yes to the question of Windows ({0})' -f
            $_.Exception.Message)
    }
    if ($process.ExitCode -ne 0 -and $process.ExitCode -ne $RestartNeeded) {
        throw ('Windows did not change the features {0}: look below Turn Windows features on or off' -f ($Features -join ', '))
    }
    return $process.ExitCode
}


# --- What is there

function Get-Distro([string]$Name) {
    if (-not (Test-Path -LiteralPath $Lxss)) { return }
    $all = @(Get-ChildItem -LiteralPath $Lxss | ForEach-Object { Get-ItemProperty -LiteralPath $_.PSPath })
    return $all | Where-Object { $_.DistributionName -and ($Name -eq '' -or $_.DistributionName -eq $Name) }
}

function Get-Running {
    # Without one that runs wsl.exe says so in Windows' language: only names that are registered count.
    if (-not (Test-Path -LiteralPath $Wsl)) { return }
    $lines = (Invoke-Native $Wsl @('--list', '--running', '--quiet')).Lines
    return $lines | ForEach-Object { $_.Trim() } | Where-Object { $_ -and (Get-Distro $_) }
}

function Get-WslVersion {
    # Of the registry: where WSL is not installed, wsl.exe may ask whether to, and wait.
    $key = 'HKLM:\SOFTWARE\Microsoft\Windows\CurrentVersion\Lxss\MSI'
    if (-not (Test-Path -LiteralPath $key) -or -not (Test-Path -LiteralPath $Wsl)) { return [version]'0.0' }
    return [version](Get-ItemProperty -LiteralPath $key).Version
}

function Get-BootTime {
    return (Get-CimInstance -ClassName Win32_OperatingSystem).LastBootUpTime.ToUniversalTime()
}

function Test-RestartPending {
    $journal = Get-Journal
    if (-not $journal['booted']) { return $false }
    # A clock that is set moves the time of the boot by seconds.
    return [Math]::Abs((Get-BootTime).Subtract([datetime]::new([long]$journal['booted'])).TotalMinutes) -lt 1
}

function Get-Folder {
    if ($Settings.location) { return $Settings.location.TrimEnd('\') }
    return Join-Path $State $Settings.name
}


# --- Checks: they change nothing

function Assert-Windows {
    $build = [Environment]::OSVersion.Version.Build
    if (-not [Environment]::Is64BitProcess -or $env:PROCESSOR_ARCHITECTURE -ne 'AMD64') {
        throw 'this needs 64-bit Windows on an x64 processor: start Windows PowerShell, not Windows PowerShell (x86)'
    }
    if ($build -lt $Settings.windows_build) {
        throw ('Windows build {0} is too old for WSL 2, which needs {1}: update Windows' -f $build, $Settings.windows_build)
    }
    if ($Settings.mirrored -and $build -lt $Settings.windows_build_mirrored) {
        throw ('Windows build {0} has no mirrored networking, which needs {1}, Windows 11 22H2: update, or leave it out' -f
            $build, $Settings.windows_build_mirrored)
    }
    Write-Step 'unchanged' ('Windows build {0}' -f $build)
}

function Assert-Virtualisation {
    # With a hypervisor running Windows says that the firmware has it off, although it is in use.
    $running = (Get-CimInstance -ClassName Win32_ComputerSystem).HypervisorPresent
    $firmware = @(Get-CimInstance -ClassName Win32_Processor | Where-Object { $_.VirtualizationFirmwareEnabled })
    if (-not $running -and $firmware.Count -eq 0) {
        throw 'virtualisation is off in the firmware: turn on Intel VT-x or AMD-V (SVM) in the BIOS, then run this again'
    }
    Write-Step 'unchanged' 'virtualisation is on'
}

function ConvertTo-Driver([string]$Pnp) {
    # 32.0.15.7602 of the device manager is what NVIDIA calls 576.02: the last five digits.
    if ($Pnp -match '^\d+\.\d+\.\d*(\d)\.(\d\d)(\d\d)$') {
        return [version]('{0}{1}.{2}' -f $Matches[1], $Matches[2], $Matches[3])
    }
}

function Assert-Driver {
    $cards = @(Get-CimInstance -ClassName Win32_VideoController | Where-Object { $_.PNPDeviceID -like 'PCI\VEN_10DE*' })
    if ($cards.Count -eq 0) { Write-Step 'unchanged' 'no NVIDIA GPU: the model will run on the processor'; return }
    foreach ($card in $cards) {
        $driver = ConvertTo-Driver $card.DriverVersion
        if (-not $driver) {
            throw ('{0} has driver {1}, which is none of NVIDIA''s: install NVIDIA''s driver on Windows, never in Linux' -f
                $card.Name, $card.DriverVersion)
        }
        if ($driver -lt [version]$Settings.driver_floor) {
            throw ('{0} has driver {1}, and CUDA on Ubuntu {2} needs {3} or newer: update it on Windows, never in Linux' -f
                $card.Name, $driver, $Settings.distro, $Settings.driver_floor)
        }
        $note = ''
        if ($driver -lt [version]$Settings.driver_cuda13) { $note = ' (CUDA 12; CUDA 13 needs {0})' -f $Settings.driver_cuda13 }
        Write-Step 'unchanged' ('{0}: driver {1}{2}' -f $card.Name, $driver, $note)
    }
}

function Assert-Name {
    $made = ''
    $entry = (Get-Journal)['distro']
    if ($entry) { $made = $entry.name }
    if ($made -ne '' -and $made -ne $Settings.name -and (Get-Distro $made)) {
        throw ('{0} was made by this script before: run it with -Uninstall first, or render it for that name' -f $made)
    }
    if ($made -ne $Settings.name -and (Get-Distro $Settings.name)) {
        throw ('{0} is there and not from this script: run scripts/setup in it, or take another name, wsllama bootstrap --name' -f
            $Settings.name)
    }
}

function Assert-Folder {
    if (Get-Distro $Settings.name) { return }
    $folder = Get-Folder
    while (-not (Test-Path -LiteralPath $folder)) {
        $folder = Split-Path -Parent $folder # a new folder takes these attributes over from the one that it is made in
        if (-not $folder) {
            throw ('there is no drive for {0}: name another folder with wsllama bootstrap --location' -f (Get-Folder))
        }
    }
    $attributes = (Get-Item -LiteralPath $folder -Force).Attributes
    if ($attributes -band ([IO.FileAttributes]::Compressed -bor [IO.FileAttributes]::Encrypted)) {
        throw ('{0} is compressed or encrypted, where no virtual disk works (0xc03a001a): turn that off in its properties' -f
            $folder)
    }
    $free = (New-Object IO.DriveInfo([IO.Path]::GetPathRoot($folder))).AvailableFreeSpace
    if ($free -lt $Settings.free_bytes) {
        throw ('{0} has {1:N1} GB free, and the distro needs {2:N0} GB, besides the model: make room' -f
            $folder, ($free / 1gb), ($Settings.free_bytes / 1gb))
    }
}


# --- Steps

function Get-Backup {
    # .wslconfig as it was before the deploy touches it, for -Uninstall: the deploy's own backup may be gone with the distro.
    $file = Join-Path $UserFolder '.wslconfig'
    if (Test-Path -LiteralPath $file -PathType Leaf) { return [Convert]::ToBase64String([IO.File]::ReadAllBytes($file)) }
    return ''
}

function Save-Project {
    # Both survive the restart, after which another copy of this file is run, from another folder.
    $journal = Get-Journal
    if ($Resume) {
        if (-not $journal['project']) { throw 'there is nothing to go on with: run this script without -Resume' }
        return
    }
    $folder = $PSScriptRoot
    if ($GitUrl -eq '') { $GitUrl = $Settings.git_url }
    if ($GitUrl -eq '' -and $journal['git_url']) { $GitUrl = $journal['git_url'] }
    if ($GitUrl -eq '' -and -not (Test-Path -LiteralPath (Join-Path $folder 'deploy.py'))) {
        throw 'the project is not beside this file: run it from the folder of the project, or name a repository with -GitUrl'
    }
    if ($GitUrl -ne '' -and $GitUrl -notmatch $Settings.git_url_pattern) {
        throw 'GitUrl has to look like https://... or ssh://..., without a password or a token'
    }
    $what = 'note where the project comes from, and .wslconfig as it is'
    if ($journal['git_url'] -eq $GitUrl -and $journal['project'] -eq $folder) { Write-Step 'unchanged' $what; return }
    if (Confirm-Change $what) {
        if (-not $journal.ContainsKey('wslconfig')) { Set-Entry 'wslconfig' (Get-Backup) }
        Set-Entry 'git_url' $GitUrl
        Set-Entry 'project' $folder
        Write-Step 'changed' $what
    }
}

function Enable-Features {
    $all = @(Get-CimInstance -ClassName Win32_OptionalFeature) # Get-WindowsOptionalFeature would ask for an administrator
    $enabled = @($all | Where-Object { $_.InstallState -eq 1 } | ForEach-Object { $_.Name })
    $missing = @($Settings.features | Where-Object { $enabled -notcontains $_ })
    $what = 'features of Windows: {0}' -f ($Settings.features -join ', ')
    if ($missing.Count -eq 0) { Write-Step 'unchanged' $what; return }
    if (Confirm-Change $what) {
        # Kept as text: what ConvertTo-Json of 5.1 makes of a list depends on where the list was made.
        $ours = [string](Get-Journal)['features']
        Set-Entry 'features' ((@($ours -split ',') + $missing | Where-Object { $_ } | Sort-Object -Unique) -join ',')
        try {
            $code = Invoke-Elevated $EnableFeatures $missing
        } catch {
            Set-Entry 'features' $ours # who enables them by hand now, keeps them
            throw
        }
        if ($code -eq $RestartNeeded) { Set-Entry 'booted' (Get-BootTime).Ticks }
        Write-Step 'changed' $what
    }
}

function Restart-Later {
    # Goes on by itself after the logon of this user; the copy is there even when the download folder is emptied meanwhile.
    if (Confirm-Change 'go on after the restart') {
        if ($PSCommandPath -ne $Copy) { Copy-Item -LiteralPath $PSCommandPath -Destination $Copy -Force }
        New-ItemProperty -Path $RunKey -Name $RunName -Value $RunCommand -PropertyType ExpandString -Force | Out-Null
        $script:Again = $true
        Write-Step 'changed' 'goes on after the restart, when you log on'
    }
    $running = @(Get-Running)
    if ($running.Count -gt 0) { Write-Host ('A restart stops what runs in WSL: {0}' -f ($running -join ', ')) }
    if (-not $Restart) { Write-Host 'Restart Windows now (Restart, not Shut down): this goes on when you log on.'; return }
    if (Confirm-Change 'restart Windows') { Restart-Computer } # without -Force: Windows refuses while others are logged on
}

function Remove-Resume {
    $there = Get-ItemProperty -Path $RunKey -Name $RunName -ErrorAction SilentlyContinue
    if (-not $there) { return }
    if (Confirm-Change 'do not start again at logon') {
        Remove-ItemProperty -Path $RunKey -Name $RunName
        Write-Step 'changed' 'is not started at logon any more'
    }
}

function Update-Wsl {
    $version = Get-WslVersion
    if ($version -ge [version]$Settings.wsl_idle) { Write-Step 'unchanged' ('WSL {0}' -f $version); return }
    $running = @(Get-Running)
    if ($running.Count -gt 0 -and -not $StopRunning) {
        throw ('updating WSL {0} stops what runs in it: {1}; end your work there, then run this again with -StopRunning' -f
            $version, ($running -join ', '))
    }
    if ($running.Count -gt 0) { Write-Host ('The update of WSL stops: {0}' -f ($running -join ', ')) }
    if (Confirm-Change ('WSL {0}: update to {1} or newer' -f $version, $Settings.wsl_idle)) {
        if ($version -eq [version]'0.0') { Set-Entry 'wsl_installed' $true }
        $program = Join-Path $env:SystemRoot 'System32\wsl.exe'
        if (Test-Path -LiteralPath $Wsl) { $program = $Wsl }
        $answer = Invoke-Native $program @('--update') -Show
        if ((Get-WslVersion) -lt [version]$Settings.wsl_floor) {
            $answer = Invoke-Native $program @('--update', '--web-download') -Show # where the Store is closed
        }
        $now = Get-WslVersion
        if ($now -lt [version]$Settings.wsl_floor) {
            throw ('WSL is {0} after the update, and {1} is needed: {2}' -f $now, $Settings.wsl_floor, $answer.Text)
        }
        Write-Step 'changed' ('WSL {0} -> {1}' -f $version, $now)
        if ($now -lt [version]$Settings.wsl_idle) {
            Write-Host ('WSL {0} has no setting that keeps a distro alive; {1} has' -f $now, $Settings.wsl_idle)
        }
    }
}

function Set-DefaultVersion {
    $set = 2 # what a WSL of this age takes where nothing is set
    if (Test-Path -LiteralPath $Lxss) {
        $read = (Get-ItemProperty -LiteralPath $Lxss).DefaultVersion
        if ($read) { $set = $read }
    }
    if ($set -eq 2) { Write-Step 'unchanged' 'new distros are of version 2'; return }
    if (Confirm-Change 'new distros are of version 2') {
        Set-Entry 'default_version' $set
        $answer = Invoke-Native $Wsl @('--set-default-version', '2')
        if ($answer.Code -ne 0) { throw ('WSL does not take version 2 as its default: {0}' -f $answer.Text) }
        Write-Step 'changed' 'new distros are of version 2'
    }
}

function Receive-File([string]$Url, [string]$Path) {
    # Invoke-WebRequest of 5.1 can't resume, and holds up a download with its progress.
    [Net.ServicePointManager]::SecurityProtocol = [Net.SecurityProtocolType]::Tls12 # old Windows would not offer it
    $have = [long]0
    if (Test-Path -LiteralPath $Path) { $have = (Get-Item -LiteralPath $Path).Length }
    $request = [Net.WebRequest]::Create($Url)
    if ($have -gt 0) { $request.AddRange($have) }
    try {
        $response = $request.GetResponse()
    } catch {
        $failure = $_.Exception
        while ($failure -and -not ($failure -is [Net.WebException])) { $failure = $failure.InnerException }
        $status = 0
        if ($failure -and $failure.Response) { $status = [int]$failure.Response.StatusCode }
        if ($status -eq 416) { return } # all of it is there; whether it is right, its sha256 says
        if ($status -eq 404) {
            throw ('{0} is gone, as a point release is when the next one is out: take a newer wsllama, which names that' -f $Url)
        }
        throw ('{0} can not be downloaded: {1}; run this again, and it goes on where it stopped' -f $Url, $_.Exception.Message)
    }
    $mode = [IO.FileMode]::Create
    if ([int]$response.StatusCode -eq 206) { $mode = [IO.FileMode]::Append }
    $file = New-Object IO.FileStream($Path, $mode, [IO.FileAccess]::Write)
    try {
        $response.GetResponseStream().CopyTo($file, 1mb)
        $file.Flush($true)
    } catch {
        throw ('the download of {0} broke off: {1}; run this again, and it goes on there' -f $Url, $_.Exception.Message)
    } finally {
        $file.Close()
        $response.Close()
    }
}

function Get-Image {
    $image = Join-Path $State ('{0}.wsl' -f $Settings.image.sha256)
    if (Test-Path -LiteralPath $image) { Write-Step 'unchanged' ('{0} is downloaded' -f $Settings.image.url); return $image }
    if (Confirm-Change ('download {0}' -f $Settings.image.url)) {
        New-Item -ItemType Directory -Force -Path $State | Out-Null
        $part = $image + '.part'
        Write-Host ('              downloading {0}' -f $Settings.image.url)
        Receive-File $Settings.image.url $part
        $sum = (Get-FileHash -LiteralPath $part -Algorithm SHA256).Hash
        if ($sum -ne $Settings.image.sha256) {
            Remove-Item -LiteralPath $part
            throw ('what was downloaded from {0} has the sha256 {1} and not {2}: it is deleted; run this again' -f
                $Settings.image.url, $sum, $Settings.image.sha256)
        }
        Move-Item -LiteralPath $part -Destination $image
        Write-Step 'changed' ('downloaded {0}' -f $Settings.image.url)
    }
    return $image
}

function Import-Distro {
    $folder = Get-Folder
    $what = 'distro {0} (Ubuntu {1}) in {2}' -f $Settings.name, $Settings.distro, $folder
    if (Get-Distro $Settings.name) { Write-Step 'unchanged' $what; return }
    $image = Get-Image
    if (Confirm-Change $what) {
        Set-Entry 'distro' @{ name = $Settings.name; folder = $folder; user = $Settings.user }
        New-Item -ItemType Directory -Force -Path $folder | Out-Null
        $answer = Invoke-Native $Wsl @('--import', $Settings.name, $folder, $image, '--version', '2') -Show
        if ($answer.Text -match 'c03a001a') {
            throw ('{0} is compressed or encrypted by Windows (0xc03a001a): turn that off in its properties' -f $folder)
        }
        if ($answer.Code -ne 0) { throw ('WSL can not import {0}: {1}' -f $Settings.name, $answer.Text) }
        Remove-Item -LiteralPath $image
        Write-Step 'changed' $what
    }
}

function Set-Inside {
    if (-not (Get-Distro $Settings.name)) {
        # Only with -WhatIf is there none by now.
        $what = 'packages, user {0}, project, scripts/setup and wsl.conf in {1}' -f $Settings.user, $Settings.name
        Write-Step 'would change' $what
        return
    }
    $look = Invoke-Inside 'look'
    if ($look.Code -ne 0) { throw ('{0} does not start: {1}' -f $Settings.name, $look.Text) }
    if ($look.Text -notmatch 'would change') { $look.Lines | ForEach-Object { Write-Host $_ }; return }
    if (Confirm-Change ('what is in {0}' -f $Settings.name)) {
        $done = Invoke-Inside 'do' -Show
        if ($done.Code -ne 0) { throw ('{0} is not set up: {1}' -f $Settings.name, ($done.Lines | Select-Object -Last 1)) }
        $done.Lines | Where-Object { $_ -match '^(un)?changed  ' } | ForEach-Object { Write-Host $_ }
    } else {
        $look.Lines | ForEach-Object { Write-Host $_ }
    }
}

function Start-Systemd {
    if (-not (Get-Distro $Settings.name)) { Write-Step 'would change' ('{0} runs systemd' -f $Settings.name); return }
    $first = Invoke-Native $Wsl @('-d', $Settings.name, '-u', 'root', '--exec', '/bin/cat', '/proc/1/comm')
    if ($first.Text -eq 'systemd') { Write-Step 'unchanged' ('{0} runs systemd' -f $Settings.name); return }
    # Of our own distro only, which was made without systemd a moment ago: no other one stops.
    if (Confirm-Change ('stop {0} and start it with systemd' -f $Settings.name)) {
        Invoke-Native $Wsl @('--terminate', $Settings.name) | Out-Null
        $first = Invoke-Native $Wsl @('-d', $Settings.name, '-u', 'root', '--exec', '/bin/cat', '/proc/1/comm')
        if ($first.Text -ne 'systemd') {
            throw ('{0} does not start systemd: run wsl --shutdown when nothing else runs in WSL, then this' -f $Settings.name)
        }
        Write-Step 'changed' ('{0} runs systemd' -f $Settings.name)
    }
}

function Install-All {
    Assert-Windows
    Assert-Virtualisation
    Assert-Driver
    Assert-Name
    Assert-Folder
    Save-Project
    Enable-Features
    if (Test-RestartPending) { Restart-Later; return }
    Update-Wsl
    Set-DefaultVersion
    Import-Distro
    Set-Inside
    Start-Systemd
    Remove-Resume
    Write-Host ''
    Write-Host 'Next: name your model in group_data/all.py of the project, in the distro, then provision:'
    Write-Host ('  wsl -d {0} --cd /home/{1}/wsllama' -f $Settings.name, $Settings.user)
    Write-Host '  pyinfra inventory deploy.py'
}


# --- And back

function Undo-Config {
    # The distro's own `wsllama uninstall` knows best; only for this host, because the inventory may have become that of a fleet.
    # Where it can't run any more, .wslconfig is looked at from here.
    $entry = (Get-Journal)['distro']
    if ($entry -and (Get-Distro $entry.name)) {
        $what = 'wsllama uninstall in {0}' -f $entry.name
        $project = '/home/{0}/wsllama' -f $entry.user
        $program = $project + '/.venv/bin/wsllama'
        $words = @('-d', $entry.name, '-u', 'root', '--cd', $project, '--exec', $program)
        $words += @('uninstall', 'inventory', '--limit', '@local', '-y')
        if (Confirm-Change $what) {
            $answer = Invoke-Native $Wsl $words -Show
            if ($answer.Code -eq 0) { Write-Step 'changed' $what; return }
            Write-Host ('{0} did not work: .wslconfig is looked at from here' -f $what)
        } else { return }
    }
    Undo-ConfigLines
}

function Read-Config([string]$Text) {
    # One object a line; Name is section.key where the line sets something. Lines keep their ends.
    $section = ''
    foreach ($line in ($Text -split '(?<=\n)')) {
        $name = ''
        $value = ''
        if ($line -match '^[\s\xef\xbb\xbf\ufeff]*\[([A-Za-z0-9]+)\]') { $section = $Matches[1] }
        if ($line -match '^[\s\xef\xbb\xbf\ufeff]*([A-Za-z0-9]+)\s*=\s*([^\s#]*)') {
            $name = $section + '.' + $Matches[1]
            $value = $Matches[2]
        }
        New-Object PSObject -Property @{ Name = $name; Value = $value; Line = $line }
    }
}

function Get-ConfigEncoding([byte[]]$Bytes) {
    # Latin-1 gives every byte back as it was, whatever a comment is written in.
    if ($Bytes.Length -gt 1 -and $Bytes[0] -eq 0xff -and $Bytes[1] -eq 0xfe) { return [Text.Encoding]::Unicode }
    return [Text.Encoding]::GetEncoding(28591)
}

function Undo-ConfigLines {
    # A line is ours that sets what the deploy sets by default, to the same value, and that is not so in the backup.
    $file = Join-Path $UserFolder '.wslconfig'
    if (-not (Test-Path -LiteralPath $file)) { Write-Step 'unchanged' '.wslconfig is not there'; return }
    $bytes = [IO.File]::ReadAllBytes($file)
    $encoding = Get-ConfigEncoding $bytes
    $old = [Convert]::FromBase64String([string](Get-Journal)['wslconfig'])
    $before = @(Read-Config (Get-ConfigEncoding $old).GetString($old) | Where-Object { $_.Name })
    $stay = @()
    $kept = @(foreach ($line in @(Read-Config $encoding.GetString($bytes))) {
        $was = $before | Where-Object { $_.Name -eq $line.Name } | Select-Object -First 1
        $ours = $line.Name -and $Settings.wslconfig.($line.Name) -eq $line.Value
        if ($ours -and -not $was) { continue }
        if ($ours -and $was.Value -ne $line.Value) { $line.Line.Replace($line.Line.Trim(), $was.Line.Trim()); continue }
        if ($line.Name -and -not $was) { $stay += $line.Line.Trim() }
        $line.Line
    }) -join ''
    $now = $encoding.GetBytes($kept)
    if ($stay.Count -gt 0) { Write-Host ('These lines of .wslconfig stay, because they may be yours: {0}' -f ($stay -join ', ')) }
    if ([Convert]::ToBase64String($now) -ceq [Convert]::ToBase64String($bytes)) {
        Write-Step 'unchanged' '.wslconfig has no line of ours'
        return
    }
    if (Confirm-Change '.wslconfig: take our lines out') {
        $aside = $file + '.wsllama-new'
        [IO.File]::WriteAllBytes($aside, $now)
        Move-Item -LiteralPath $aside -Destination $file -Force
        Write-Step 'changed' '.wslconfig: our lines are out; it counts after wsl --shutdown, which stops every distro'
    }
}

function Assert-Consent {
    # Before anything is taken back. -WhatIf takes nothing back.
    $entry = (Get-Journal)['distro']
    if ($Force -or $WhatIfPreference -or -not $entry -or -not (Get-Distro $entry.name)) { return }
    $question = 'The distro {0} is deleted with all that is in it, models and settings too.' -f $entry.name
    if (-not $Shell.ShouldContinue($question, 'Delete it?')) { throw 'nothing was taken back' }
}

function Remove-Distro {
    $entry = (Get-Journal)['distro']
    if (-not $entry) { return }
    $what = 'distro {0} with all that is in it' -f $entry.name
    if (Get-Distro $entry.name) {
        if (@(Get-Running) -contains $entry.name) { Write-Host ('{0} runs, and is stopped by this' -f $entry.name) }
        if (Confirm-Change ('delete {0}' -f $what)) {
            $answer = Invoke-Native $Wsl @('--unregister', $entry.name)
            if ($answer.Code -ne 0) { throw ('WSL can not delete {0}: {1}' -f $entry.name, $answer.Text) }
            Write-Step 'changed' ('deleted {0}' -f $what)
        } else { return }
    }
    Remove-Empty $entry.folder
}

function Remove-Empty([string]$Folder) {
    if (-not (Test-Path -LiteralPath $Folder)) { return }
    if (@(Get-ChildItem -LiteralPath $Folder -Force).Count -gt 0) {
        Write-Step 'unchanged' ('{0} is not empty' -f $Folder)
        return
    }
    if (Confirm-Change ('remove the folder {0}' -f $Folder)) {
        Remove-Item -LiteralPath $Folder
        Write-Step 'changed' ('removed the folder {0}' -f $Folder)
    }
}

function Undo-Wsl {
    $journal = Get-Journal
    $ours = ''
    if ($journal['distro']) { $ours = $journal['distro'].name } # with -WhatIf it is still there
    $others = @(Get-Distro '' | ForEach-Object { $_.DistributionName } | Where-Object { $_ -ne $ours })
    if ($others.Count -gt 0) {
        Write-Step 'unchanged' ('WSL and the features of Windows stay: other distros need them ({0})' -f ($others -join ', '))
        return
    }
    if ($journal['default_version'] -and (Test-Path -LiteralPath $Wsl)) {
        if (Confirm-Change ('new distros are of version {0}' -f $journal['default_version'])) {
            Invoke-Native $Wsl @('--set-default-version', [string][int]$journal['default_version']) | Out-Null
            Write-Step 'changed' ('new distros are of version {0}' -f $journal['default_version'])
        }
    }
    if ($journal['wsl_installed'] -and (Test-Path -LiteralPath $Wsl)) {
        if (Confirm-Change 'uninstall WSL') {
            $answer = Invoke-Native $Wsl @('--uninstall') -Show
            if ($answer.Code -ne 0) { throw ('WSL can not be uninstalled: {0}' -f $answer.Text) }
            Write-Step 'changed' 'WSL is uninstalled'
        }
    }
    # The journal is a file that anybody of this user may write: only names of the settings get to an administrator.
    $features = @($Settings.features | Where-Object { @([string]$journal['features'] -split ',') -contains $_ })
    if ($features.Count -gt 0) {
        if (Confirm-Change ('disable the features {0}' -f ($features -join ', '))) {
            $code = Invoke-Elevated $DisableFeatures $features
            Write-Step 'changed' ('disabled the features {0}' -f ($features -join ', '))
            if ($code -eq $RestartNeeded) { Write-Host 'Windows ends this at its next restart.' }
        }
    }
}

function Uninstall-All {
    if (-not (Test-Path -LiteralPath $JournalFile)) { Write-Step 'unchanged' 'nothing was added by this script'; return }
    $running = @(Get-Running)
    if ($running.Count -gt 0) { Write-Host ('In WSL run: {0}; only what this script made is stopped' -f ($running -join ', ')) }
    Assert-Consent
    Undo-Config
    Remove-Distro
    Undo-Wsl
    Remove-Resume
    $ours = '^[0-9a-f]{64}\.wsl(\.part)?$|^bootstrap\.(ps1|json|json\.new)$'
    $files = @(Get-ChildItem -LiteralPath $State -Force | Where-Object { $_.Name -match $ours })
    if (Confirm-Change ('remove {0}' -f (@($files | ForEach-Object { $_.Name }) -join ', '))) {
        $files | ForEach-Object { Remove-Item -LiteralPath $_.FullName }
        Write-Step 'changed' 'removed what this script kept for itself'
    }
    Remove-Empty $State
}


# --- Main

$before = @{ utf8 = $env:WSL_UTF8; console = $null }
$code = 0
try {
    $env:WSL_UTF8 = '1' # else wsl.exe writes UTF-16
    try {
        $before.console = [Console]::OutputEncoding
        [Console]::OutputEncoding = New-Object System.Text.UTF8Encoding($false)
    } catch { $before.console = $null } # a host without a console has nothing to set
    if ($Uninstall) { Uninstall-All } else { Install-All }
} catch {
    [Console]::Error.WriteLine('bootstrap: ' + $_.Exception.Message)
    $code = 1
} finally {
    $env:WSL_UTF8 = $before.utf8
    if ($before.console) { [Console]::OutputEncoding = $before.console }
}
if ($Resume -and -not $Again) {
    # Also when it failed: what fails once is not tried at every logon.
    try { Remove-Resume } catch { [Console]::Error.WriteLine('bootstrap: ' + $_.Exception.Message) }
    Read-Host 'Press Enter to close this window' | Out-Null
}
exit $code
