"""Connectors of pyinfra for distros of WSL, from the Windows side: `@wsl/` and `@wslssh/`. They need nothing else of wsllama."""
