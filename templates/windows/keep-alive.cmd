@rem Written by wsllama: keeps the WSL distro {{ distro }} running while you are logged on. "wsllama uninstall" takes it back.
@start "" "{{ program }}" {{ arguments }}
