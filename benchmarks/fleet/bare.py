"""What any run of pyinfra takes: it connects and runs one command. python -m benchmarks.fleet runs it."""

from pyinfra.operations import server

server.shell(name="accepted", commands=["true"])
