"""Settings of every host; docs/settings.md lists all of them. A host's own data in the inventory wins, key by key."""

# The GGUF to serve. Required. "on": "host" when the path is the host's, as with a fleet that has the file already.
# model = {"path": "/mnt/c/Users/me/Downloads/Qwen3.6-35B-A3B-Q4_K_M.gguf"}
# Or a name of `wsllama lock show`, which the host downloads from the Hub:
# model = {"name": "Qwen3.6-35B-A3B-UD-Q4_K_M"}

# server = {"ctx_size": 32768}
