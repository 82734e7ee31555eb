"""Readers of what people paste: units, answers, build logs, outputs of wsl.exe. Each gives finding ids or a document. Pure."""
